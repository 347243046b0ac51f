"""One stack for all short scenarios, mended by `make up` before each and looked over after it; and the seed."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from realstack.footprint import Footprint, at_rest
from realstack.rooms import NotPermitted, Rooms
from realstack.site import Site
from realstack.training import Hold, Operator, operating

HERE = Path(__file__).parent
SEED = int(os.environ.get("SEED") or secrets.randbits(32))
SCENARIO_S = 150
"""For a whole scenario; most take 10 s."""


def pytest_report_header() -> str:
    return f"chaos: seed {SEED} (repeat with SEED={SEED} make chaos)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SCENARIO_S))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Each scenario draws its own numbers from the run's seed, so that it repeats alone too."""
    print(f"SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Footprint]]:
    """Two agents, two shards, with a first job behind them: what is opened on first use is open."""
    rooms, why = _rooms()
    site = Site(tmp_path_factory.mktemp("site"), rooms=rooms, no_rooms=why)

    async def begin() -> Footprint:
        await site.up(2, 2)
        async with operating(site) as operator:
            training = await operator.submit(name="first", iterations=30)
            await training.equals_the_plain_loop()
        return await Footprint.of(site)

    try:
        yield site, asyncio.run(begin())
    finally:
        site.stack.down()
        if rooms is not None:
            rooms.leave()
    assert _all_of(site) == []


def _rooms() -> tuple[Rooms | None, str]:
    """A network of the stack's own, or why there is none."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return None, "the broker that tests share is in the network of another worker"
    try:
        return Rooms.enter(), ""
    except NotPermitted as reason:
        return None, str(reason)


def _all_of(site: Site) -> list[object]:
    from elps.local import processes

    return list(processes.belonging_to(site.record.stack_id))


@pytest.fixture
async def site(running_site: tuple[Site, Footprint]) -> AsyncIterator[Site]:
    """The stack, whole at the start; at the end whole again with nothing left over."""
    site, before = running_site
    await site.up(2, 2)
    yield site
    await site.up(2, 2)
    async with operating(site) as operator:
        await at_rest(site, operator.store, before)


@pytest.fixture
async def operator(site: Site) -> AsyncIterator[Operator]:
    """Connections of this scenario."""
    async with operating(site) as operator:
        yield operator
        await operator.kill_all()


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    return Hold(tmp_path / "hold")
