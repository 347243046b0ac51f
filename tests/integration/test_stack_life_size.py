"""A running stack is asked to come up again, to grow and to shrink, while a job trains on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from realstack.footprint import Footprint, at_rest
from realstack.site import Site
from realstack.training import operating

from elps.local.processes import is_alive
from elps.local.services import names

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("size"))
    yield site
    site.stack.down()


@pytest.fixture
async def site(running_site: Site) -> Site:
    """Two of each, and nothing said yet."""
    await running_site.up(2, 2)
    running_site.said.clear()
    return running_site


async def test_a_running_stack_takes_up_again_and_any_size_while_a_job_trains(site: Site) -> None:
    async with operating(site) as operator:
        first = await operator.submit(name="first", iterations=20)
        await first.equals_the_plain_loop()
        before, footprint = site.handles, await Footprint.of(site)

        # Twice is once.
        training = await operator.submit(name="undisturbed", iterations=400)
        await training.reaches(5)
        await site.up(2, 2)
        assert site.handles == before

        # It grows: the running job keeps its size, a new one takes what came.
        await site.up(3, 3)
        assert set(site.record.services) == set(names(3, 3))
        assert {n: site.handles[n] for n in before} == before
        newcomer = await operator.submit(
            name="newcomer", shards={"min": 3, "max": 3}, iterations=400
        )
        await newcomer.reaches(5)
        started = await newcomer.record()
        assert started.allocation is not None
        assert len(started.allocation.shards) == 3
        assert set(started.allocation.workers.values()) == {"agent-3"}

        # It shrinks under both: nothing is cut off in the middle, and both come to a right end.
        leaving = [site.handles[n] for n in ("shard-3", "agent-3", "agent-2")]
        await site.up(1, 2)
        assert set(site.record.services) == set(names(1, 2))
        assert not any(map(is_alive, leaving))
        assert not any("was killed" in line for line in site.said), site.said
        kept = await training.equals_the_plain_loop()
        assert kept.terms == 1
        assert kept.progress.redone_iterations == 0
        waiting = await newcomer.until_stored(
            lambda r: "3 shards" in r.reason, "word that three shards are needed"
        )
        assert not waiting.state.ended
        await site.up(1, 3)
        record = await newcomer.equals_the_plain_loop()
        assert record.progress.redone_iterations == 0
        await site.up(2, 2)
    async with operating(site) as operator:
        await at_rest(site, operator.store, footprint)


async def test_a_job_moves_to_the_shards_that_stay_when_the_stack_shrinks(site: Site) -> None:
    async with operating(site) as operator:
        training = await operator.submit(name="shrunk", iterations=300)
        await training.reaches(10)
        before = await training.record()
        assert before.allocation is not None
        assert len(before.allocation.shards) == 2
        await site.up(1, 1)
        assert not any("was killed" in line for line in site.said), site.said
        record = await training.equals_the_plain_loop()
        assert record.terms == 1  # its partitions moved; nothing was started anew
        assert record.progress.redone_iterations == 0
