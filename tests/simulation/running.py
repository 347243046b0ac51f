"""One simulation: all of elps in one thread, in virtual time, from one number."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from simulation.clockwork import START_S, Process, VirtualLoop
from simulation.cluster import Cluster
from simulation.harm import Harm
from simulation.injecting import Change, injected
from simulation.network import Network
from simulation.plans import Act, draw
from simulation.resting import Rest
from simulation.story import Story
from simulation.threads import Threads
from simulation.trainers import SIMULATION

from elps.messaging.faults import Faults

USER = "user"
LAST_S = 400.0
"""Nothing goes on for longer than this."""
UNWINDS_S = 6.0
"""Whatever was killed at the end is through by then."""


@dataclass
class Outcome:
    """What came of a seed."""

    seed: int
    faults: list[str]
    lines: list[str]
    waited_s: float
    took_s: float
    """Virtual time."""

    @property
    def told(self) -> str:
        """For whoever must mend it."""
        return "\n".join([*self.lines, f"seed {self.seed}:", *self.faults])


def simulate(seed: int, without: Sequence[Change] = (), acts: Sequence[Act] = ()) -> Outcome:
    """Run a seed to its end, `without` some rules, and with more of some acts."""
    plan = draw(seed, acts)
    rng = random.Random(seed)
    loop = VirtualLoop(rng)
    story = Story(loop)
    threads = Threads(loop, story.wrong, plan.preempts)
    network = Network(loop, threads, plan.slowness)
    SIMULATION.rng = random.Random(rng.random())
    SIMULATION.start_main, SIMULATION.trainers = threads.start_main, {}
    waited_s = 0.0

    async def live() -> None:
        nonlocal waited_s
        faults = Faults(seed, **plan.messages)  # type: ignore[arg-type]
        cluster = Cluster(loop, threads, network, story, faults, plan.policy)
        for name in plan.services:
            cluster.start(name)
        harm = Harm(cluster, plan)
        rest = Rest(cluster, harm)
        try:
            async with asyncio.timeout(LAST_S):
                await harm.carry_out()
                await rest.comes()
        except TimeoutError:
            story.wrong(f"it goes on for {LAST_S:g} s")
        finally:
            waited_s = rest.waited_s
            for running in cluster.running.values():
                running.process.kill()
            await asyncio.sleep(UNWINDS_S)

    with injected(loop, threads, network, without), story.told_by_logs():
        try:
            Process(USER, "10.0.0.1").run_in(loop.run_until_complete, live())
        except Exception as error:  # noqa: BLE001 - told, and a fault of the seed
            story.wrong(f"{type(error).__name__}: {error}")
        finally:
            loop.close()
    return Outcome(seed, story.faults, story.lines(), waited_s, loop.now - START_S)
