"""Broker and store run out of memory or disk: training goes on, what is wrong is said, and all is right afterwards."""

from __future__ import annotations

import asyncio
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from realstack.checking import assert_rows_fit
from realstack.exhausting import NotPermitted, broker_alarm, slowed, store_out_of
from realstack.site import LOST_S, Site
from realstack.training import Operator, Training

from elps.client.control import Client
from elps.client.http import MonitorHttp
from elps.client.reading import job_of
from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.errors import RetryLater
from elps.contracts.ids import WorkerId
from elps.contracts.telemetry import LogLines
from elps.local.processes import handle_of
from elps.messaging.port import EXCLUSIVE_MAX_LENGTH

GROWTH_BYTES = 48 * 1024 * 1024
"""What a service may use more of after seconds without a server: far more than its telemetry of that time."""
SAYS_S = 30.0
WITHOUT_S = 60.0
ASK_S = 2.0
LOOK_S = 0.2
FLOOD = 15_000
"""Messages: half as many again as an exclusive queue holds."""


def sizes(site: Site) -> dict[str, int]:
    """Bytes of memory by service."""
    return {n: psutil.Process(h.pid).memory_info().rss for n, h in site.record.services.items()}


def assert_no_growth(site: Site, before: Mapping[str, int]) -> None:
    grown = {name: size - before[name] for name, size in sizes(site).items()}
    assert all(growth < GROWTH_BYTES for growth in grown.values()), grown


async def health(site: Site) -> dict[str, Any]:
    """The parts of the monitor's report; it answers 503 with the same while something is wrong."""

    def ask() -> bytes:
        try:
            with urllib.request.urlopen(f"{site.record.monitor_url}/healthz") as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            return error.read()

    parts: dict[str, Any] = msgspec.json.decode(await asyncio.to_thread(ask))["parts"]
    return parts


async def until_health(site: Site, part: str, shows: Callable[[Any], bool]) -> None:
    shown: Any = None
    try:
        async with asyncio.timeout(SAYS_S):
            while True:
                if shows(shown := (await health(site))[part]):
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"{part}: {shown}") from None


async def until_job_says(site: Site, training: Training, *words: str) -> None:
    """Wait until what `elps show` shows gives a reason with all these words."""
    monitor, reason = MonitorHttp(site.record.monitor_url), ""
    try:
        async with asyncio.timeout(SAYS_S):
            while not all(word in reason for word in words):
                reason = job_of(await asyncio.to_thread(monitor.job, training.id)).reason
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"{words} are not in: {reason}") from None


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_training_goes_on_while_the_broker_takes_no_messages(
    site: Site, operator: Operator, kind: str
) -> None:
    training = await operator.submit(
        name=f"alarm-{kind}", iterations=400, checkpoint={"every": 10, "every_s": 0}
    )
    await training.reaches(20)
    before = sizes(site)
    more = operator.document(f"during-{kind}", iterations=10)
    async with broker_alarm(site, kind):
        begun_at = training.newest
        with pytest.raises(RetryLater, match=r"taken no messages for \d+ s: a memory or disk"):
            await Client(operator.bus, timeout_s=ASK_S).submit(more)
        await until_health(site, "broker", lambda p: "taken no messages" in p["detail"])
        await asyncio.sleep(1.5 * LOST_S)
        await training.saved(begun_at + 60, WITHOUT_S)
        for name in ("scheduler", "shard-1", "agent-1"):
            assert "broker_blocks" in site.log(name)
    await until_health(site, "broker", lambda p: p["status"] == "ok")
    assert_no_growth(site, before)

    again = await operator.submit(more)
    await again.equals_the_plain_loop()
    record = await training.equals_the_plain_loop()
    await assert_rows_fit(training, record)
    assert record.terms == 1
    assert record.progress.redone_iterations == 0
    assert not training.told("worker_lost")
    assert len(training.rows) == 400, "rows wait for the broker, up to a bound"


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_training_goes_on_while_the_store_is_full(
    site: Site, operator: Operator, kind: str
) -> None:
    training = await operator.submit(
        name=f"full-{kind}", iterations=500, checkpoint={"every": 10, "every_s": 0}
    )
    await training.reaches(20)
    more = operator.document(f"during-{kind}", iterations=10)
    try:
        async with store_out_of(site, kind) as give_back:
            before, full_at = sizes(site), training.newest
            await training.rises(60)
            written = [e.iteration or 0 for e in training.told("checkpointed")]
            assert max(written, default=0) <= full_at + 11
            says = {
                "memory": ("OutOfMemory", "raise its maxmemory"),
                "disk": ("MISCONF", "free space"),
            }[kind]
            await until_health(site, "store", lambda p: all(s in p["detail"] for s in says))
            # Its leader knows why when its own share is not in, which may have been written before the disk was full.
            await until_job_says(site, training, "is not in the store")
            with pytest.raises(RetryLater, match="the message waits for it"):
                await Client(operator.bus, timeout_s=ASK_S).submit(more)
            assert_no_growth(site, before)
            give_back()
            await until_health(site, "store", lambda p: p["status"] == "ok")
            back_at = training.newest
            await training.until(
                lambda: any((e.iteration or 0) >= back_at for e in training.told("checkpointed")),
                "checkpoint after the store has room",
            )
            record = await training.equals_the_plain_loop()
            await operator.again(more).equals_the_plain_loop()  # it had to wait for the workers
    except NotPermitted as reason:
        pytest.skip(str(reason))
    await assert_rows_fit(training, record)
    assert record.terms == 1
    assert record.progress.redone_iterations == 0


