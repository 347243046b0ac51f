"""Failures of every kind in a random order, some of them while others are not mended yet, over several short jobs."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

import psutil
import pytest
from realstack.site import Site
from realstack.training import Operator, Training

from elps.contracts.errors import RetryLater
from elps.contracts.job import JobDocument
from elps.local.processes import is_alive

JOBS_AT_ONCE = 2
END_S = 120.0


class Schedule:
    """What happens to a stack, drawn from a seed; `story` tells it again."""

    def __init__(self, site: Site, operator: Operator, rng: random.Random) -> None:
        self.site, self.operator = site, operator
        # One for each purpose: how many are drawn for jobs and victims depends on time, what happens and when must not.
        self.rng, self._jobs, self._victims = (random.Random(rng.random()) for _ in range(3))
        self.trainings: list[Training] = []
        self.story: list[str] = []
        self._asleep: list[psutil.Process] = []

    def tell(self, what: str) -> None:
        self.story.append(what)
        print(f"schedule: {what}", flush=True)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def document(self) -> JobDocument:
        draw = self._jobs.choice
        workers, shards = draw([(1, 1), (1, 2), (2, 2)]), draw([(1, 1), (1, 2), (2, 2)])
        dtype, optimizer = draw(
            [
                ("float64", {"name": "adam", "lr": 0.02}),
                ("float64", {"name": "momentum", "lr": 0.1}),
                ("float32", {"name": "sgd", "lr": 0.5}),
            ]
        )
        return self.operator.document(
            "storm",
            dtype=dtype,
            optimizer=optimizer,
            iterations=self._jobs.randrange(80, 200),
            workers={"min": workers[0], "max": workers[1]},
            shards={"min": shards[0], "max": shards[1]},
            checkpoint={"every": draw([7, 20]), "every_s": 0},
            limits={"floor_s": 1.5},
        )

    async def keep_busy(self) -> None:
        """Hand in jobs until enough of them are under way, if anybody takes them."""
        try:
            open_ = [await self._is_open(training) for training in self.trainings].count(True)
        except RetryLater:
            return
        for _ in range(JOBS_AT_ONCE - open_):
            document = self.document()
            try:
                self.trainings.append(await self.operator.submit(document))
            except RetryLater:
                # It may have been taken all the same: handed in again at the end, under its own id.
                self.trainings.append(self.operator.again(document))
                self.tell(f"{document.id} was not answered")

    async def _is_open(self, training: Training) -> bool:
        """A job without a record was not taken yet."""
        record = await training.find()
        return record is None or not record.state.ended

    # --- failures -----------------------------------------------------------------------------------------------------

    async def trainer_killed(self) -> None:
        if trainers := self.site.trainers():
            self._victims.choice(sorted(trainers, key=lambda t: t.pid)).kill()

    async def trainer_asleep(self) -> None:
        if trainers := self.site.trainers():
            sleeper = self._victims.choice(sorted(trainers, key=lambda t: t.pid))
            sleeper.suspend()
            self._asleep.append(sleeper)

    async def trainers_awake(self) -> None:
        for sleeper in self._asleep:
            try:
                sleeper.resume()
            except psutil.NoSuchProcess:
                continue
        self._asleep.clear()

    async def killed(self, *names: str, number: signal.Signals = signal.SIGKILL) -> None:
        if living := [n for n in names if is_alive(self.site.handles[n])]:
            await self.site.kill(self._victims.choice(living), number=number)

    def draw(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        """The next failure; those that are more interesting come more often."""
        kinds: list[tuple[int, str, Callable[[], Awaitable[None]]]] = [
            (4, "a trainer is killed", self.trainer_killed),
            (2, "a trainer falls asleep", self.trainer_asleep),
            (2, "an agent is killed", lambda: self.killed("agent-1", "agent-2")),
            (3, "a shard is killed", lambda: self.killed("shard-1", "shard-2")),
            (2, "the scheduler is killed", lambda: self.killed("scheduler")),
            (1, "the monitor is killed", lambda: self.killed("monitor")),
            (1, "the broker is killed", lambda: self.killed("rabbitmq")),
            (1, "the broker is ended", lambda: self.killed("rabbitmq", number=signal.SIGTERM)),
            (1, "the store is killed", lambda: self.killed("redis")),
            (1, "the store is ended", lambda: self.killed("redis", number=signal.SIGTERM)),
        ]
        [(_, what, act)] = self.rng.choices(kinds, [weight for weight, _, _ in kinds])
        return what, act

    async def run(self, failures: int) -> None:
        for number in range(1, failures + 1):
            await self.keep_busy()
            await asyncio.sleep(self.rng.uniform(0.2, 2.0))
            what, act = self.draw()
            self.tell(f"{number}: {what}")
            await act()
            if self.rng.random() < 0.7:
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))
                await self.trainers_awake()
                self.tell("mended")
                await self.site.up()
        await self.trainers_awake()
        self.tell("mended for good")
        await self.site.up()

    async def end_well(self) -> None:
        for training in self.trainings:
            reply = await self.operator.client.submit(training.document)
            assert reply.ok, reply
            await training.equals_the_plain_loop(END_S)


@pytest.mark.parametrize(
    "failures", [4, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
async def test_jobs_come_to_the_right_end_whatever_fails(
    site: Site, operator: Operator, rng: random.Random, failures: int
) -> None:
    schedule = Schedule(site, operator, rng)
    try:
        await schedule.run(failures)
        await schedule.end_well()
    except BaseException:
        print("\n".join(schedule.story))
        raise
