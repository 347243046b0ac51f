"""A sign of life for whoever supervises a service: a file that its event loop touches every few seconds.

It says that the process works, not that the broker, the store or a job is well: a service waits for those, and to
restart it would only cost what it holds. `python -m elps.runtime.alive` ends with 0 while the sign is fresh.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

FILE_SETTING = "ELPS_ALIVE_FILE"
ALIVE_S = 5.0
STALE_S = 30.0
"""A loop that has stood still for so long is hung; a machine that is merely busy lets it through sooner."""


async def keep_alive(path: Path) -> None:
    """Touch the file until cancelled. A disk that takes nothing is told once and ends nothing."""
    failed = False
    while True:
        error = _touch(path)
        if error and not failed:
            log.warning("sign_of_life_not_given", path=str(path), error=error)
        failed = bool(error)
        await asyncio.sleep(ALIVE_S)


def _touch(path: Path) -> str:
    """Microseconds of the loop; why it could not be done, or nothing."""
    try:
        path.touch()
    except OSError as error:
        return str(error)
    return ""


def trouble(env: Mapping[str, str], now: float) -> str:
    """Why the service is not known to be alive; empty when it is."""
    named = env.get(FILE_SETTING)
    if not named:
        return f"{FILE_SETTING} is not set: the service gives no sign of life"
    try:
        age_s = now - Path(named).stat().st_mtime
    except OSError as error:
        return f"no sign of life yet: {error}"
    return "" if age_s < STALE_S else f"no sign of life for {age_s:.0f} s"


if __name__ == "__main__":
    found = trouble(os.environ, time.time())
    if found:
        sys.exit(found)
