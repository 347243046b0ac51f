"""A real stack goes down, in order or not, in the middle of jobs, and comes up again: the jobs come to the same end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from realstack.site import Site
from realstack.training import Hold, Operator, Training, operating

from elps.contracts.state import JobState
from elps.local import processes
from elps.local.processes import is_alive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SEVERAL = ("first", "second", "third")
ONE = {"min": 1, "max": 1}


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("jobs"))
    yield site
    site.stack.down()
    assert strays(site) == []


@pytest.fixture
async def site(running_site: Site) -> Site:
    """Two of each, and nothing said yet."""
    await running_site.up(2, 2)
    running_site.said.clear()
    return running_site


def strays(site: Site) -> list[str]:
    return [f"{h.name} ({h.pid})" for h in processes.belonging_to(site.record.stack_id)]


async def submitted(operator: Operator, name: str) -> Training:
    return await operator.submit(name=name, iterations=150, workers=ONE)


async def end_of(site: Site, training: Training) -> None:
    """A job that was begun before the stack went down, followed by somebody who came later."""
    async with operating(site) as operator:
        await operator.again(training.document).equals_the_plain_loop()


async def test_jobs_go_on_after_down_and_up_from_the_very_iteration_at_which_they_stopped(
    site: Site,
) -> None:
    async with operating(site) as operator:
        jobs = [await submitted(operator, name) for name in SEVERAL]
        ended = await operator.submit(name="ended", iterations=5)
        paused = await operator.submit(name="paused")
        await jobs[0].reaches(20)
        await jobs[1].reaches(10)
        await operator.ask("pause", paused)
        killed = await operator.submit(name="killed")
        await operator.ask("kill", killed)
        assert not jobs[2].rows, "it waits for its turn"
    await site.down()
    assert strays(site) == []
    assert not any("not done" in line or "was killed" in line for line in site.said), site.said

    await site.up()
    for training in jobs:
        await end_of(site, training)
    async with operating(site) as operator:
        for training in jobs:
            record = await operator.again(training.document).record()
            assert record.progress.redone_iterations == 0, training.id
        assert (await operator.again(paused.document).record()).state is JobState.PAUSED
        assert (await operator.again(killed.document).record()).state is JobState.KILLED
    await end_of(site, ended)


@pytest.mark.thorough
async def test_jobs_come_back_from_their_checkpoints_when_every_process_was_killed(
    site: Site,
) -> None:
    async with operating(site) as operator:
        jobs = [await submitted(operator, name) for name in SEVERAL]
        await jobs[0].event("checkpointed", 2)
        await jobs[1].event("checkpointed", 1)
    await site.kill_everything()
    await site.up()
    for training in jobs:
        await end_of(site, training)
    async with operating(site) as operator:
        records = [await operator.again(training.document).record() for training in jobs]
        assert [record.terms for record in records] == [2, 2, 1]


@pytest.mark.thorough
async def test_one_of_two_stacks_goes_down_and_the_other_does_not_notice(tmp_path: Path) -> None:
    one, two = Site(tmp_path / "one", 1, 1), Site(tmp_path / "two", 1, 1)
    try:
        await asyncio.gather(one.up(), two.up())
        hold = Hold(tmp_path / "hold")
        async with operating(one) as at_one, operating(two) as at_two:
            going = await submitted(at_one, "same-name")
            staying = await at_two.submit(
                name="same-name", task_args=hold.args, limits={"floor_s": 60.0}
            )
            assert going.id == staying.id
            await asyncio.gather(going.reaches(10), staying.reaches(10))
            before = two.handles
            await hold.catch()  # so that it is not at its end before the other stack is down
            await one.down()
            assert strays(one) == []
            assert two.handles == before
            assert all(map(is_alive, before.values()))
            hold.release()
            record = await staying.equals_the_plain_loop()
            assert record.terms == 1
            assert not staying.told("worker_lost")
        await one.up()
        await end_of(one, going)
    finally:
        await asyncio.gather(one.down(), two.down())
    assert strays(one) == strays(two) == []
