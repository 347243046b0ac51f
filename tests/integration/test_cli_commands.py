"""The commands on a scripted stack: a scheduler and a monitor played over a bus in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors import safe_open

from elps.cli.main import main
from elps.contracts import topology
from elps.contracts.codec import encode, loads, parse_job
from elps.contracts.errors import RetryLater, SetupError
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import (
    Answer,
    IterationRow,
    IterationRows,
    JobEvent,
    LogLines,
    Query,
    Reply,
    WorkerTiming,
)
from elps.contracts.state import JobRecord, JobState
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Bus, Delivery, Queue
from elps.storage.checkpoints import Manifest, PartitionEntry, publish, write_partition
from elps.storage.memory import MemoryStore
from elps.storage.port import Store

JOB = JobId("job-1")
TOML = 'task = "mlp"\npasses = 2\n[data]\nsource = "digits"\n'


def view(state: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "id": JOB,
        "state": state,
        "reason": "2 workers on 1 shard",
        "task": "mlp",
        "iteration": 3,
        "iterations": 10,
        "loss": 0.25,
        "metrics": {"accuracy": 0.9},
        "metrics_iteration": 2,
        "samples_per_s": 12_345.0,
        "time_left_s": 12.0,
        "workers": ["job-1-w1", "job-1-w2"],
        "ready": ["job-1-w1"],
        "shards": ["shard-1"],
        "submitted_at": 1_700_000_000.0,
        "changed_at": 1_700_000_001.0,
        "document": msgspec.to_builtins(parse_job({"task": "mlp", "passes": 2})),
        "added_by_a_newer_monitor": 1,
        **more,
    }


def row(t: int) -> IterationRow:
    timing = WorkerTiming(
        worker=WorkerId("job-1-w1"),
        samples=32,
        compute_s=0.05,
        pull_s=0.001,
        wait_s=0.002,
        push_s=0.003,
        lease_s=0.0001,
    )
    return IterationRow(
        iteration=t,
        passes=t / 10,
        samples=32,
        skipped=0,
        loss=1 / (t + 1),
        duration_s=0.1,
        at=1_700_000_000 + t * 0.1,
        term=1,
        plan=1,
        lr=0.1,
        workers=[timing],
    )


@dataclass
class Script:
    """The stack as one test wants it. It is also the monitor over HTTP."""

    reply: Reply = field(default_factory=lambda: Reply(ok=True, job=JOB, state=JobState.QUEUED))
    answers: list[dict[str, Any]] = field(default_factory=list)
    """To ``job``, one after the other; the last is given again."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    scheduler: bool = True
    happens: list[tuple[str, str, Any]] = field(default_factory=list)
    """Exchange, routing key and message to publish once ``job`` was asked for the first time."""
    got: list[tuple[str, Any]] = field(default_factory=list)
    records: dict[str, bytes] = field(default_factory=dict)
    prepare: Callable[[Store], Any] | None = None

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        broker = MemoryBroker()
        stack, user = MemoryBus(broker, "stack"), MemoryBus(broker, "user")

        async def job_message(delivery: Delivery) -> None:
            self.got.append((delivery.routing_key, loads(delivery.body)))
            await stack.respond(delivery, encode(self.reply))

        async def query(delivery: Delivery) -> None:
            asked = msgspec.json.decode(delivery.body, type=Query)
            try:
                result = self.ask(asked)
            except LookupError as error:
                await stack.respond(delivery, encode({"ok": False, "reason": str(error)}))
                return
            body = msgspec.json.encode(
                Answer(ok=True, result=msgspec.Raw(msgspec.json.encode(result)))
            )
            await stack.respond(delivery, body)
            if asked.what == "job":
                happens, self.happens = self.happens, []
                for exchange, key, message in happens:
                    await stack.publish(exchange, key, encode(message))

        if self.scheduler:
            queue = Queue(topology.SCHEDULER_JOBS_QUEUE, ((topology.JOBS, "#"),), durable=True)
            await stack.subscribe(queue, job_message)
        await stack.subscribe(Queue(topology.QUERY, ((topology.QUERY, "#"),)), query)
        yield user
        await user.close()
        await stack.close()

    def ask(self, query: Query) -> Any:
        if query.what == "job":
            if not self.answers:
                raise LookupError(f"there is no job {query.job!r}")
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        assert query.what == "logs"
        return self.logs(JOB, query.since, query.limit)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        store = MemoryStore()
        if self.prepare is not None:
            await self.prepare(store)
        yield store

    def monitor(self) -> Script:
        return self

    def jobs(self) -> Any:
        return {"jobs": self.answers, "total": len(self.answers)}

    def job(self, job: str) -> Any:
        return self.ask(Query(what="job", job=job))

    def iterations(self, job: str, since: int = 0, limit: int = 1000) -> Any:
        return {"rows": [msgspec.to_builtins(row(t)) for t in range(3)]}

    def logs(self, job: str, since: int = 0, limit: int = 1000) -> Any:
        return {"lines": [line for line in self.lines if line["n"] >= since][:limit]}

    def recent_events(self, job: str) -> list[Any]:
        event = JobEvent(job=JOB, what="evaluated", at=1_700_000_000.0, metrics={"accuracy": 0.5})
        return [msgspec.to_builtins(event)]


