"""How soon newcomers give their early feedback on a full cluster, how long jobs take and when all is done.

    .venv/bin/python tests/bench/bench_newcomers.py        # about four minutes

One workload, fixed beforehand (`newcomers_workload.py`), on eight emulated workers of a real stack, three times: under
`fifo`, a static parameter server; under `fifo` with changes of size made from outside by a checkpoint, a stop and a new
start (`restarting.py`); and under `eps`. Ratios are to `fifo` in the same run. Then what `elps simulate` predicts for
the same workload from times measured on the same stack beforehand (`calibrating.py`), beside what was measured; the aim
is 15 %. At last each thing in which `eps` gains nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from calibrating import Calibrated, calibrate, idle
from lives import Life, must
from measuring import arguments, emit, say
from newcomers_workload import (
    SHARDS,
    WORKERS,
    WORKLOAD,
    Arrival,
    Ended,
    document,
    figures,
    simulated,
)
from private_stack import in_stack, private_stack
from restarting import EqualShares, Restarting

from elps.client.control import Client
from elps.contracts.messages import JobEvent
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.core.policy import Policy
from elps.scheduler.simulator.simulating import Wishes, workload_of
from elps.scheduler.simulator.simulation import Simulation

MODES: dict[str, tuple[str, Policy]] = {
    "fifo": ("fifo", POLICIES["fifo"]),
    "fifo_restarts": ("fifo", EqualShares()),
    "eps": ("eps", POLICIES["eps"]),
}
"""The policy of the real stack, and that of the simulation."""
AIMS = {"feedback": 5.0, "completion": 2.0}
"""Times as soon as under `fifo`."""
NEAR = 0.15
SAME = 1.02
"""Ratios below it are no gain."""
WORKLOAD_S = 150.0

HandIn = Callable[[dict[str, Any]], Awaitable[None]]


async def lived(
    client: Client, job: Arrival, name: str, hand_in: HandIn, told: Callable[[JobEvent], None]
) -> Ended:
    """Hand a job in at its time and follow it to its end, which its user makes if it is not kept."""
    await asyncio.sleep(job.at_s)
    say(f"newcomers: {name}")
    async with Life(client, name, told) as life:
        began_at = time.time()
        await hand_in(document(name, job.iterations))
        fed = await life.told("feedback")
        if not job.kept:
            await must(client.kill(name, "its first results are no good"))
        await life.until(lambda: life.end is not None, "end")
        assert life.end is not None
        wanted = "finished" if job.kept else "killed"
        if life.end.what != wanted:
            raise RuntimeError(f"{name} has {life.end.what} and not {wanted}: {life.end.reason}")
        return Ended(job, fed.at - began_at, life.end.at - began_at)


async def workload(client: Client, mode: str) -> list[Ended]:
    """All jobs at their times."""

    async def submit(wanted: dict[str, Any]) -> None:
        await must(client.submit(wanted))

    driver = Restarting(client, WORKERS)
    restarts = mode == "fifo_restarts"
    hand_in: HandIn = driver.hand_in if restarts else submit
    told: Callable[[JobEvent], None] = driver.told if restarts else lambda _: None
    async with asyncio.timeout(WORKLOAD_S), asyncio.TaskGroup() as group:
        driving = group.create_task(driver.run())
        lives = [lived(client, job, f"{job.name}-{mode}", hand_in, told) for job in WORKLOAD]
        ended = await asyncio.gather(*lives)
        driving.cancel()
    say(f"newcomers: {mode}, {driver.restarts} restarts")
    await idle(client)
    return ended


def predicted(measured: Calibrated, mode: str) -> dict[str, float]:
    """What the simulator makes of the same workload."""
    wishes = Wishes(restart=mode == "fifo_restarts")
    content = simulated(measured.iteration_s, measured.costs)
    outcome = Simulation(
        workload_of("newcomers", content, lambda path: path, wishes), MODES[mode][1]
    ).run()
    jobs = {job.name: job for job in WORKLOAD}
    ended = []
    for one in outcome.jobs:
        assert one.fed_at is not None
        at_s = one.job.at_s
        ended.append(Ended(jobs[str(one.job.id)], one.fed_at - at_s, one.ended_at - at_s))
    return figures(ended)


async def measure(client: Client) -> tuple[Calibrated, dict[str, dict[str, float]]]:
    """Everything on one stack, one after the other."""
    say("newcomers: calibration")
    calibrated = await calibrate(client)
    found = {}
    for mode, (policy, _) in MODES.items():
        say(f"newcomers: {mode}")
        await must(client.choose_policy(policy))
        found[mode] = figures(await workload(client, mode))
    return calibrated, found


def tell(found: dict[str, dict[str, float]], calibrated: Calibrated) -> None:
    """All figures."""
    for n, seconds in calibrated.iteration_s.items():
        emit(f"newcomers.calibration.iteration_{n}", seconds, "s")
    for what, seconds in calibrated.costs.items():
        emit(f"newcomers.calibration.{what}", seconds, "s")
    for mode, some in found.items():
        for what, seconds in some.items():
            emit(
                f"newcomers.{mode}.{what}",
                seconds,
                "s",
                ratio=found["fifo"][what] / seconds,
                to="how many times as long it takes under fifo, in the same run",
                workers=WORKERS,
                shards=SHARDS,
                jobs=len(WORKLOAD),
                to_restarts=found["fifo_restarts"][what] / seconds,
                **({"aim": AIMS[what]} if what in AIMS and mode == "eps" else {}),
            )
    for mode, some in found.items():
        for what, seconds in predicted(calibrated, mode).items():
            emit(
                f"newcomers.predicted.{mode}.{what}",
                seconds,
                "s",
                ratio=seconds / some[what],
                to="predicted over measured",
                near=abs(seconds / some[what] - 1) <= NEAR,
            )
    for other in ("fifo", "fifo_restarts"):
        for what, seconds in found["eps"].items():
            if (ratio := found[other][what] / seconds) < SAME:
                emit(
                    f"newcomers.no_gain.{what}",
                    seconds,
                    "s",
                    ratio=ratio,
                    to=f"eps gains nothing here over {other}",
                )


def main() -> None:
    """Run all."""
    arguments(__doc__ or "")
    with private_stack(WORKERS, SHARDS, ELPS_POLICY="fifo") as record:
        calibrated, found = in_stack(record, measure)
    tell(found, calibrated)


if __name__ == "__main__":
    main()
