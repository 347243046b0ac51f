"""The merged view of jobs, and the answers made from it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument, Stop
from elps.contracts.messages import (
    AgentBeat,
    HostedJob,
    IterationRow,
    IterationRows,
    JobEvent,
    LogLines,
    Query,
    SchedulerBeat,
    ShardBeat,
    TrainerStatus,
    WorkerTiming,
)
from elps.contracts.state import Allocation, Change, JobRecord, JobState, Pinned, Progress
from elps.monitor import queries
from elps.monitor.core import jobs as jobs_module
from elps.monitor.core.state import State
from elps.monitor.health import Surroundings, health, staleness

TERM = Term(1, 77)
AROUND = Surroundings(broker=True, store_problem=None, version="1")
SECRET = "very-secret-9f31"


def record(
    job: str = "j", state: JobState = JobState.RUNNING, changed_at: float = 10.0, **fields: Any
) -> JobRecord:
    known: dict[str, Any] = {
        "document": JobDocument(task="softmax", iterations=100),
        "reason": "all are ready",
        "seq": 1,
        "submitted_at": 1.0,
        "started_at": 2.0,
        "terms": 1,
        "secret": SECRET,
        "allocation": Allocation(
            term=TERM,
            shards=[ShardId("s1"), ShardId("s2")],
            workers={WorkerId("j-w1"): AgentId("a1")},
        ),
    } | fields
    return JobRecord(id=JobId(job), state=state, changed_at=changed_at, **known)


def change(found: JobRecord) -> JobEvent:
    return JobEvent(
        job=found.id, what=found.state.value, at=found.changed_at, state=found.state, record=found
    )


def shard_beat(
    seq: int,
    *,
    job: str = "j",
    term: Term = TERM,
    iteration: int = 0,
    phase: Any = "running",
    shard: str = "s1",
    reason: str = "",
) -> ShardBeat:
    hosted = HostedJob(
        job=JobId(job),
        term=term,
        leads=True,
        phase=phase,
        reason=reason,
        plan=3,
        bytes_held=4096,
        ready=[WorkerId(f"{job}-w1")],
        progress=Progress(iteration=iteration, iterations=100, loss=0.25, training_s=1.0),
    )
    return ShardBeat(
        shard=ShardId(shard),
        incarnation="i",
        seq=seq,
        host="h",
        pid=1,
        data_host="127.0.0.1",
        data_port=5,
        slots=4,
        jobs=[hosted],
        version="1",
    )


def agent_beat() -> AgentBeat:
    trainer = TrainerStatus(
        job=JobId("j"), term=TERM, worker=WorkerId("j-w1"), state="running", pid=9
    )
    return AgentBeat(
        agent=AgentId("a1"),
        incarnation="i",
        seq=1,
        host="h",
        pid=1,
        slots=2,
        trainers=[trainer],
        version="1",
    )


def scheduler_beat(version: str = "1") -> SchedulerBeat:
    return SchedulerBeat(incarnation="i", seq=1, host="h", pid=1, jobs={}, version=version)


def row(iteration: int, workers: int = 1, duration_s: float = 0.5, term: int = 1) -> IterationRow:
    timings = [
        WorkerTiming(
            worker=WorkerId(f"j-w{i + 1}"),
            samples=16,
            compute_s=0.1,
            pull_s=0.02,
            wait_s=0.03,
            push_s=0.04,
            lease_s=0.05,
        )
        for i in range(workers)
    ]
    return IterationRow(
        iteration=iteration,
        passes=0.5,
        samples=32,
        skipped=0,
        loss=1.0 / (iteration + 1),
        duration_s=duration_s,
        at=float(iteration),
        term=term,
        plan=1,
        lr=0.1,
        workers=timings,
    )


def rows(job: str, *several: IterationRow) -> IterationRows:
    return IterationRows(job=JobId(job), rows=list(several))


@pytest.fixture
def state() -> State:
    return State(lost_s=5.0, run="r")


def view(state: State, job: str = "j") -> Any:
    return queries.ask(state, Query(what="job", job=job), 0.0, AROUND)


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
    assert queries.job(state, "j")["shards_wanted"] == 2
    state.take_event(resized, 2.0)
    beat = shard_beat(1)
    moving = msgspec.structs.replace(beat.jobs[0], moving="moving 2 partitions to s1")
    state.take_beat(msgspec.structs.replace(beat, jobs=[moving]), 3.0)
    view = queries.job(state, "j")
    assert (view["shards"], view["targets"], view["shards_wanted"]) == (["s1", "s2"], ["s1"], 1)
    assert (view["workers_wanted"], view["workers_pinned"], view["shards_pinned"]) == (3, 3, None)
    assert view["moving"] == "moving 2 partitions to s1"
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
    found = queries.iterations(state, "j", 0, 10)
    assert found["evaluations"] == [{"iteration": 20, "at": 5.0, "metrics": {"accuracy": 0.9}}]


def test_an_id_used_again_begins_a_new_history(state: State) -> None:
    state.take_event(change(record(state=JobState.KILLED)), 0.0)
    state.take_telemetry(rows("j", row(1)), 0.0)
    state.take_telemetry(LogLines(job=JobId("j"), worker=WorkerId("w"), at=0.0, lines=["old"]), 0.0)
    state.take_event(change(record(seq=2, state=JobState.QUEUED, changed_at=20.0)), 0.0)
    assert queries.iterations(state, "j", 0, 10)["rows"] == []
    assert queries.logs(state, "j", 0, 10)["lines"] == []
    assert view(state)["state"] == "queued"
    state.check_invariants()


# --- jobs without a record ---


def test_rows_of_an_unknown_job_ask_for_its_record_once_and_wait_for_it(state: State) -> None:
    state.take_telemetry(rows("j", row(1)), 0.0)
    assert state.jobs.take_missing() == ["j"]
    assert state.jobs.take_missing() == []
    state.take_record(JobId("j"), record(), 1.0)
    assert len(queries.iterations(state, "j", 0, 10)["rows"]) == 1
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
    state.take_records([record("live", seq=0)], jobs_module.QUIET_S + 1)
    assert [job.id for job in state.jobs.newest(10)] == ["live"]
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
            orjson.dumps(queries.ask(state, Query(what=what), float(now), AROUND))  # type: ignore[arg-type]
        for found in state.jobs:
            for what in ("job", "iterations", "logs"):
                query = Query(what=what, job=found.id)  # type: ignore[arg-type]
                orjson.dumps(queries.ask(state, query, float(now), AROUND))


# --- answers ---


def test_iterations_are_read_page_by_page_with_nothing_left_out_or_given_twice(
    state: State,
) -> None:
    state.take_event(change(record()), 0.0)
    state.take_telemetry(rows("j", *(row(i) for i in range(25))), 0.0)
    for i in range(1, 26):
        evaluated = JobEvent(
            job=JobId("j"), what="evaluated", at=5.0, iteration=i, metrics={"m": 1.0}
        )
        state.take_event(evaluated, 0.0)
    seen, evaluations, since, pages = [], [], 0, 0
    while True:
        page = queries.iterations(state, "j", since, 10)
        seen += [r["iteration"] for r in page["rows"]]
        evaluations += [e["iteration"] for e in page["evaluations"]]
        since, pages = page["next"], pages + 1
        if not page["more"]:
            break
    assert seen == list(range(25))
    assert evaluations == list(range(1, 26))
    assert pages == 3
    assert queries.iterations(state, "j", since, 10)["rows"] == []
    assert queries.iterations(state, "j", since, 10)["next"] == 25


def test_a_row_tells_each_workers_batch_and_times(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_telemetry(rows("j", row(0, workers=2)), 0.0)
    (found,) = queries.iterations(state, "j", 0, 10)["rows"]
    assert found["workers"][1] == {
        "worker": "j-w2",
        "samples": 16,
        "compute_s": 0.1,
        "pull_s": 0.02,
        "wait_s": 0.03,
        "push_s": 0.04,
        "lease_s": 0.05,
    }
    assert found["duration_s"] == 0.5


def test_an_answer_is_bounded_however_many_workers_a_job_has(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_telemetry(rows("j", *(row(i, workers=1000) for i in range(50))), 0.0)
    page = queries.iterations(state, "j", 0, 10_000)
    assert page["more"]
    assert len(orjson.dumps(page)) < 4 * 1024 * 1024
    assert page["next"] == len(page["rows"])


def test_no_answer_shows_a_secret(state: State) -> None:
    args = {"hidden": 5, "db": {"password": "hunter2", "api_token": "hunter2"}}
    state.take_event(
        change(record(document=JobDocument(task="t", iterations=1, task_args=args))), 0.0
    )
    state.take_beat(shard_beat(1), 0.0)
    asked = [
        queries.ask(state, Query(what=w, job="j"), 0.0, AROUND)
        for w in ("jobs", "job", "logs", "shards")
    ]  # type: ignore[arg-type]
    told = json.dumps(asked)
    told += json.dumps(
        [orjson.loads(orjson.dumps(e, default=str)) for e in map(str, state.feed.since(0))]
    )
    assert SECRET not in told
    assert "hunter2" not in told
    assert view(state)["document"]["task_args"] == {
        "hidden": 5,
        "db": {"password": "(hidden)", "api_token": "(hidden)"},
    }


def test_the_list_leaves_out_early_ended_jobs_first(state: State) -> None:
    state.take_event(change(record("old-live", seq=1)), 0.0)
    for i in range(2, 6):
        ended = record(f"e{i}", JobState.FAILED, seq=i, ended_at=float(i), reason="x" * 10_000)
        state.take_event(change(ended), 0.0)
    found = queries.jobs(state, 3)
    assert [j["id"] for j in found["jobs"]] == ["old-live", "e4", "e5"]
    assert found["total"] == 5
    assert len(found["jobs"][1]["reason"]) == 500
    assert len(view(state, "e5")["reason"]) == 10_000


def test_workers_show_their_trainers_with_their_newest_times(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_telemetry(rows("j", row(0)), 0.0)
    state.take_beat(agent_beat(), 0.0)
    (agent,) = queries.workers(state, 1.0)["workers"]
    assert (agent["agent"], agent["slots"], agent["used"], agent["heard_s"]) == ("a1", 2, 1, 1.0)
    timing = agent["trainers"][0]["timing"]
    assert timing is not None
    assert timing["samples"] == 16


def test_the_stack_is_healthy_only_when_every_part_is(state: State) -> None:
    def status(around: Surroundings = AROUND, now_s: float = 0.0) -> dict[str, str]:
        report = health(state, now_s, around)
        return {"all": report["status"]} | {k: p["status"] for k, p in report["parts"].items()}

    assert status()["all"] == "degraded"
    for beat in (shard_beat(1), agent_beat(), scheduler_beat()):
        state.take_beat(beat, 0.0)
    assert set(status().values()) == {"ok"}
    assert status(Surroundings(False, None, "1"))["broker"] == "degraded"
    assert status(Surroundings(True, "does not answer", "1"))["store"] == "degraded"
    assert status(Surroundings(True, None, "2"))["versions"] == "degraded"
    late = status(now_s=6.0)
    assert {late[k] for k in ("all", "scheduler", "shards", "workers")} == {"degraded"}
    state.take_beat(shard_beat(1, shard="s2"), 6.0)
    lost = health(state, 6.0, AROUND)["parts"]["shards"]
    assert (lost["status"], lost["count"], lost["detail"]) == ("degraded", 1, "s1 silent for 6 s")


def test_a_jobs_life_is_told_from_its_record_alone(state: State) -> None:
    life = [
        Change(at=1.0, state=JobState.QUEUED, reason="submitted"),
        Change(at=10.0, state=JobState.RUNNING, reason="all are ready"),
    ]
    state.take_record(JobId("j"), record(changes=life), 0.0)
    assert view(state)["changes"] == [
        {"at": 1.0, "state": "queued", "reason": "submitted"},
        {"at": 10.0, "state": "running", "reason": "all are ready"},
    ]


def test_a_loss_that_is_not_finite_hides_the_last_one_that_was(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_beat(shard_beat(1, iteration=2), 0.0)
    state.take_telemetry(rows("j", row(0), row(1)), 0.0)
    assert view(state)["loss"] == 0.25
    broken = msgspec.structs.replace(row(2), loss=None)
    state.take_telemetry(rows("j", broken), 0.0)
    assert view(state)["loss"] is None
    nobody_counted = msgspec.structs.replace(row(3), loss=None, samples=0)
    state.take_telemetry(rows("j", nobody_counted), 0.0)
    assert view(state)["loss"] == 0.25


def test_answers_say_when_they_are_old_and_how_old(state: State) -> None:
    here = Surroundings(True, None, "1", started_s=0.0)
    away = Surroundings(False, None, "1", started_s=0.0)
    assert staleness(state, 4.0, here) == ""
    for beat in (shard_beat(1), scheduler_beat()):
        state.take_beat(beat, 10.0)
    assert staleness(state, 14.0, here) == ""
    assert staleness(state, 13.0, away) == (
        "the monitor does not reach the broker: this is as of 3 s ago"
    )
    assert staleness(state, 17.0, here).startswith("no member of the stack was heard for 7 s")
    state.take_beat(shard_beat(2), 16.0)
    assert staleness(state, 17.0, here).startswith("the scheduler was not heard for 7 s")
    assert queries.jobs(state, 10, "old")["stale"] == "old"
