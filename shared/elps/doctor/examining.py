"""Reads everything, side by side: broker, store, monitor, this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path

from elps.client.http import MonitorHttp
from elps.contracts.errors import ElpsError, SetupError
from elps.doctor.broker import read_broker
from elps.doctor.core.readings import MonitorReading, Readings
from elps.doctor.machine import read_machine
from elps.doctor.store import read_store
from elps.local.find import StackInfo, find_stack

DATE_S = 1.0
"""The header tells whole seconds."""


async def examine(cwd: Path, env: Mapping[str, str]) -> Readings:
    """All readings of the stack that commands find from here; of this machine alone when there is none."""
    try:
        stack = find_stack(cwd, env)
    except SetupError as error:
        return Readings(read_machine(None, env), str(error), found=False)
    broker, store, monitor = await asyncio.gather(
        read_broker(stack.amqp_url),
        read_store(stack.redis_url),
        asyncio.to_thread(read_monitor, stack, env.get("ELPS_TOKEN")),
    )
    where = f"in {stack.home}" if stack.home is not None else "by ELPS_AMQP_URL and ELPS_REDIS_URL"
    return Readings(
        read_machine(stack, env), where, found=True, broker=broker, store=store, monitor=monitor
    )


def read_monitor(stack: StackInfo, token: str | None) -> MonitorReading:
    """What there is to know of the monitor, and what it says of the services."""
    url = stack.monitor_url
    if not url:
        return MonitorReading("")
    try:
        report, date = MonitorHttp(url, token=token).health()
    except ElpsError as error:
        return MonitorReading(url, error=str(error))
    now = time.time()
    off_s = None
    if date:
        try:
            off_s = parsedate_to_datetime(date).timestamp() + DATE_S / 2 - now
        except ValueError:
            off_s = None
    parts = report.get("parts")
    return MonitorReading(
        url,
        version=str(report.get("version", "")),
        parts=parts if isinstance(parts, dict) else {},
        clock_off_s=off_s,
        clock_within_s=DATE_S,
    )