def event(state: JobState, at: float, reason: str = "") -> tuple[str, str, JobEvent]:
    message = JobEvent(job=JOB, what=state.value, at=at, state=state, reason=reason)
    return topology.EVENTS, topology.event_key(JOB, state.value), message


def rows(*numbers: int) -> tuple[str, str, IterationRows]:
    message = IterationRows(job=JOB, rows=[row(t) for t in numbers])
    return topology.TELEMETRY, topology.telemetry_key(JOB), message


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    (tmp_path / "job.toml").write_text(TOML)
    return str(tmp_path / "job.toml")


Captured = pytest.CaptureFixture[str]


def test_submit_prints_id_and_state_and_sends_the_file_with_its_settings(
    job_file: str, capsys: Captured
) -> None:
    script = Script()
    code = main(
        ["submit", job_file, "--set", "optimizer.lr=0.5", "--set", "group=search"], reach=script
    )
    assert code == 0
    assert capsys.readouterr().out == "job-1  queued\n"
    [(key, document)] = script.got
    assert key == "submit"
    assert document == {
        "task": "mlp",
        "passes": 2,
        "data": {"source": "digits"},
        "optimizer": {"lr": 0.5},
        "group": "search",
    }


def test_submit_lists_every_problem_of_a_file_without_asking_the_stack(
    tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "bad.toml").write_text('task = "mlp"\nsed = 1\n[batch]\nglobal = 0\n')
    script = Script()
    assert main(["submit", str(tmp_path / "bad.toml")], reach=script) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "bad.toml: 3 problems" in told.err
    assert "sed: unknown; did you mean seed?" in told.err
    assert "batch.global" in told.err
    assert script.got == []


def test_submit_shows_what_the_scheduler_refuses(job_file: str, capsys: Captured) -> None:
    script = Script(Reply(ok=False, problems=["workers: min 9 is above the pool's 2", "id: taken"]))
    assert main(["submit", job_file], reach=script) == 1
    told = capsys.readouterr().err
    assert "refused: 2 problems" in told
    assert "• workers: min 9 is above the pool's 2" in told
    assert main(["submit", job_file, "--json"], reach=script) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == script.reply.problems


@pytest.mark.parametrize("arguments", [["submit"], ["submit", "x.toml", "--colour"], ["fly"], []])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: Captured) -> None:
    assert main(arguments, reach=Script()) == 2


def test_a_setting_without_a_value_is_wrong_usage(job_file: str, capsys: Captured) -> None:
    assert main(["submit", job_file, "--set", "seed"], reach=Script()) == 2
    assert "expected key.path=value" in capsys.readouterr().err


def test_a_scheduler_that_is_not_there_ends_with_3_and_says_what_to_do(
    job_file: str, capsys: Captured
) -> None:
    assert main(["submit", job_file], reach=Script(scheduler=False)) == 3
    told = capsys.readouterr().err
    assert told == "error: the scheduler is not there: is it running? try `make status`\n"


class NoStack(Script):
    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        raise SetupError("no stack was found: start one with `make up`")
        yield

    def monitor(self) -> Script:
        raise RetryLater("the monitor at http://127.0.0.1:1 did not answer")


@pytest.mark.parametrize("command", [["kill", "job-1"], ["watch", "job-1"], ["jobs"]])
def test_no_stack_ends_with_3(command: list[str], capsys: Captured) -> None:
    assert main(command, reach=NoStack()) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("what", ["kill", "pause", "resume"])