async def test_readers_that_are_ten_times_too_slow_hold_up_nobody(
    site: Site, operator: Operator
) -> None:
    """The monitor, someone who follows a job's lines, and one who asks for events over HTTP and reads none.

    The trainers print far more than they can take: the oldest lines are dropped, and nothing grows.
    """
    training = await operator.submit(name="slow-readers", iterations=400)
    await training.reaches(20)
    address = site.record.monitor_url.removeprefix("http://").split(":")
    _deaf, ask = await asyncio.open_connection(address[0], int(address[1]), limit=1)
    ask.write(b"GET /api/events HTTP/1.1\r\nHost: monitor\r\n\r\n")
    follower = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "elps"),
        *("logs", training.id, "-f"),
        env=dict(site.env) | {"ELPS_HOME": str(site.stack.home)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until_queue(site, f"elps.follow.{training.id}.", lambda n: n >= 2)
        before, begun_at = sizes(site), training.newest
        reader = handle_of("logs", follower.pid)
        assert reader is not None
        async with slowed(site.handles["monitor"], reader):
            lines = LogLines(job=training.id, worker=WorkerId("w"), at=0.0, lines=["x" * 1000])
            for _ in range(FLOOD):
                await operator.bus.publish(
                    topology.TELEMETRY, topology.log_key(training.id), encode(lines), confirm=False
                )
            await training.rises(40)
            held = await queue_lengths(site, "elps.")
            assert max(held.values()) <= EXCLUSIVE_MAX_LENGTH, held
        assert_no_growth(site, before)
        assert training.newest > begun_at + 40
        monitor = MonitorHttp(site.record.monitor_url)
        async with asyncio.timeout(SAYS_S):
            while True:
                shown = job_of(await asyncio.to_thread(monitor.job, training.id))
                if shown.state.ended or (shown.iteration or 0) > training.newest - 60:
                    break
                await asyncio.sleep(LOOK_S)
    finally:
        ask.close()
        follower.kill()
        await follower.wait()
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert not training.told("worker_lost")
    assert len(training.rows) == 400


async def queue_lengths(site: Site, prefix: str) -> dict[str, int]:
    """Messages by queue that nobody was handed yet: these are bounded."""
    shown = await asyncio.to_thread(site.broker.control, "list_queues", "name", "messages_ready")
    found = (line.split() for line in shown.splitlines())
    return {words[0]: int(words[1]) for words in found if words and words[0].startswith(prefix)}


async def until_queue(site: Site, prefix: str, enough: Callable[[int], bool]) -> None:
    """Wait until so many queues have names that begin so."""
    async with asyncio.timeout(SAYS_S):
        while True:
            if enough(len(await queue_lengths(site, prefix))):
                return
            await asyncio.sleep(LOOK_S)
