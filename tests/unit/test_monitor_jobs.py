"""The merged view of jobs, from whatever comes in, and its bounds."""

from __future__ import annotations

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_messages import (
    AROUND,
    TERM,
    bare_beat,
    change,
    leaders,
    plain,
    record,
    row,
    rows,
    shard_beat,
    view,
)

from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument, Stop
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Query
from elps.contracts.state import Allocation, JobState, Pinned, Progress
from elps.contracts.telemetry import LogLines
from elps.monitor import queries
from elps.monitor.core import jobs as jobs_module
from elps.monitor.core.state import State


@pytest.fixture
def state() -> State:
    return State(lost_s=5.0, run="r")


# --- merging ---


def test_a_job_is_seen_whole_from_record_beat_and_rows(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_beat(shard_beat(1, iteration=40), 0.0)
    state.take_telemetry(rows("j", *(row(i) for i in range(40))), 0.0)
    found = view(state)
    assert found["state"] == "running"
    assert found["task"] == "softmax"
    assert (found["iteration"], found["iterations"], found["loss"]) == (40, 100, 0.25)
    assert found["samples_per_s"] == 64.0
    assert found["time_left_s"] == 30.0
    assert found["shards"] == ["s1", "s2"]
    assert (found["leader"], found["workers"], found["plan"], found["term"]) == (
        "s1",
        ["j-w1"],
        3,
        1,
    )
    assert found["loss_curve"][0] == (0, 1.0)


def test_a_jobs_own_time_limit_bounds_the_time_left(state: State) -> None:
    document = JobDocument(task="softmax", iterations=100, stop=Stop(time_s=11.0))
    state.take_event(change(record(document=document)), 0.0)
    state.take_beat(shard_beat(1, iteration=40), 0.0)
    state.take_telemetry(rows("j", *(row(i) for i in range(40))), 0.0)
    assert view(state)["time_left_s"] == 10.0


@given(st.permutations([0, 1, 2, 3, 4]), st.integers(0, 4))
def test_changes_of_state_in_any_order_and_doubled_end_in_the_newest(
    order: list[int], again: int
) -> None:
    states = [
        JobState.QUEUED,
        JobState.STARTING,
        JobState.RUNNING,
        JobState.WAITING,
        JobState.FINISHED,
    ]
    state = State(lost_s=5.0, run="r")
    for i in [*order, again]:
        state.take_event(change(record(state=states[i], changed_at=10.0 + i)), float(i))
        state.check_invariants()
    assert view(state)["state"] == "finished"


def test_a_record_from_the_store_is_believed_unless_an_event_came_after_it_was_asked_for(
    state: State,
) -> None:
    state.take_event(change(record(state=JobState.RUNNING, changed_at=50.0)), 1.0)
    # the scheduler's clock was set back meanwhile: the store is right
    state.take_records([record(state=JobState.PAUSED, changed_at=20.0)], asked_s=2.0)
    assert view(state)["state"] == "paused"
    state.take_event(change(record(state=JobState.QUEUED, changed_at=60.0)), 4.0)
    state.take_records([record(state=JobState.PAUSED, changed_at=20.0)], asked_s=3.0)
    assert view(state)["state"] == "queued"


def test_progress_never_goes_back_by_an_older_record_or_a_former_leader(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_beat(shard_beat(2, iteration=30, term=Term(2, 5)), 0.0)
    state.take_beat(shard_beat(1, iteration=90, term=TERM, shard="s9"), 0.0)
    state.take_event(change(record(changed_at=11.0, progress=Progress(iteration=10))), 0.0)
    assert view(state)["iteration"] == 30


def test_a_new_term_may_go_back_and_says_what_was_redone(state: State) -> None:
    state.take_event(change(record(progress=Progress(iteration=50))), 0.0)
    back = Progress(iteration=40, redone_iterations=10)
    state.take_event(change(record(changed_at=12.0, terms=2, progress=back)), 0.0)
    assert (view(state)["iteration"], view(state)["redone_iterations"]) == (40, 10)


def test_the_shares_in_force_are_shown_with_their_reason(state: State) -> None:
    state.take_event(change(record()), 1.0)
    beat = shard_beat(1)
    shares = {WorkerId("j-w1"): 24, WorkerId("j-w2"): 8}
    told = msgspec.structs.replace(beat.jobs[0], batches=5, shares=shares, shares_reason="slower")
    state.take_beat(msgspec.structs.replace(beat, jobs=[told]), 3.0)
    view = plain(queries.job(state, "j"))
    assert (view["batches"], view["shares"]) == (5, {"j-w1": 24, "j-w2": 8})
    assert view["shares_reason"] == "slower"


def test_a_leader_that_has_fallen_silent_is_told_of_while_others_are_heard(state: State) -> None:
    state.take_event(change(record(reason="training")), 1.0)
    state.take_beat(shard_beat(1), 3.0)
    state.take_beat(bare_beat(1, shard="s2"), 7.0)
    assert view(state)["reason"] == "training"
    state.take_beat(bare_beat(2, shard="s2"), 9.0)
    silent = "its leader s1 was not heard for 6 s"
    assert view(state)["reason"] == f"{silent}; until then: training"
    away = plain(queries.jobs(state, 10, "", "no answer"))["jobs"][0]["reason"]
    assert away == f"{silent}; what follows waits for the store: no answer; until then: training"
    moved = Allocation(term=Term(2, 5), shards=[ShardId("s2")], workers={})
    state.take_event(change(record(reason="s2 leads now", allocation=moved, terms=2)), 9.0)
    assert view(state)["reason"] == "s2 leads now"


def test_the_size_that_a_job_shall_have_is_shown_beside_what_it_has(state: State) -> None:
    wide = Allocation(
        term=TERM,
        shards=[ShardId("s1"), ShardId("s2")],
        workers={WorkerId("j-w1"): AgentId("a1")},
        size=3,
        targets=[ShardId("s1")],
        width=1,
    )
    held = record(allocation=wide, pinned=Pinned(workers=3))
    resized = JobEvent(job=held.id, what="resized", at=11.0, reason="gives up s2", record=held)
    state.take_event(change(record()), 1.0)
    assert plain(queries.job(state, "j"))["shards_wanted"] == 2
    state.take_event(resized, 2.0)
    beat = shard_beat(1)
    moving = msgspec.structs.replace(
        beat.jobs[0], moving="moving 2 partitions to s1", replicas="being made"
    )
    state.take_beat(msgspec.structs.replace(beat, jobs=[moving]), 3.0)
    view = plain(queries.job(state, "j"))
    assert (view["shards"], view["targets"], view["shards_wanted"]) == (["s1", "s2"], ["s1"], 1)
    assert (view["workers_wanted"], view["workers_pinned"], view["shards_pinned"]) == (3, 3, None)
    assert view["moving"] == "moving 2 partitions to s1"
    assert view["replicas"] == "being made"
    assert (view["batches"], view["shares"]) == (0, {})
    assert view["state"] == "running"


def test_a_former_leaders_workers_and_phase_are_not_shown_under_a_new_term(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_beat(shard_beat(1), 0.0)
    assert view(state)["phase"] == "running"
    moved = Allocation(term=Term(2, 8), shards=[ShardId("s5")], workers={})
    state.take_event(change(record(changed_at=12.0, terms=2, allocation=moved)), 0.0)
    found = view(state)
    assert (found["phase"], found["leader"], found["ready"]) == (None, "s5", [])


def test_what_a_running_job_waits_for_is_told_by_its_leader(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_beat(shard_beat(1), 0.0)
    assert view(state)["reason"] == "all are ready"
    state.take_beat(shard_beat(2, reason="checkpoint of version 9: waiting for the store"), 0.0)
    assert view(state)["reason"] == "checkpoint of version 9: waiting for the store"
    state.take_event(change(record(state=JobState.FINISHED, reason="done", changed_at=12.0)), 0.0)
    assert view(state)["reason"] == "done"


def test_an_evaluation_shows_at_once_and_stays_in_the_history(state: State) -> None:
    state.take_event(change(record()), 0.0)
    evaluated = JobEvent(
        job=JobId("j"), what="evaluated", at=5.0, iteration=20, metrics={"accuracy": 0.9}
    )
    state.take_event(evaluated, 0.0)
    assert (view(state)["metrics"], view(state)["metrics_iteration"]) == ({"accuracy": 0.9}, 20)
    found = plain(queries.iterations(state, "j", 0, 10))
    assert found["evaluations"] == [
        {"iteration": 20, "at": 5.0, "metrics": {"accuracy": 0.9}, "term": 0}
    ]


def test_what_a_leader_tells_after_it_was_succeeded_is_of_no_account(state: State) -> None:
    state.take_event(change(record(changed_at=10.0)), 0.0)
    state.take_event(leaders("checkpointed", 11.0, 1), 0.0)
    second = record(changed_at=20.0, terms=2, state=JobState.STARTING)
    state.take_event(change(second), 0.0)
    state.take_event(leaders("evaluated", 21.0, 1, iteration=30, metrics={"m": 0.1}), 0.0)
    state.take_event(leaders("worker_lost", 19.0, 1), 0.0)
    state.take_event(leaders("worker_joined", 22.0, 2), 0.0)
    told = [(event.what, event.at, event.term) for event in state.feed.since(0)]
    assert told == [
        ("running", 10.0, None),
        ("checkpointed", 11.0, 1),
        ("starting", 20.0, None),
        ("worker_lost", 19.0, 1),
        ("worker_joined", 22.0, 2),
    ]
    assert plain(queries.iterations(state, "j", 0, 10))["evaluations"] == []


def test_a_newer_leader_is_known_by_its_own_words_too(state: State) -> None:
    state.take_event(change(record(changed_at=10.0)), 0.0)
    state.take_event(leaders("worker_joined", 20.0, 2), 0.0)
    state.take_event(leaders("worker_joined", 20.5, 1), 0.0)
    assert [event.at for event in state.feed.since(0)] == [10.0, 20.0]


def test_a_long_reason_is_listed_with_its_two_ends(state: State) -> None:
    long = "iteration 3 failed" + "x" * 3000 + "ValueError: too small"
    state.take_event(change(record(state=JobState.FAILED, reason=long)), 0.0)
    [listed] = plain(queries.jobs(state, 10))["jobs"]
    assert listed["reason"].startswith("iteration 3 failed")
    assert listed["reason"].endswith("ValueError: too small")
    assert len(listed["reason"]) <= queries.LIST_REASON_CHARACTERS
    assert view(state)["reason"] == long


def test_an_id_used_again_begins_a_new_history(state: State) -> None:
    state.take_event(change(record(state=JobState.KILLED)), 0.0)
    state.take_telemetry(rows("j", row(1)), 0.0)
    state.take_telemetry(LogLines(job=JobId("j"), worker=WorkerId("w"), at=0.0, lines=["old"]), 0.0)
    state.take_event(change(record(seq=2, state=JobState.QUEUED, changed_at=20.0)), 0.0)
    assert plain(queries.iterations(state, "j", 0, 10))["rows"] == []
    assert plain(queries.logs(state, "j", 0, 10))["lines"] == []
    assert view(state)["state"] == "queued"
    state.check_invariants()


def test_who_reads_lines_on_after_the_monitor_was_started_anew_misses_none(state: State) -> None:
    state.take_event(change(record()), 0.0)
    since = 500  # of the run before
    for text in ("one", "two"):
        assert queries.logs(state, "j", since, 10).next == (0 if text == "one" else 1)
        lines = LogLines(job=JobId("j"), worker=WorkerId("w"), at=0.0, lines=[text])
        state.take_telemetry(lines, 0.0)
        page = queries.logs(state, "j", since, 10)
        assert [line.text for line in page.lines] == [text]
        since = page.next
    assert queries.logs(state, "j", since, 10).lines == []


# --- jobs without a record ---


def test_rows_of_an_unknown_job_ask_for_its_record_once_and_wait_for_it(state: State) -> None:
    state.take_telemetry(rows("j", row(1)), 0.0)
    assert state.jobs.take_missing() == ["j"]
    assert state.jobs.take_missing() == []
    state.take_record(JobId("j"), record(), 1.0)
    assert len(plain(queries.iterations(state, "j", 0, 10))["rows"]) == 1
    assert state.jobs.take_missing() == []


def test_a_job_that_the_store_lacks_goes_and_is_not_asked_for_again_at_once(state: State) -> None:
    state.take_telemetry(rows("j", row(1)), 0.0)
    state.take_record(JobId("j"), None, 0.1)
    assert len(state.jobs) == 0
    state.take_telemetry(rows("j", row(2)), 0.2)
    assert len(state.jobs) == 0
    state.take_beat(shard_beat(1), 0.3)
    assert len(state.jobs) == 1, "a leader speaks for it"
    state.take_record(JobId("j"), None, 1.0)
    state.take_record(JobId("j"), None, 1.0 + jobs_module.QUIET_S)
    assert len(state.jobs) == 0
    state.take_telemetry(rows("j", row(3)), 1.0 + jobs_module.QUIET_S + jobs_module.ABSENT_S)
    assert state.jobs.take_missing() == ["j"]
    with pytest.raises(queries.UnknownJob):
        queries.job(State(lost_s=1, run="r"), "j")


def test_a_job_that_a_leader_speaks_for_is_shown_although_the_store_is_away(state: State) -> None:
    state.take_beat(shard_beat(1, iteration=5), 0.0)
    state.take_record(JobId("j"), None, 0.1)
    found = view(state)
    assert (found["state"], found["iteration"], found["leader"]) == ("running", 5, "s1")
    assert found["reason"] == "its record is not read yet"


def test_names_of_jobs_that_do_not_exist_fill_nothing(state: State) -> None:
    state.take_event(change(record("real")), 0.0)
    for i in range(jobs_module.MAX_PROVISIONAL * 3):
        state.take_telemetry(rows(f"ghost-{i}", row(1)), float(i))
        state.check_invariants()
    assert state.jobs.get("real") is not None
    assert len(state.jobs) <= jobs_module.MAX_PROVISIONAL + 1


# --- bounds ---


def test_jobs_that_ended_long_ago_are_let_go_with_all_that_is_theirs(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "KEEP_ENDED", 3)
    for i in range(6):
        job = f"j{i}"
        state.take_event(change(record(job, seq=i)), 0.0)
        state.take_telemetry(rows(job, row(1)), 0.0)
        state.take_telemetry(
            LogLines(job=JobId(job), worker=WorkerId("w"), at=0.0, lines=["x"]), 0.0
        )
        ended = record(job, JobState.FINISHED, seq=i, changed_at=20.0 + i, ended_at=20.0 + i)
        state.take_event(change(ended), 0.0)
        state.check_invariants()
    assert [job.id for job in state.jobs.newest(10)] == ["j3", "j4", "j5"]
    assert len(state.logs) == 3
    assert state.jobs.cells == 6


def test_the_index_brings_all_live_jobs_and_the_newest_ended_ones(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "KEEP_ENDED", 2)
    index = [record(f"e{i}", JobState.FINISHED, seq=i, ended_at=float(i)) for i in range(5)] + [
        record("live", seq=0)
    ]
    state.take_records(index, 0.0)
    assert [job.id for job in state.jobs.newest(10)] == ["live", "e3", "e4"]
    for n in (1, 2):
        state.take_records([record("live", seq=0)], n * jobs_module.QUIET_S + 1)
    assert [job.id for job in state.jobs.newest(10)] == ["live"]
    state.check_invariants()


def test_a_store_that_lacks_its_records_for_a_moment_takes_no_history_with_it(state: State) -> None:
    index = [record("j", JobState.FINISHED, ended_at=1.0), record("k", seq=2)]
    state.take_records(index, 0.0)
    state.take_telemetry(rows("j", *(row(i) for i in range(5))), 0.0)
    for now in (100.0, 100.0 + jobs_module.QUIET_S - 1):
        state.take_records([], now)
    state.take_records(index, 120.0)
    assert len(plain(queries.iterations(state, "j", 0, 10))["rows"]) == 5
    state.take_records([], 130.0)
    assert len(state.jobs) == 2, "it begins anew"
    state.take_records([], 130.0 + jobs_module.QUIET_S)
    assert not len(state.jobs)


def test_a_job_whose_record_another_version_has_written_stays_as_it_was(state: State) -> None:
    state.take_records([record("j")], 0.0)
    for n in (10, 20, 30):
        state.take_records([], n * jobs_module.QUIET_S, unread={"j"})
    assert view(state)["state"] == "running"


def test_a_job_in_a_store_that_began_anew_takes_the_place_of_a_former_one(state: State) -> None:
    state.take_event(change(record("j", JobState.FINISHED, seq=9)), 0.0)
    state.take_telemetry(rows("j", row(1)), 0.0)
    state.take_event(change(record("j", JobState.QUEUED, seq=1)), 1.0)
    assert view(state)["state"] == "finished", "an event may be late"
    state.take_records([record("j", JobState.QUEUED, seq=1)], 2.0)
    assert view(state)["state"] == "queued"
    assert plain(queries.iterations(state, "j", 0, 10))["rows"] == []
    state.check_invariants()


def test_over_all_jobs_rows_are_thinned_further_and_ended_jobs_give_first(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "MAX_CELLS", 1_000)
    state.take_event(change(record("ended", JobState.FINISHED, seq=1)), 0.0)
    state.take_event(change(record("live", seq=2)), 0.0)
    for i in range(600):
        state.take_telemetry(rows("ended", row(i, workers=1)), 0.0)
        state.take_telemetry(rows("live", row(i, workers=1)), 0.0)
        assert state.jobs.cells <= 1_000
    state.check_invariants()
    live, ended = state.jobs.get("live"), state.jobs.get("ended")
    assert live is not None
    assert ended is not None
    assert len(live.history.rows) > 4 * len(ended.history.rows)
    assert len(ended.history.rows) >= 8


_ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from(["record", "beat", "rows", "log", "absent", "index"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 6),
        st.sampled_from(list(JobState)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(_ARRIVALS)
def test_whatever_comes_in_whatever_order_bounds_and_answers_hold(
    arrivals: list[tuple[str, str, int, JobState]],
) -> None:
    state = State(lost_s=5.0, run="r")
    for now, (kind, job, n, job_state) in enumerate(arrivals):
        match kind:
            case "record":
                state.take_event(change(record(job, job_state, 10.0 + n, terms=n)), float(now))
            case "beat":
                state.take_beat(shard_beat(now, job=job, iteration=n, term=Term(n, n)), float(now))
            case "rows":
                state.take_telemetry(rows(job, row(n, term=n % 3)), float(now))
            case "log":
                lines = LogLines(job=JobId(job), worker=WorkerId("w"), at=0.0, lines=["x"])
                state.take_telemetry(lines, float(now))
            case "absent":
                state.take_record(JobId(job), None, float(now))
            case _:
                state.take_records([record(job, job_state)], float(now))
        state.check_invariants()
        for what in ("jobs", "workers", "shards", "health"):
            orjson.dumps(plain(queries.ask(state, Query(what=what), float(now), AROUND)))  # type: ignore[arg-type]
        for found in state.jobs:
            for what in ("job", "iterations", "logs"):
                query = Query(what=what, job=found.id)  # type: ignore[arg-type]
                orjson.dumps(plain(queries.ask(state, query, float(now), AROUND)))