def test_commands_carry_their_reason(what: str, capsys: Captured) -> None:
    script = Script(Reply(ok=True, job=JOB, state=JobState.PAUSED, reason="at iteration 7"))
    assert main([what, "job-1", "--reason", "too slow"], reach=script) == 0
    assert script.got == [(what, {"job": "job-1", "reason": "too slow"})]
    assert capsys.readouterr().out == "job-1  paused  at iteration 7\n"


def test_scale_says_what_is_wanted_and_prints_what_will_happen(capsys: Captured) -> None:
    script = Script(Reply(ok=True, job=JOB, state=JobState.RUNNING, reason="pinned at 3 workers"))
    assert main(["scale", "job-1", "--workers", "3", "-r", "more"], reach=script) == 0
    assert main(["scale", "job-1", "-w", "3", "-s", "2", "--json"], reach=script) == 0
    assert main(["scale", "job-1", "--auto"], reach=script) == 0
    bodies = [body for what, body in script.got if what == "scale"]
    asked = [{k: body.get(k) for k in ("workers", "shards", "auto", "reason")} for body in bodies]
    assert asked == [
        {"workers": 3, "shards": None, "auto": False, "reason": "more"},
        {"workers": 3, "shards": 2, "auto": False, "reason": ""},
        {"workers": None, "shards": None, "auto": True, "reason": ""},
    ]
    assert "job-1  running  pinned at 3 workers\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [[], ["--auto", "--workers", "2"], ["--workers", "0"], ["--shards", "-1"], ["--workers", "x"]],
)
def test_a_scale_that_asks_for_nothing_that_can_be_is_wrong_usage(options: list[str]) -> None:
    script = Script()
    assert main(["scale", "job-1", *options], reach=script) == 2
    assert script.got == []


def test_show_tells_the_size_the_pin_and_what_is_moving(capsys: Captured) -> None:
    wide = {
        "shards": ["shard-1", "shard-2"], "targets": ["shard-1"], "workers_wanted": 3,
        "shards_wanted": 1, "workers_pinned": 3, "moving": "moving 4 partitions to shard-1",
    }  # fmt: skip
    assert main(["show", "job-1"], reach=Script(answers=[view(**wide)])) == 0
    told = capsys.readouterr().out
    assert "1/3 workers (pinned), 1 shard" in told
    assert "moving 4 partitions to shard-1" in told
    assert "on the way out: shard-2" in told
    both = {**wide, "shards_pinned": 2, "shards_wanted": 2}
    main(["show", "job-1"], reach=Script(answers=[view(**both)]))
    assert "1/3 workers, 1/2 shards (pinned)" in capsys.readouterr().out
    resting = view("paused", shards=[], workers=[], workers_pinned=3)
    main(["show", "job-1"], reach=Script(answers=[resting]))
    assert "pinned at 3 workers" in capsys.readouterr().out


def test_a_refused_command_ends_with_1(capsys: Captured) -> None:
    script = Script(Reply(ok=False, job=JOB, reason="job-1 is finished"))
    assert main(["kill", "job-1"], reach=script) == 1
    assert capsys.readouterr().err == "error: refused: job-1 is finished\n"


@pytest.mark.parametrize("job", ["a/b", "a.#", "*", "", "x" * 300])
def test_no_command_sends_a_name_that_is_none(job: str, capsys: Captured) -> None:
    script = Script()
    for command in (["kill", job], ["watch", job], ["export", job]):
        assert main(command, reach=script) == 2
    assert script.got == []
    assert "is not an identifier" in capsys.readouterr().err


def test_watch_ends_with_0_when_the_job_finishes(capsys: Captured) -> None:
    happens = [
        rows(3, 4),
        event(JobState.RUNNING, 2e9, "3 workers on 1 shard"),
        rows(5),
        event(JobState.FINISHED, 2e9 + 1, "all iterations done"),
    ]
    assert main(["watch", "job-1"], reach=Script(answers=[view()], happens=happens)) == 0
    told = capsys.readouterr().out
    assert "running: 2 workers on 1 shard" in told
    assert "running: 3 workers on 1 shard" in told
    assert "iteration 4/10  loss 0.25  accuracy 0.9  1 worker, 1 shard  320 samples/s" in told
    assert told.splitlines()[-2].endswith("finished: all iterations done")
    assert "iteration 6/10" in told.splitlines()[-1]


