"""Two schedulers, one of them in charge: it dies, stands still and comes back, and the store is away meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import time

import pytest
from realstack.site import Site
from realstack.training import Hold, Operator, eventually

from elps.contracts.state import JobState
from elps.contracts.topology import CHARGE
from elps.local import processes

TAKES_OVER_S = 12.0
"""It takes up to 3.5 s, the time of the lease and a claim's; a busy machine is given more."""
LONG_S = 6.0
"""Longer than that."""


class Two:
    """Both schedulers of a stack, and who of them is in charge."""

    def __init__(self, site: Site, operator: Operator) -> None:
        self.site, self.operator = site, operator

    async def lease(self) -> tuple[str, int]:
        """The scheduler whose lease is the newest, and the number of its charge."""
        found = await self.operator.store.hash_all(CHARGE)
        pid = json.loads(found["holder"])["pid"]
        names = [n for n, h in self.site.handles.items() if h.pid == pid]
        return names[0] if names else "", int(found["n"])

    async def taken_over_from(self, name: str, timeout_s: float) -> str:
        """Wait until another one is in charge."""
        until = time.monotonic() + timeout_s
        before = {n: self.served(n) for n in ("scheduler", "scheduler-2")}
        while (now := (await self.lease())[0]) in (name, ""):
            assert time.monotonic() < until, f"{name} is in charge after {timeout_s:g} s"
            await asyncio.sleep(0.02)
        # Until then users' messages go to the old one, and come back only when the broker drops that.
        await eventually(lambda: self.served(now) > before[now], f"{now} at work")
        return now

    def served(self, name: str) -> int:
        """How often a scheduler has taken up its work."""
        return self.site.log(name).count("scheduler_serves")


@pytest.fixture
async def two(site: Site, operator: Operator) -> Two:
    await site.up(schedulers=2)
    return Two(site, operator)


async def test_a_standby_takes_over_and_the_job_does_not_notice(
    site: Site, operator: Operator, two: Two, hold: Hold
) -> None:
    training = await operator.submit(
        name="taken-over", task_args=hold.args, iterations=150, limits={"floor_s": 60.0}
    )
    await training.reaches(10)
    trainers = {t.pid for t in site.trainers()}
    first, number = await two.lease()
    await site.kill(first)
    assert await two.taken_over_from(first, TAKES_OVER_S) != first
    assert (await two.lease())[1] == number + 1
    await hold.catch()
    await operator.ask("resume", training)  # it answers
    hold.release()
    assert {t.pid for t in site.trainers()} == trainers
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert record.progress.redone_iterations == 0
    assert [row.iteration for row in training.rows] == list(range(150))


async def test_one_that_stood_still_does_no_harm_when_it_goes_on(
    site: Site, operator: Operator, two: Two
) -> None:
    training = await operator.submit(name="while-frozen", iterations=5000)
    await training.reaches(10)
    frozen, _ = await two.lease()
    processes.send(site.handles[frozen], signal.SIGSTOP)
    try:
        await two.taken_over_from(frozen, TAKES_OVER_S)
        await operator.ask("kill", training)
        await training.in_state(JobState.KILLED)
        other = await operator.submit(name="meanwhile")
        await other.reaches(10)
    finally:
        processes.send(site.handles[frozen], signal.SIGCONT)
    # it knows of a job that trains, and of nothing else
    await eventually(lambda: "superseded" in site.log(frozen), "one that notices it was followed")
    record = await other.equals_the_plain_loop()
    assert record.terms == 1
    assert (await training.record()).state is JobState.KILLED
    # and stands by again
    second, _ = await two.lease()
    await site.kill(second)
    assert await two.taken_over_from(second, TAKES_OVER_S) == frozen
    last = await operator.submit(name="after")
    assert (await last.equals_the_plain_loop()).terms == 1


async def test_nobody_takes_over_while_the_store_is_away(
    site: Site, operator: Operator, two: Two
) -> None:
    training = await operator.submit(name="no-store", iterations=400)
    await training.reaches(10)
    first, _ = await two.lease()
    (standby,) = {"scheduler", "scheduler-2"} - {first}
    taken = site.log(standby).count("in_charge")
    await site.kill("redis", number=signal.SIGTERM)
    await site.kill(first)
    await training.rises(20)
    await asyncio.sleep(LONG_S)
    assert site.log(standby).count("in_charge") == taken
    await site.start("redis")
    await eventually(lambda: site.log(standby).count("in_charge") > taken, "a new one in charge")
    record = await training.equals_the_plain_loop()
    assert record.terms == 1


async def test_a_store_that_comes_back_empty_again_and_again_costs_a_running_job_nothing(
    site: Site, operator: Operator, two: Two
) -> None:
    """Both schedulers claim as soon as they reach it; each time it must be the one that knows the job."""
    training = await operator.submit(
        name="emptied", iterations=300, checkpoint={"every": 10, "every_s": 0}
    )
    await training.reaches(20)
    for _ in range(4):
        await site.empty_the_store()
        await training.until_stored(lambda record: record.terms == 1, "record in the empty store")
        await training.rises(15)
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert record.progress.redone_iterations == 0
    assert not training.told("worker_lost")
