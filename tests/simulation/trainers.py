"""Trainers without processes: the agent's zygote, what trainers print, and the task that they count with.

The task counts: the gradient of sample *i* is 1 in element *i*, and a step subtracts the sum of the gradients. After
*e* passes every element is *-e*, exactly, if and only if each sample of each pass was used once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from greenlet import GreenletExit
from simulation.clockwork import Process, current

from elps.contracts.codec import decode
from elps.contracts.job import JobDocument
from elps.contracts.messages import StartTrainer
from elps.tasks.layout import Layout
from elps.tasks.running import OpenJob
from elps.worker.core.commands import TrainerKey
from elps.worker.trainer import main
from elps.worker.zygote.protocol import Began, Ended, Forked, FromZygote, Ready

SAMPLES = 32
"""Of a pass, and elements: 4 cache lines, so that they can lie on several shards."""
IMPORT_S, FORK_S, OPEN_S = 0.4, 0.02, 0.1
"""How long at most it takes a zygote to be ready, to fork, and a trainer to open task and data."""


class Counting:
    """The task. Each call takes `pace_s` for each sample."""

    def __init__(self, pace_s: float) -> None:
        self._pace_s = pace_s

    def __len__(self) -> int:
        return SAMPLES

    def get(self, indices: np.ndarray) -> np.ndarray:
        return indices

    def init(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"count": np.zeros(SAMPLES)}

    def loss_and_grad(self, params: Any, batch: np.ndarray) -> tuple[float, dict[str, Any]]:
        main.time.sleep(self._pace_s * len(batch))
        gradient = np.zeros(SAMPLES)
        np.add.at(gradient, batch, 1.0)
        return float(len(batch)), {"count": gradient}


LAYOUT = Layout.of({"count": np.zeros(SAMPLES)}, "float64")


def counting_job(document: JobDocument, env: Mapping[str, str]) -> OpenJob:
    """In place of `elps.tasks.opening.open_job`."""
    main.time.sleep(OPEN_S * SIMULATION.rng.random())
    task = Counting(float(document.task_args["pace_s"]))
    return OpenJob(document, task, task, None, LAYOUT, fingerprint="data", code_hash="code")


class Unnoticing:
    """In place of what a trainer notices of its machine."""

    def now(self, factor: float) -> dict[str, float]:
        return {}

    def waiting(self, factor: float) -> dict[str, float]:
        return {"cpu_process": 1.0 / factor}

    def close(self) -> None:
        """There are no files."""


class Output:
    """In place of what reads a trainer's output: it prints nothing."""

    def __init__(self, key: TrainerKey, *_: Any) -> None:
        self.key = key

    def take(self) -> list[str]:
        return []

    finish = take

    def read_out(self) -> None:
        """There is nothing."""

    def say(self, line: str) -> None:
        """Nobody reads it."""

    def last_errors(self, count: int) -> str:
        return ""


class Simulation:
    """What trainers need of the simulation that runs just now."""

    rng: random.Random
    start_main: Callable[[Process, Callable[[], object]], None]
    trainers: dict[Trainer, None]  #: all that live, the oldest first


SIMULATION = Simulation()


class Trainer(Process):
    """A trainer's process: runs the real `elps.worker.trainer.main.run`."""

    def __init__(self, agent: Process, tag: int, start: StartTrainer, told: Callable[..., None]):
        super().__init__(f"{start.worker}@{agent.name}", agent.host, agent.name)
        self._start, self._told, self._code = start, told, 0
        self.tag = tag
        self.forked = False
        SIMULATION.trainers[self] = None
        agent.at_death.append(self.kill)
        self.at_death.append(lambda: agent.at_death.remove(self.kill))
        self.at_death.append(lambda: SIMULATION.trainers.pop(self))

    def begin(self) -> None:
        self._told(Began(tag=self.tag, pid=self.tag))
        SIMULATION.start_main(self, self._run)

    def _run(self) -> None:
        status = 1 << 8
        try:
            status = main.run(self._start, {}) << 8
        except GreenletExit:
            raise
        finally:
            asyncio.get_running_loop().call_soon(self._ended, status)

    def signal(self, number: int) -> None:
        if self.dead:
            return
        if not self.forked:  # as over the zygote's socket: a signal comes after the fork
            asyncio.get_running_loop().call_later(FORK_S, self.signal, number)
            return
        if number in self.handlers and self.main is not None:
            self.main.interrupt(number)
        else:
            self._ended(number)

    def _ended(self, status: int) -> None:
        if not self.dead:
            self.kill()
            self._told(Ended(tag=self.tag, status=status, max_rss_bytes=0))


class ZygoteLink:
    """In place of the agent's side of a zygote: the trainers are simulated, and die with their agent."""

    def __init__(self, trainer: str, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._agent = current()
        self._said: asyncio.Queue[FromZygote | None] = asyncio.Queue()
        self._trainers: dict[int, Trainer] = {}
        self.ready, self.pid, self._failure = False, 1, ""
        self._later(IMPORT_S, self._say, Ready(seconds=0.0))

    def _later(self, bound_s: float, call: Callable[..., object], *args: Any) -> None:
        after_s = bound_s * SIMULATION.rng.random()
        asyncio.get_running_loop().call_later(after_s, call, *args)

    def _say(self, message: FromZygote | None) -> None:
        self._said.put_nowait(message)

    def fork(self, tag: int, name: str, encoded_start: bytes) -> tuple[int, int]:
        start = decode(encoded_start, StartTrainer)
        self._trainers[tag] = trainer = Trainer(self._agent, tag, start, self._say)
        self._later(FORK_S, self._forked, trainer)
        return -1, -1

    def _forked(self, trainer: Trainer) -> None:
        if trainer.dead:
            return
        trainer.forked = True
        self._say(Forked(tag=trainer.tag, pid=trainer.tag))
        self._later(FORK_S, lambda: None if trainer.dead else trainer.begin())

    def signal(self, tag: int, number: int) -> None:
        self._later(FORK_S, self._trainers[tag].signal, number)

    async def messages(self) -> AsyncIterator[tuple[FromZygote, list[int]]]:
        while (message := await self._said.get()) is not None:
            self.ready = self.ready or isinstance(message, Ready)
            yield message, [-1]

    def hang_up(self) -> None:
        for trainer in self._trainers.values():
            trainer.kill()
        self._say(None)

    def kill(self, why: str) -> None:
        self._failure = self._failure or why
        self.hang_up()

    async def end(self) -> str:
        self.hang_up()
        return f"simulated: {self._failure}"
