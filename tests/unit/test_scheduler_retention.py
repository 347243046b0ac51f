"""Ended jobs are kept for a time and then gone, and nothing of them reaches a later job of the same id."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_desk import Desk, reborn, removed

from elps.contracts.codec import parse_job
from elps.contracts.epoch import Term
from elps.contracts.ids import JobId
from elps.contracts.messages import DropJob, HostJob
from elps.contracts.state import JobRecord, JobState
from elps.scheduler.core.core import Core
from elps.scheduler.core.events import (
    AskTerm,
    Bounds,
    ForgetJobs,
    Marks,
    Moment,
    PublishEvent,
    RemoveKeys,
    TermGranted,
    Ticked,
    WriteRecord,
)
from elps.scheduler.core.retention import AT_ONCE, QUIET_S

J = JobId("j")
KEEP_S = 3600.0


def killed(desk: Desk) -> Desk:
    """Its job has trained, was killed, and everyone has let go of it."""
    desk.start()
    desk.ask("kill")
    let_go(desk)
    desk.out.clear()
    return desk


def let_go(desk: Desk) -> None:
    for shard in list(desk.shards):
        desk.shard(shard, jobs=[])
    for agent in list(desk.agents):
        desk.agent(agent, trainers=[])


def of(desk: Desk, kind: type) -> list[object]:
    return [command for command in desk.out if isinstance(command, kind)]


@pytest.mark.parametrize("state", ["queued", "running", "paused"])
def test_a_job_that_has_not_ended_is_not_deleted_and_the_answer_says_what_to_do(state: str) -> None:
    desk = Desk()
    if state == "running":
        desk.start()
    else:
        desk.submit()
    if state == "paused":
        desk.ask("pause")
    reply = desk.ask("delete")
    assert not reply.ok
    assert state in reply.reason
    assert "elps kill j" in reply.reason
    assert desk.state().value == state


def test_deleting_what_is_not_there_is_refused() -> None:
    reply = Desk().ask("delete", "nobody")
    assert not reply.ok
    assert "there is no job" in reply.reason


def test_a_deleted_job_is_known_to_nobody_and_its_keys_go() -> None:
    desk = killed(Desk())
    assert desk.ask("delete").ok
    assert desk.events() == ["deleted"]
    (event,) = [c.event for c in desk.out if isinstance(c, PublishEvent)]
    assert event.record is not None
    assert event.record.deleted_at is not None
    assert of(desk, RemoveKeys) == [RemoveKeys(J, all=True)]
    assert not any(desk.core.counts().values())
    for what in ("kill", "pause", "resume", "explain"):
        reply = desk.ask(what)
        assert (reply.ok, reply.state) == (False, None), what
        assert "there is no job" in reply.reason
    assert desk.ask("delete").reason == "already deleted"


def test_a_repeat_of_the_message_deletes_nothing_else() -> None:
    desk = killed(Desk())
    request = desk.request()
    first = desk.ask("delete", request=request)
    desk.wait(QUIET_S + 5)
    assert desk.submit().ok
    assert desk.ask("delete", request=request) == first
    assert desk.state() is not JobState.KILLED
    assert desk.record().deleted_at is None


def test_the_id_is_free_once_nothing_of_the_old_job_is_on_its_way() -> None:
    desk = killed(Desk())
    desk.ask("delete")
    reply = desk.submit()
    assert (reply.ok, reply.state) == (False, None)
    assert "was deleted" in reply.reason
    desk.wait(QUIET_S - 5)
    assert not desk.submit().ok
    desk.wait(10)
    assert J not in desk.core.book.records
    assert desk.submit(iterations=7).ok
    assert desk.record().document.iterations == 7


def test_the_id_stays_taken_as_long_as_a_member_has_something_of_the_job() -> None:
    desk = Desk()
    desk.start()
    hosted, status = desk.hosts(), desk.trainer("j-w1")
    desk.ask("kill")
    desk.shard(jobs=[hosted])
    desk.ask("delete")
    desk.wait(2 * QUIET_S)
    assert not desk.submit().ok
    desk.shard(jobs=[])
    desk.agent(trainers=[status])
    desk.wait(2 * QUIET_S)
    assert "nobody holds" in desk.submit().reason
    desk.agent(trainers=[])
    desk.wait(2)
    assert desk.submit().ok


def test_keys_are_removed_before_the_record_and_what_is_cut_off_is_done_again() -> None:
    desk = killed(Desk())
    desk.removing = False
    desk.ask("delete")
    desk.wait(QUIET_S + 5)
    assert not of(desk, ForgetJobs), "the keys are not gone yet"
    after = reborn(desk)
    after.removing = False
    after.shard()
    assert of(after, RemoveKeys) == [RemoveKeys(J, all=True)]
    after.feed(removed(RemoveKeys(J, all=True)))
    after.wait(QUIET_S + 5)
    (forget,) = of(after, ForgetJobs)
    assert not after.submit().ok, "the record may still be there"
    last = reborn(after)
    last.wait(QUIET_S + 5)
    assert [c.jobs for c in last.out if isinstance(c, ForgetJobs)] == [(J,)]
    assert isinstance(forget, ForgetJobs)
    assert J not in last.core.book.records


def test_terms_of_a_later_job_are_above_all_of_the_one_before_also_after_a_restart() -> None:
    desk = killed(Desk())
    old, seq = desk.record().terms, desk.record().seq
    desk.ask("delete")
    desk.wait(QUIET_S + 5)
    (forget,) = of(desk, ForgetJobs)
    assert isinstance(forget, ForgetJobs)
    assert forget.marks == Marks(seq=seq, terms=old)
    after = Desk(marks=forget.marks)
    after.shard()
    after.agent()
    after.submit()
    record = after.record()
    assert record.seq > seq
    assert after.term().number > record.first_term > old
    hosts = [m for _, m in after.sent if isinstance(m, HostJob)]
    assert [m.first_term for m in hosts] == [record.first_term] * len(hosts)
    assert hosts


def test_a_shard_that_comes_back_with_a_forgotten_job_drops_it_and_what_it_wrote_goes() -> None:
    desk = killed(Desk())
    old = desk.record().terms
    desk.ask("delete")
    desk.wait(QUIET_S + 5)
    assert desk.submit().ok
    (taken_by,) = desk.places()
    desk.out.clear()
    zombie = desk.hosts(term=Term(old, 5), phase="running")
    desk.shard("frozen", jobs=[zombie])
    assert ("frozen", DropJob(job=J, term=zombie.term)) in desk.sent
    assert (desk.places(), desk.term().number > old) == ([taken_by], True)
    desk.shard("frozen", jobs=[])
    assert not of(desk, RemoveKeys), "they are those of the job that goes on"


def test_what_a_shard_wrote_of_a_forgotten_job_goes_before_its_id_is_free() -> None:
    desk = Desk(marks=Marks(seq=9, terms=3))
    desk.removing = False
    desk.shard("frozen", jobs=[desk.hosts(term=Term(3, 5))])
    assert "being removed" in desk.submit().reason
    desk.shard("frozen", jobs=[])
    assert of(desk, RemoveKeys) == [RemoveKeys(J, all=True)]
    assert "being removed" in desk.submit().reason
    desk.feed(removed(RemoveKeys(J, all=True)))
    assert desk.submit().ok


def test_what_there_is_of_a_job_that_was_never_forgotten_stays_though_nobody_knows_it() -> None:
    desk = Desk(marks=Marks(seq=9, terms=3), reserved=[JobId("unread")])
    desk.shard("odd", jobs=[desk.hosts(term=Term(4, 5)), desk.hosts("unread", term=Term(2, 5))])
    desk.shard("odd", jobs=[])
    assert not of(desk, RemoveKeys)


def test_a_term_that_comes_after_the_keys_of_a_killed_job_went_leaves_no_key() -> None:
    desk = Desk()
    desk.granting = False
    desk.shard()
    desk.agent()
    desk.submit()
    (ask,) = of(desk, AskTerm)
    assert isinstance(ask, AskTerm)
    desk.ask("kill")
    assert of(desk, RemoveKeys) == [RemoveKeys(J, all=True)]
    desk.feed(TermGranted(J, ask.attempt, Term(1, 1), "secret"))
    assert of(desk, RemoveKeys) == [RemoveKeys(J, all=True)] * 2


# --- time -------------------------------------------------------------------------------------------------------------


def ended(n: int, at: float, state: JobState = JobState.FINISHED) -> JobRecord:
    job = JobId(f"j{n}")
    return JobRecord(
        id=job,
        document=parse_job({"id": job, "task": "linear", "iterations": 1}),
        state=state,
        reason="",
        seq=n,
        submitted_at=0.0,
        changed_at=at,
        ended_at=at,
    )


def test_a_job_whose_time_is_over_goes_by_itself() -> None:
    desk = Desk([ended(1, 1e9), ended(2, 1e9 + 2000)], bounds=Bounds(keep_jobs_s=KEEP_S))
    assert desk.events() == []
    desk.time = KEEP_S + 1
    desk.wait(1)
    assert [c.event.job for c in desk.out if isinstance(c, PublishEvent)] == ["j1"]
    desk.wait(QUIET_S + 5)
    assert list(desk.core.book.records) == ["j2"]
    desk.time = 10 * KEEP_S
    desk.wait(2 * QUIET_S)
    assert not desk.core.book.records


def test_with_0_jobs_are_kept_for_ever() -> None:
    desk = Desk([ended(1, 1.0)])
    desk.time += 1e9
    desk.wait(2)
    assert not desk.events()


def test_a_clock_that_was_set_back_removes_nothing_early() -> None:
    desk = Desk([ended(1, 2e9)], bounds=Bounds(keep_jobs_s=1.0))
    desk.wait(5)
    assert not desk.events()


def test_of_a_job_that_ended_while_the_clock_was_ahead_no_other_waits_for_its_time() -> None:
    ahead, later = ended(1, 2e9), ended(2, 1e9 + 500)
    desk = Desk(bounds=Bounds(keep_jobs_s=KEEP_S))
    for n, record in enumerate((ahead, later), 1):
        desk.core.book.records[record.id] = record
        desk.core.book.retention.ended[record.id] = None  # they ended in this order
        desk.core.book.next_seq = n + 1
    desk.time = KEEP_S + 600
    desk.wait(1)
    assert [c.event.job for c in desk.out if isinstance(c, PublishEvent)] == ["j2"]
    desk.wait(QUIET_S + 5)
    assert list(desk.core.book.records) == ["j1"]


def test_of_a_job_that_was_hidden_while_the_clock_was_ahead_no_other_waits_for_its_time() -> None:
    ahead = msgspec.structs.replace(ended(1, 1e9), deleted_at=2e9)
    desk = killed(Desk([ahead]))
    desk.ask("delete")
    retention = desk.core.book.retention
    retention.deleted = dict.fromkeys((ahead.id, J))
    desk.wait(QUIET_S + 5)
    assert list(desk.core.book.records) == ["j1"]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.floats(0, 5000), st.none() | st.floats(0, 5000)), min_size=1, max_size=60
    ),
    st.sampled_from([0.0, 10.0, 1000.0, 4000.0]),
)
def test_at_any_time_exactly_those_are_gone_whose_time_is_over(
    jobs: list[tuple[float, float | None]], keep_s: float
) -> None:
    records = [
        msgspec.structs.replace(
            ended(n, at), deleted_at=None if hidden is None else max(at, hidden)
        )
        for n, (at, hidden) in enumerate(jobs, 1)
    ]
    core = Core(records, Moment(0.0, 5000.0), bounds=Bounds(keep_jobs_s=keep_s))
    unix = 5000.0
    for tick in range(2 * len(jobs) // AT_ONCE + 4):
        moment = Moment(float(tick), unix)
        commands = core.handle(Ticked(), moment)
        core.check_invariants()
        assert sum(isinstance(c, WriteRecord) for c in commands) <= AT_ONCE
        while commands:
            removals = [c for c in commands if isinstance(c, RemoveKeys | ForgetJobs)]
            assert sum(len(c.jobs) for c in removals if isinstance(c, ForgetJobs)) <= AT_ONCE
            commands = [d for c in removals for d in core.handle(removed(c), moment)]
    for record in records:
        now = core.book.records.get(record.id)
        over = bool(keep_s) and unix - (record.ended_at or 0) >= keep_s
        if record.deleted_at is not None and unix - record.deleted_at >= QUIET_S:
            assert now is None
        else:
            assert now is not None
            assert (now.deleted_at is not None) == (over or record.deleted_at is not None)
