"""Failures of the network that this machine does not allow are planned all the same, told, and left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from realstack.inflicting import Enemy
from realstack.planning import NETWORK, Act, Step, Victim
from realstack.severing import Severing


def step_of(act: Act) -> Step:
    return Step(act=act, victim=Victim.SHARD, at=5, after_s=0.0, lasts_s=1.0, rank=0)


@pytest.mark.parametrize("act", NETWORK)
async def test_without_a_network_of_its_own_a_run_says_what_it_leaves_out(act: Act) -> None:
    site: Any = SimpleNamespace(rooms=None, no_rooms="network namespaces want root")
    operator: Any = None
    training: Any = SimpleNamespace(id="job", newest=4)
    enemy = Enemy(site, operator)
    await enemy.carry_out(step_of(act), training)
    await enemy.mended()
    [told] = enemy.story
    assert told.endswith(f"{act.value} shard: left out, network namespaces want root")


def test_where_the_kernel_ends_no_connections_only_what_wants_that_is_left_out() -> None:
    rooms: Any = SimpleNamespace(no_reset="not here", no_delay="")
    site: Any = None
    severing = Severing(site, rooms)
    left_out = {act for act in NETWORK if severing.cannot(step_of(act))}
    assert left_out == {Act.RESET, Act.HALF_OPEN}
