"""`elps run` with services played for the test: what it does around the training."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elps.cli.composing import Create
from elps.cli.main import main
from elps.contracts import topology
from elps.contracts.codec import encode, loads, parse_job
from elps.contracts.ids import JobId
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord, JobState
from elps.messaging.port import Delivery, Queue
from elps.runtime.service import Context

Captured = pytest.CaptureFixture[str]


class Played:
    """A scheduler that ends each job as told, and members that do nothing."""

    def __init__(self, end: JobState | None, reason: str, publish: bool = True) -> None:
        self.end, self.reason, self.publish = end, reason, publish
        self.told: list[str] = []
        self.documents: list[dict[str, object]] = []
        self.killed: list[dict[str, object]] = []
        self.environments: dict[str, dict[str, str]] = {}
        self.on_submit: Callable[[], None] = lambda: None
        self.reply: Reply | None = None

    def services(self, _names: object) -> dict[str, Create]:
        return dict.fromkeys(("scheduler", "psshard", "worker"), self.create)

    def create(self, context: Context) -> Played._Service:
        return Played._Service(self, context)

    class _Service:
        def __init__(self, script: Played, context: Context) -> None:
            self.script, self.context = script, context
            env = context.env
            self.name = env.get("ELPS_SHARD_ID") or env.get("ELPS_AGENT_ID") or "scheduler"
            script.environments[self.name] = dict(env)

        async def run(self, stop: asyncio.Event) -> None:
            if self.name == "scheduler":
                await asyncio.sleep(0)  # the job is handed in before the scheduler listens
                queue = Queue(topology.SCHEDULER_JOBS_QUEUE, ((topology.JOBS, "#"),), durable=True)
                await self.context.bus.subscribe(queue, self.take)
            await stop.wait()
            self.script.told.append(self.name)

        async def take(self, delivery: Delivery) -> None:
            script, body = self.script, loads(delivery.body)
            if delivery.routing_key == topology.KILL:
                script.killed.append(body)
                await self.context.bus.respond(delivery, encode(Reply(ok=True, job=body["job"])))
                await self.change(body["job"], JobState.KILLED, body["reason"], True)
                return
            script.documents.append(body)
            reply = script.reply or Reply(ok=True, job=body["id"], state=JobState.QUEUED)
            await self.context.bus.respond(delivery, encode(reply))
            script.on_submit()
            if reply.ok:
                await self.change(body["id"], JobState.RUNNING, "all there", True)
                if script.end is not None:
                    await self.change(body["id"], script.end, script.reason, script.publish)

        async def change(self, job: str, state: JobState, reason: str, publish: bool) -> None:
            at = 10.0 + list(JobState).index(state)
            record = JobRecord(
                id=JobId(job),
                document=parse_job(self.script.documents[-1]),
                state=state,
                reason=reason,
                seq=1,
                submitted_at=1.0,
                changed_at=at,
            )
            await self.context.store.hash_put(topology.JOB_INDEX, job, encode(record))
            event = JobEvent(
                job=record.id, what=state.value, at=at, state=state, reason=reason, record=record
            )
            if publish:
                key = topology.event_key(record.id, state.value)
                await self.context.bus.publish(topology.EVENTS, key, encode(event))


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    def prepare(end: JobState | None, reason: str = "", *, publish: bool = True) -> Played:
        script = Played(end, reason, publish)
        monkeypatch.setattr("elps.cli.running.installed_services", script.services)
        monkeypatch.setattr("elps.cli.running.configure", lambda *_, **__: None)
        return script

    for name in [n for n in os.environ if n.startswith("ELPS_") and n != "ELPS_TEST_RUN"]:
        monkeypatch.delenv(name)
    return prepare


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    file = tmp_path / "job.toml"
    file.write_text('task = "mlp"\npasses = 2\n[workers]\nmin = 2\nmax = 3\n[shards]\nmax = 2\n')
    return str(file)


def test_a_finished_job_gives_0_and_everyone_leaves_in_order(
    play: Callable[..., Played], job_file: str, capsys: Captured
) -> None:
    script = play(JobState.FINISHED, "all iterations done")
    assert main(["run", job_file]) == 0
    assert "finished: all iterations done" in capsys.readouterr().out
    assert script.told == ["agent-1", "agent-2", "agent-3", "shard-1", "shard-2", "scheduler"]
    assert script.documents[0]["id"] == "run"
    folder = str(Path(job_file).parent)
    assert {e["ELPS_TASK_PATH"] for e in script.environments.values()} == {folder}


def test_the_users_own_settings_of_the_environment_stand(
    play: Callable[..., Played], job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELPS_TASK_PATH", "/tasks")
    script = play(JobState.FINISHED)
    assert main(["run", job_file, "--workers", "2", "--set", "id=mine"]) == 0
    assert script.environments["agent-2"]["ELPS_TASK_PATH"] == "/tasks"
    assert script.documents[0]["id"] == "mine"
    assert "agent-3" not in script.environments


@pytest.mark.parametrize("publish", [True, False])
def test_a_failed_job_gives_1_even_if_its_event_is_lost(
    play: Callable[..., Played],
    job_file: str,
    monkeypatch: pytest.MonkeyPatch,
    publish: bool,
    capsys: Captured,
) -> None:
    monkeypatch.setattr("elps.cli.watching.ASK_EVERY_S", 0.05)
    play(JobState.FAILED, "task raised", publish=publish)
    assert main(["run", job_file, "--json"]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["type"], last["state"], last["reason"]) == ("end", "failed", "task raised")


def test_ctrl_c_kills_the_job_and_ends_in_order_with_130(
    play: Callable[..., Played], job_file: str, capsys: Captured
) -> None:
    script = play(None)
    script.on_submit = lambda: os.kill(os.getpid(), signal.SIGINT)
    assert main(["run", job_file]) == 130
    told = capsys.readouterr()
    assert "interrupted: the job is being ended" in told.err
    assert "killed: interrupted" in told.out
    assert script.killed == [{"job": "run", "reason": "interrupted"}]
    assert script.told[-1] == "scheduler"
    assert len(script.told) == 6


def test_a_refusal_is_told_with_every_problem(
    play: Callable[..., Played], job_file: str, capsys: Captured
) -> None:
    script = play(None)
    script.reply = Reply(ok=False, problems=["one", "two"])
    assert main(["run", job_file]) == 1
    assert "refused: 2 problems" in capsys.readouterr().err
    assert script.told[-1] == "scheduler"


def test_too_few_workers_are_refused_before_anything_starts(
    play: Callable[..., Played], job_file: str, capsys: Captured
) -> None:
    script = play(JobState.FINISHED)
    assert main(["run", job_file, "--workers", "1"]) == 2
    assert "--workers 1: the job's workers.min is 2" in capsys.readouterr().err
    assert script.environments == {}


def test_an_export_that_would_overwrite_is_refused_before_training(
    play: Callable[..., Played], job_file: str, tmp_path: Path, capsys: Captured
) -> None:
    script = play(JobState.FINISHED)
    (tmp_path / "model").write_bytes(b"precious")
    assert main(["run", job_file, "--export", str(tmp_path / "model")]) == 1
    assert "--force" in capsys.readouterr().err
    assert script.environments == {}
