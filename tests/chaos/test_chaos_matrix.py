"""Every kind of process ends in order or is killed, once or five times, while a job trains through it."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest
from realstack.checking import assert_rows_fit
from realstack.site import LOST_S, Site
from realstack.training import Operator

ENDS = {"stopped": signal.SIGTERM, "killed": signal.SIGKILL}
TIMES = {"once": 1, "five times": 5}
WHO = {
    "agent": "agent-1",
    "shard": "shard-1",
    "scheduler": "scheduler",
    "monitor": "monitor",
    "broker": "rabbitmq",
    "store": "redis",
}
SHORT = {("shard", "stopped", "once"), ("shard", "killed", "five times")}
"""The others are long: most take 10 s, five starts of a broker a minute."""
LEAVES_S = 60.0
BOUNCES_S = 300
KEEP = {"agent", "scheduler", "monitor", "broker", "store"}
"""Their ends, however many, let a job keep its term and all it has computed."""

CASES = [
    pytest.param(
        who,
        how,
        often,
        marks=[pytest.mark.timeout(BOUNCES_S)]
        + ([] if (who, how, often) in SHORT else [pytest.mark.long]),
        id=f"{who} {how} {often}",
    )
    for who in WHO
    for how in ENDS
    for often in TIMES
]


@pytest.mark.parametrize(("who", "how", "often"), CASES)
async def test_a_job_trains_through_the_end_of(
    site: Site, operator: Operator, rng: random.Random, who: str, how: str, often: str
) -> None:
    """It is started again after a moment each time, and may end before all others have noticed that it is back."""
    training = await operator.submit(
        name=f"{who}-{how}-{TIMES[often]}",
        iterations=150 if TIMES[often] == 1 else 300,
        checkpoint={"every": 10, "every_s": 0},
    )
    await training.reaches(rng.randrange(5, 30))
    name = WHO[who]
    for time in range(TIMES[often]):
        if time and name == "rabbitmq" and ENDS[how] is signal.SIGTERM:
            await site.broker_is_back()  # it does not hear a SIGTERM while it starts
        await site.kill(name, number=ENDS[how], timeout_s=LEAVES_S)
        await asyncio.sleep(rng.choice([rng.uniform(0, 0.5), rng.uniform(0, 1.3 * LOST_S)]))
        await site.start(name)
        await asyncio.sleep(rng.uniform(0, 1.0))
    if name == "rabbitmq":
        await site.broker_is_back()
    record = await training.equals_the_plain_loop()
    await assert_rows_fit(training, record)
    if who in KEEP:
        assert record.terms == 1
        assert record.progress.redone_iterations == 0
