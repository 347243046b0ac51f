"""What a user may ask of a job's size, what he is told, and what becomes of it when the job starts."""

from __future__ import annotations

from typing import Any

from scheduler_desk import Desk, reborn

from elps.contracts.epoch import Epoch
from elps.contracts.messages import DirectJob, HostJob, StartTrainer
from elps.contracts.requests import Reply, ScaleCommand
from elps.contracts.state import JobState, Pinned
from elps.scheduler.core.events import PublishEvent, UserAsked

SIZES: dict[str, Any] = {"workers": {"min": 1, "max": 4}, "shards": {"min": 1, "max": 3}}


def scale(desk: Desk, **body: Any) -> Reply:
    return desk.answered(UserAsked(desk.request(), "scale", ScaleCommand(job="j", **body)))


def told(desk: Desk, what: str) -> list[str]:
    return [
        c.event.reason for c in desk.out if isinstance(c, PublishEvent) and c.event.what == what
    ]


def test_a_size_outside_the_bounds_of_the_document_is_refused_with_the_bounds() -> None:
    desk = Desk()
    desk.submit(workers={"min": 2, "max": 4}, shards={"min": 2, "max": 2})
    reply = scale(desk, workers=5, shards=1)
    assert not reply.ok
    assert reply.problems == [
        "workers: 5 is not within 2 to 4, workers.min to workers.max of the job's document",
        "shards: 1 is not within 2, shards.min to shards.max of the job's document",
    ]
    assert not scale(desk, workers=0).ok
    assert not scale(desk, workers=-(2**63)).ok
    assert desk.record().pinned == Pinned()


def test_a_wish_that_says_nothing_or_two_things_is_refused() -> None:
    desk = Desk()
    desk.submit(**SIZES)
    assert "nothing is asked for" in scale(desk).reason
    assert "give no workers" in scale(desk, workers=2, auto=True).reason


def test_a_job_that_has_ended_is_not_scaled() -> None:
    desk = Desk()
    desk.submit(**SIZES)
    desk.ask("kill")
    reply = scale(desk, workers=2)
    assert (reply.ok, reply.reason) == (False, "the job has already been killed")


def test_what_is_left_out_stays_as_it_was_pinned_and_auto_frees_all() -> None:
    desk = Desk()
    desk.submit(**SIZES)
    scale(desk, workers=3)
    assert desk.record().pinned == Pinned(workers=3)
    scale(desk, shards=2)
    assert desk.record().pinned == Pinned(workers=3, shards=2)
    assert scale(desk, auto=True).ok
    assert desk.record().pinned == Pinned()


def test_a_repeat_is_no_change() -> None:
    desk = Desk()
    desk.submit(**SIZES)
    assert scale(desk, workers=3, reason="more of it").reason.startswith("pinned at 3 workers; ")
    assert told(desk, "scaled") == ["pinned at 3 workers: more of it"]
    desk.out.clear()
    assert scale(desk, workers=3).reason.startswith("already pinned at 3 workers; ")
    assert desk.events() == []


def test_a_queued_job_starts_with_the_size_it_is_pinned_at() -> None:
    desk = Desk()
    desk.submit(**SIZES)
    reply = scale(desk, workers=2, shards=2)
    assert "the job is queued and starts with it" in reply.reason
    for n in range(3):
        desk.shard(f"s{n}")
    desk.agent(slots=4)
    assert (len(desk.workers()), len(desk.places())) == (2, 2)


def test_a_place_that_was_kept_for_another_size_is_given_up() -> None:
    desk = Desk()
    desk.granting = False
    desk.shard()
    desk.agent(slots=4)
    desk.submit(**SIZES)
    desk.granting = True
    scale(desk, workers=2)
    assert len(desk.workers()) == 2


def test_a_pinned_job_starts_with_what_is_free_and_grows() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit(**SIZES)
    desk.ask("pause")
    scale(desk, workers=3, shards=2)
    desk.ask("resume")
    desk.agent(trainers=[])
    assert (len(desk.workers()), len(desk.places())) == (1, 1)
    desk.agent("a2", slots=4)
    assert len(desk.workers()) == 3
    desk.shard("s2")
    assert desk.places() == ["s1"], "its leader was not heard yet"
    desk.shard("s1", jobs=[desk.hosts(phase="loading", holders=["s1"])])
    assert desk.places() == ["s1", "s2"]


def test_a_job_that_is_placed_anew_has_the_size_it_was_pinned_at() -> None:
    desk = Desk()
    for n in range(3):
        desk.shard(f"s{n}")
    desk.agent(slots=4)
    desk.submit(**SIZES)
    scale(desk, workers=2, shards=2)
    leader = desk.places()[0]
    desk.shard(leader, incarnation="2", jobs=[])
    assert desk.state() in (JobState.QUEUED, JobState.STARTING)
    desk.agent(trainers=[])
    for n in range(3):
        desk.shard(f"s{n}", jobs=[])
    desk.agent()
    assert (len(desk.workers()), len(desk.places())) == (2, 2)


