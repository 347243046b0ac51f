"""The monitor's answers, made from the merged view."""

from __future__ import annotations

import json

import msgspec
import orjson
import pytest
from monitor_messages import (
    AROUND,
    SECRET,
    agent_beat,
    change,
    plain,
    record,
    row,
    rows,
    scheduler_beat,
    shard_beat,
    view,
)

from elps.contracts.ids import JobId
from elps.contracts.job import JobDocument
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Query
from elps.contracts.state import Change, JobState
from elps.monitor import queries
from elps.monitor.core.state import State
from elps.monitor.health import Surroundings, health, staleness


@pytest.fixture
def state() -> State:
    return State(lost_s=5.0, run="r")


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
        page = plain(queries.iterations(state, "j", since, 10))
        seen += [r["iteration"] for r in page["rows"]]
        evaluations += [e["iteration"] for e in page["evaluations"]]
        since, pages = page["next"], pages + 1
        if not page["more"]:
            break
    assert seen == list(range(25))
    assert evaluations == list(range(1, 26))
    assert pages == 3
    page = plain(queries.iterations(state, "j", since, 10))
    assert (page["rows"], page["evaluations"], page["next"]) == ([], [], since), "nothing is new"
    assert since == 25


def test_a_row_tells_each_workers_batch_and_times(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_telemetry(rows("j", row(0, workers=2)), 0.0)
    (found,) = plain(queries.iterations(state, "j", 0, 10))["rows"]
    assert found["workers"][1] == {
        "worker": "j-w2",
        "samples": 16,
        "compute_s": 0.1,
        "pull_s": 0.02,
        "wait_s": 0.03,
        "push_s": 0.04,
        "lease_s": 0.05,
        "cpu_process": None,
        "cpu_host": None,
        "extra": None,
        "memory_bytes": None,
    }
    assert found["duration_s"] == 0.5


def test_an_answer_is_bounded_however_many_workers_a_job_has(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_telemetry(rows("j", *(row(i, workers=1000) for i in range(50))), 0.0)
    page = plain(queries.iterations(state, "j", 0, 10_000))
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
        plain(queries.ask(state, Query(what=w, job="j"), 0.0, AROUND))
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
    found = plain(queries.jobs(state, 3))
    assert [j["id"] for j in found["jobs"]] == ["old-live", "e4", "e5"]
    assert found["total"] == 5
    assert len(found["jobs"][1]["reason"]) <= queries.LIST_REASON_CHARACTERS
    assert len(view(state, "e5")["reason"]) == 10_000


def test_workers_show_their_trainers_with_their_newest_times(state: State) -> None:
    state.take_event(change(record()), 0.0)
    state.take_telemetry(rows("j", row(0)), 0.0)
    state.take_beat(agent_beat(), 0.0)
    (agent,) = plain(queries.workers(state, 1.0))["workers"]
    assert (agent["agent"], agent["slots"], agent["used"], agent["heard_s"]) == ("a1", 2, 1, 1.0)
    timing = agent["trainers"][0]["timing"]
    assert timing is not None
    assert timing["samples"] == 16


def test_the_stack_is_healthy_only_when_every_part_is(state: State) -> None:
    def status(around: Surroundings = AROUND, now_s: float = 0.0) -> dict[str, str]:
        report = plain(health(state, now_s, around))
        return {"all": report["status"]} | {k: p["status"] for k, p in report["parts"].items()}

    assert status()["all"] == "degraded"
    for beat in (shard_beat(1), agent_beat(), scheduler_beat()):
        state.take_beat(beat, 0.0)
    assert set(status().values()) == {"ok"}
    assert status(Surroundings(False, None, "1"))["broker"] == "degraded"
    blocked = Surroundings(True, None, "1", blocked="takes nothing")
    assert plain(health(state, 0.0, blocked))["parts"]["broker"]["detail"] == "takes nothing"
    assert status(blocked)["broker"] == "degraded"
    assert status(Surroundings(True, "does not answer", "1"))["store"] == "degraded"
    assert status(Surroundings(True, None, "2"))["versions"] == "degraded"
    late = status(now_s=6.0)
    assert {late[k] for k in ("all", "scheduler", "shards", "workers")} == {"degraded"}
    state.take_beat(shard_beat(1, shard="s2"), 6.0)
    lost = plain(health(state, 6.0, AROUND))["parts"]["shards"]
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
    blocked = Surroundings(True, None, "1", blocked="takes nothing", started_s=0.0)
    assert staleness(state, 17.0, blocked) == "takes nothing: this is as of 7 s ago"
    assert staleness(state, 14.0, blocked) == "", "what was heard just now is not old"
    state.take_beat(shard_beat(2), 16.0)
    assert staleness(state, 17.0, here).startswith("the scheduler was not heard for 7 s")
    assert plain(queries.jobs(state, 10, "old"))["stale"] == "old"
