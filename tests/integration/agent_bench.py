"""The agent's shell with a real zygote and real forks, without a bus: what tests of it share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from elps.contracts.codec import parse_job
from elps.contracts.epoch import Term
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.messages import Address, StartTrainer, StopTrainer, TrainerStatus
from elps.runtime.service import SystemClock
from elps.worker.agent.trainers import Trainers
from elps.worker.settings import Settings

BOUND_S = 20.0


def start(script: str, n: int = 1, job: str = "job", term: int = 1, **args: object) -> StartTrainer:
    document = parse_job({"task": "mlp", "iterations": 1, "task_args": {"script": script, **args}})
    return StartTrainer(
        job=JobId(job),
        document=document,
        term=Term(term, 5),
        worker=WorkerId(f"{job}-w{n}"),
        leader=Address(shard=ShardId("shard-1"), host="127.0.0.1", port=1),
        secret="s",
    )


def stop(command: StartTrainer) -> StopTrainer:
    return StopTrainer(job=command.job, term=command.term, worker=command.worker)


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for what tells nobody that it happens."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Bench:
    """Trainers with their tasks, and waits on what the beat would show."""

    def __init__(
        self, log_dir: Path, *, trainer: str = "worker_scripted_trainer:run", **given: object
    ) -> None:
        values = {"agent_id": "agent-1", "worker_slots": 3, "log_dir": log_dir, "stop_grace_s": 0.3}
        self.changed = asyncio.Event()
        self.lines: dict[str, list[str]] = {}
        path = os.pathsep.join(
            filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
        )
        self.trainers = Trainers(
            Settings(**{**values, **given}),  # type: ignore[arg-type]
            SystemClock(),
            {**os.environ, "PYTHONPATH": path, "ELPS_AMQP_URL": "amqp://secret"},
            self.changed.set,
            trainer=trainer,
            preload=("numpy",),
        )
        self.tasks = [
            asyncio.ensure_future(self.trainers.keep_zygote()),
            asyncio.ensure_future(self.trainers.keep_time()),
        ]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not condition():
                for task in self.tasks:
                    if task.done():
                        task.result()
                self.changed.clear()
                await self.changed.wait()

    def status(self, command: StartTrainer) -> TrainerStatus | None:
        return next((s for s in self.trainers.statuses() if s.worker == command.worker), None)

    async def becomes(self, command: StartTrainer, state: str) -> TrainerStatus:
        await self.until(lambda: (s := self.status(command)) and s.state == state)
        status = self.status(command)
        assert status is not None
        return status

    async def gone(self, command: StartTrainer) -> None:
        await self.until(lambda: self.status(command) is None)

    def printed(self, command: StartTrainer) -> list[str]:
        for key, lines in self.trainers.take_printed():
            self.lines.setdefault(key.worker, []).extend(lines)
        return self.lines.get(command.worker, [])

    async def prints(self, command: StartTrainer, line: str) -> list[str]:
        await eventually(lambda: line in self.printed(command))
        return self.printed(command)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks, timeout=BOUND_S)
        self.trainers.take_printed()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    it = Bench(tmp_path)
    yield it
    await it.close()