def running(shards: int = 1, workers: int = 1, pool: int = 3, **document: Any) -> Desk:
    """A job that trains on `shards` of `pool` shards with `workers` workers on one agent, which has four slots."""
    desk = Desk()
    desk.submit(**SIZES, **document)
    scale(desk, workers=workers, shards=shards)
    for n in range(shards):
        desk.shard(f"s{n}")
    desk.agent(slots=4)
    for n in range(shards, pool):
        desk.shard(f"s{n}")
    beats(desk)
    assert desk.state() is JobState.RUNNING
    assert (len(desk.workers()), len(desk.places())) == (workers, shards)
    desk.out.clear()
    desk.sent.clear()
    return desk


def beats(desk: Desk, **lead: Any) -> None:
    """Everyone does as told and says so, the leader with what the test wants."""
    places, workers = desk.places(), list(desk.workers())
    desk.agent(trainers=[desk.trainer(worker) for worker in workers])
    for shard in [s for s in desk.shards if s not in places]:
        desk.shard(shard, jobs=[])
    for shard in places[1:]:
        desk.shard(shard, jobs=[desk.hosts(leads=False)])
    allocation = desk.record().allocation
    assert allocation is not None
    usual = {
        "phase": "running",
        "ready": workers,
        "holders": places,
        "obeys": allocation.plan,
        "opened": Epoch(allocation.term, 1),
    }
    desk.shard(places[0], jobs=[desk.hosts(**{**usual, **lead})])


def test_a_running_job_gets_workers_at_once_and_is_told_how_many_are_free() -> None:
    desk = running()
    reply = scale(desk, workers=3)
    assert reply.reason == (
        "pinned at 3 workers and 1 shard; it has 1 worker and 1 shard, "
        "2 more workers will join as soon as they are ready"
    )
    assert [m.worker for _, m in desk.take_sent(StartTrainer)] == ["j-w2", "j-w3"]
    assert told(desk, "resized") == [
        "gets j-w2 on a1, j-w3 on a1; 2 of 2 missing workers: earliest running job that lacks any"
    ]
    assert desk.state() is JobState.RUNNING


def test_growth_beyond_what_is_free_waits_for_slots_and_says_so() -> None:
    desk = running(pool=2)
    desk.agent("a1", slots=2)
    reply = scale(desk, workers=4, shards=3)
    assert "1 more worker can join now and 2 as soon as slots are free" in reply.reason
    assert "1 more shard can join now and 1 as soon as slots are free" in reply.reason
    assert (len(desk.workers()), len(desk.places())) == (2, 2)
    desk.agent("a2", slots=4)
    desk.shard("s9")
    assert (len(desk.workers()), len(desk.places())) == (4, 3)


def test_surplus_workers_on_leaving_agents_go_first_then_those_not_ready_then_the_newest() -> None:
    desk = running(workers=4)
    w1, w2, w3, w4 = desk.workers()
    beats(desk, ready=[w1, w3, w4])
    scale(desk, workers=3)
    assert w2 not in desk.workers()
    scale(desk, workers=2)
    assert list(desk.workers()) == [w1, w3]
    assert desk.record().allocation is not None


def test_a_worker_that_leaves_is_known_to_the_leader_until_its_agent_shows_that_it_is_gone() -> (
    None
):
    desk = running(workers=2)
    first, second = desk.workers()
    both = [desk.trainer(first), desk.trainer(second)]
    scale(desk, workers=1)
    desk.agent(trainers=both)
    desk.shard("s0", jobs=[desk.hosts(phase="running", ready=[first, second], holders=["s0"])])
    desk.wait(2)
    assert desk.take_sent(DirectJob) == [], "there is nothing to be done about it yet"
    desk.agent(trainers=[desk.trainer(first)])
    (_, direct), *_ = desk.take_sent(DirectJob)
    assert (direct.workers, direct.exits) == ([first], {})
    beats(desk)
    desk.wait(3)
    assert desk.take_sent(DirectJob) == []


def test_auto_leaves_a_running_job_as_it_is() -> None:
    desk = running(workers=2, shards=2)
    reply = scale(desk, auto=True)
    assert reply.reason.startswith("not pinned: the policy decides; first come, first served")
    assert reply.reason.endswith("it keeps what it has until it starts anew")
    beats(desk)
    assert (len(desk.workers()), len(desk.places())) == (2, 2)


def test_a_pause_comes_before_a_change_which_is_made_at_the_next_start() -> None:
    desk = running()
    desk.ask("pause")
    assert "about to pause" in scale(desk, workers=3, shards=2).reason
    assert (len(desk.workers()), len(desk.places())) == (1, 1)
    beats(desk, phase="paused")
    assert desk.state() is JobState.PAUSED
    assert "once it is resumed" in scale(desk, workers=4).reason
    for n in range(3):
        desk.shard(f"s{n}", jobs=[])
    desk.agent(trainers=[])
    desk.ask("resume")
    assert (len(desk.workers()), len(desk.places())) == (4, 2)


def test_a_change_survives_a_restart_of_the_scheduler() -> None:
    desk = running()
    scale(desk, shards=2)
    assert desk.take_sent(HostJob)
    after = reborn(desk)
    after.shards, after.agents, after.seq = desk.shards, desk.agents, desk.seq
    after.wait(1)
    assert [member for member, _ in after.take_sent(HostJob)] == ["s1"]
    beats(after, holders=["s0"], obeys=0)
    after.wait(1)
    (_, direct), *_ = after.take_sent(DirectJob)
    assert [address.shard for address in direct.shards] == ["s0", "s1"]