def test_watch_ends_with_1_when_the_job_fails_and_shows_the_whole_reason(capsys: Captured) -> None:
    reason = "task raised\nTraceback\n  ZeroDivisionError: \x1b[31mred"
    happens = [event(JobState.FAILED, 2e9, reason)]
    assert main(["watch", "job-1"], reach=Script(answers=[view()], happens=happens)) == 1
    told = capsys.readouterr().out
    assert "! failed: task raised" in told
    assert "ZeroDivisionError: \ufffd[31mred" in told


def test_watch_of_a_job_that_ended_long_ago_tells_its_end(capsys: Captured) -> None:
    assert main(["watch", "job-1"], reach=Script(answers=[view("killed", reason="by rule")])) == 1
    assert "killed: by rule" in capsys.readouterr().out


def test_watch_notices_an_end_whose_event_was_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("elps.cli.watching.ASK_EVERY_S", 0.01)
    script = Script(answers=[view(), view(), view("finished", changed_at=2e9)])
    assert main(["watch", "job-1"], reach=script) == 0
    assert "finished" in capsys.readouterr().out


def test_watch_of_an_unknown_job_says_so(capsys: Captured) -> None:
    assert main(["watch", "job-9"], reach=Script()) == 1
    assert capsys.readouterr().err == "error: there is no job 'job-9'\n"


def test_watch_prints_json_lines_that_end_with_the_end(capsys: Captured) -> None:
    happens = [rows(3, 4), event(JobState.FINISHED, 2e9)]
    script = Script(answers=[view()], happens=happens)
    assert main(["watch", "job-1", "--json"], reach=script) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["iteration", "iteration", "event", "end"]
    assert lines[0]["workers"][0]["compute_s"] == 0.05
    assert lines[-1]["state"] == "finished"


def test_submit_with_watch_stays_to_the_end(job_file: str, capsys: Captured) -> None:
    script = Script(answers=[view()], happens=[event(JobState.FINISHED, 2e9)])
    assert main(["submit", job_file, "--watch"], reach=script) == 0
    assert capsys.readouterr().out.startswith("job-1  queued\n")


def test_jobs_is_a_table_with_units(capsys: Captured) -> None:
    script = Script(answers=[view(), view("finished", id="old", changed_at=1.0, ended_at=1.0)])
    assert main(["jobs"], reach=script) == 0
    told = capsys.readouterr().out
    header, line = told.splitlines()
    assert header.split()[:3] == ["JOB", "STATE", "TASK"]
    for text in ("job-1", "running", "3/10", "0.25", "accuracy 0.9", "2×1", "12.3k"):
        assert text in line
    assert main(["jobs", "--all"], reach=script) == 0
    assert "old" in capsys.readouterr().out
    assert main(["jobs", "--json"], reach=script) == 0
    assert len(json.loads(capsys.readouterr().out)["jobs"]) == 2


def test_no_jobs_says_how_to_begin(capsys: Captured) -> None:
    assert main(["jobs"], reach=Script()) == 0
    assert "elps submit FILE" in capsys.readouterr().out


def test_show_tells_what_a_job_holds_and_its_workers_times(capsys: Captured) -> None:
    assert main(["show", "job-1"], reach=Script(answers=[view()])) == 0
    told = capsys.readouterr().out
    for text in (
        "2 workers on 1 shard",
        "not ready: job-1-w2",
        "accuracy 0.9 at iteration 2",
        "50 ms",
        "evaluated: accuracy 0.5",
        "passes",
    ):
        assert text in told
    assert main(["show", "job-1", "--json"], reach=Script(answers=[view()])) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["newest_iterations"][-1]["iteration"] == 2
    assert shown["recent_events"][0]["what"] == "evaluated"


def test_an_answer_of_another_version_is_told_in_one_line(capsys: Captured) -> None:
    script = Script(answers=[view(state="hibernating")])
    assert main(["show", "job-1"], reach=script) == 1
    told = capsys.readouterr().err
    assert "another version" in told
    assert told.count("\n") == 1


def log_line(n: int, text: str) -> dict[str, Any]:
    return {"n": n, "worker": "job-1-w1", "at": 5.0 + n, "text": text}


def test_logs_prints_all_pages_without_control_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("elps.cli.logs.PAGE", 2)
    script = Script(lines=[log_line(n, f"line {n}\x07") for n in range(5)])
    assert main(["logs", "job-1"], reach=script) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"job-1-w1 | line {n}\ufffd" for n in range(5)]


