"""A seeded run over many short jobs: everything fails, several at a time, and every job comes to the right end.

`make chaos SEED=4711 KILLS=20` runs this alone; the plan follows from the two numbers (`realstack.planning`).
"""

from __future__ import annotations

import os

import pytest
from realstack.footprint import Footprint, at_rest
from realstack.inflicting import Enemy
from realstack.planning import draw_plan
from realstack.site import Site
from realstack.storming import train_through
from realstack.training import Operator

SEED = int(os.environ.get("SEED") or 101)
"""A known one, so that no change is blamed for what another seed finds. Of this one connections to the store,
and between trainers and shards, are reset in the middle of a checkpoint and of a start."""
KILLS = int(os.environ.get("KILLS") or 20)
EACH_S, START_S = 60, 180
"""Bounds: one failure takes 5 s as a rule, the start of a stack 10 s."""


@pytest.mark.timeout(START_S + EACH_S * KILLS)
async def test_every_job_comes_to_the_right_end_whatever_fails(
    site: Site, operator: Operator
) -> None:
    await site.up(2, 3)
    before = await Footprint.of(site)
    enemy = Enemy(site, operator)
    repeat = f"make chaos SEED={SEED} KILLS={KILLS}"
    enemy.tell(repeat)
    if why := site.no_rooms if site.rooms is None else site.rooms.no_reset or site.rooms.no_delay:
        enemy.tell(f"some failures of the network are left out: {why}")
    try:
        for planned in draw_plan(SEED, KILLS):
            await train_through(planned, enemy, operator)
        await enemy.mended()
        enemy.tell("mended")
        await site.up(2, 3)
        await at_rest(site, operator.store, before)
    except BaseException:
        print("\n".join(["what happened:", *enemy.story, f"repeat with: {repeat}"]))
        raise
    finally:
        await enemy.give_up()
