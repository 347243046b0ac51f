"""The accounts by which a crowd of jobs is watched notice a slot that is given twice."""

from __future__ import annotations

from realstack.crowding import Accounts

from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import AgentBeat, JobEvent, TrainerStatus
from elps.contracts.state import Allocation, JobRecord, JobState


def event(job: str, state: JobState, workers: dict[str, str], shard: str = "s1") -> JobEvent:
    allocation = Allocation(
        term=Term(1, 1),
        shards=[ShardId(shard)],
        workers={WorkerId(w): AgentId(a) for w, a in workers.items()},
        size=len(workers),
    )
    record = JobRecord(
        id=JobId(job), document=JobDocument(task="linear", iterations=1), state=state, reason="",
        seq=1, submitted_at=0.0, changed_at=0.0,
        allocation=None if state.ended else allocation,
    )  # fmt: skip
    return JobEvent(job=JobId(job), what=state.value, at=0.0, record=record)


def test_a_slot_that_is_given_again_before_it_is_given_back_is_noticed() -> None:
    accounts = Accounts(worker_slots=1, shard_slots=2)
    accounts.told(event("a", JobState.STARTING, {"w1": "a1", "w2": "a2"}))
    accounts.told(event("b", JobState.STARTING, {"w1": "a3"}))
    assert (accounts.problems, accounts.most) == ([], 3)
    accounts.told(event("a", JobState.FINISHED, {}))
    accounts.told(event("c", JobState.STARTING, {"w1": "a1"}))
    assert accounts.problems == []
    assert list(accounts.ended) == ["a"]
    accounts.told(event("d", JobState.STARTING, {"w1": "a3"}))
    assert accounts.problems == [
        "a3 has 2 of 1 slots given, after d was starting",
        "s1 has 3 of 2 slots given, after d was starting",
    ]


def test_an_agent_with_more_trainers_than_slots_is_noticed() -> None:
    def beat(*states: str) -> AgentBeat:
        trainers = [
            TrainerStatus(job=JobId("j"), term=Term(1, 1), worker=WorkerId(f"w{n}"), state=state)  # type: ignore[arg-type]
            for n, state in enumerate(states)
        ]
        return AgentBeat(
            agent=AgentId("a1"), incarnation="1", seq=1, host="h", pid=1, slots=1, trainers=trainers,
            version="1",
        )  # fmt: skip

    accounts = Accounts(worker_slots=1, shard_slots=2)
    accounts.shown(beat("exited", "running"))
    assert accounts.problems == []
    accounts.shown(beat("running", "starting"))
    assert accounts.problems == ["a1 runs ['j w0', 'j w1'] in 1 slots"]