def test_logs_follow_goes_on_to_the_end_without_repeats(capsys: Captured) -> None:
    last = LogLines(job=JOB, worker=WorkerId("job-1-w1"), at=9.0, lines=["bye"])
    repeated = LogLines(job=JOB, worker=WorkerId("job-1-w1"), at=5.0, lines=["line 0"])
    key = topology.log_key(JOB)
    script = Script(
        answers=[view()],
        lines=[log_line(0, "line 0")],
        happens=[
            (topology.TELEMETRY, key, repeated),
            event(JobState.FINISHED, 2e9),
            (topology.TELEMETRY, key, last),
        ],
    )
    assert main(["logs", "job-1", "-f"], reach=script) == 0
    assert capsys.readouterr().out == "job-1-w1 | line 0\njob-1-w1 | bye\n"


WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array(7, dtype=np.float32)


async def trained(store: Store) -> None:
    """A finished job with a checkpoint of two partitions that cut through an array."""
    await job_record(store, JobState.FINISHED)
    vector = np.concatenate([WEIGHTS.ravel(), BIAS.ravel()])
    entries = []
    for number, (start, stop) in enumerate([(0, 4), (4, 7)]):
        arrays = {"values": np.ascontiguousarray(vector[start:stop])}
        digests = await write_partition(store, JOB, "1.0-20", number, arrays)
        entries.append(PartitionEntry(start=start, stop=stop, steps=20, digests=digests))
    await publish(
        store,
        Manifest(
            job=JOB,
            name="1.0-20",
            term=1,
            iteration=20,
            at=1.0,
            layout={"dtype": "float32", "parameters": [["layer.w", [2, 3]], ["layer.b", []]]},
            dtype="float32",
            partitions=entries,
            samples=100,
            batch=10,
            granule=1,
            test_samples=0,
            skips=[],
            fingerprint="f",
            code_hash="c",
        ),
    )


async def job_record(store: Store, state: JobState) -> None:
    record = JobRecord(
        id=JOB,
        document=parse_job({"task": "mlp", "passes": 2}),
        state=state,
        reason="",
        seq=1,
        submitted_at=1.0,
        changed_at=2.0,
    )
    await store.hash_put(topology.JOB_INDEX, JOB, encode(record))


def test_export_writes_safetensors_with_metadata_and_keeps_what_is_there(
    tmp_path: Path, capsys: Captured
) -> None:
    target = tmp_path / "model.safetensors"
    script = Script(prepare=trained)
    assert main(["export", "job-1", "-o", str(target)], reach=script) == 0
    assert "2 arrays, 7 parameters" in capsys.readouterr().out
    with safe_open(target, "numpy") as file:
        assert file.metadata() == {
            "job": "job-1",
            "task": "mlp",
            "iteration": "20",
            "format": "np",
        }
        assert (file.get_tensor("layer.w") == WEIGHTS).all()
        assert file.get_tensor("layer.b").shape == ()
    before = target.read_bytes()
    assert main(["export", "job-1", "-o", str(target)], reach=script) == 1
    assert "--force" in capsys.readouterr().err
    target.write_bytes(b"old")
    assert main(["export", "job-1", "-o", str(target), "--force", "--json"], reach=script) == 0
    assert json.loads(capsys.readouterr().out)["arrays"] == {"layer.w": [2, 3], "layer.b": []}
    assert len(target.read_bytes()) == len(before)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


async def untrained(store: Store) -> None:
    await job_record(store, JobState.RUNNING)


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (None, "there is no job job-1"),
        (untrained, "has no checkpoint yet: it writes one every 30 s"),
    ],
)
def test_export_without_a_checkpoint_says_what_to_do(
    tmp_path: Path, prepare: Any, told: str, capsys: Captured
) -> None:
    target = tmp_path / "model.safetensors"
    assert main(["export", "job-1", "-o", str(target)], reach=Script(prepare=prepare)) == 1
    assert told in capsys.readouterr().err
    assert not target.exists()


def test_export_into_a_missing_folder_is_refused_before_any_work(capsys: Captured) -> None:
    assert main(["export", "job-1", "-o", "/nowhere/model.safetensors"], reach=NoStack()) == 1
    assert "there is no folder /nowhere" in capsys.readouterr().err


def test_the_version_is_shown(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("elps ")
