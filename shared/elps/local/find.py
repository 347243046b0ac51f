"""How a command finds the stack that it is to talk to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elps.contracts.errors import SetupError
from elps.local.home import FOLDER
from elps.local.record import FILE, StackRecord, read_record


@dataclass(frozen=True)
class StackInfo:
    """Addresses of a stack."""

    amqp_url: str = field(repr=False)
    """May hold a password: show it through `elps.contracts.urls.masked`."""
    redis_url: str = field(repr=False)
    monitor_url: str | None
    """None when it was found by variables that do not name it."""
    home: Path | None
    """The `.elps` folder of a stack that runs here; None for one found by variables."""

    @property
    def log_dir(self) -> Path | None:
        """Folder with the logs of the services, where they run here."""
        return None if self.home is None else self.home / "logs"


def find_stack(cwd: Path, env: Mapping[str, str]) -> StackInfo:
    """The stack that runs from here: `.elps/` in this folder or above it, else the one that `ELPS_*` names.

    A stack that is stopped counts only to say so. `SetupError` tells what to do when there is none.
    """
    stopped: Path | None = None
    for home in _homes(cwd, env):
        record = read_record(home)
        if record is None:
            continue
        if record.is_up:
            return _info(home, record)
        stopped = stopped or home
    amqp, redis = env.get("ELPS_AMQP_URL"), env.get("ELPS_REDIS_URL")
    if amqp and redis:
        return StackInfo(amqp, redis, env.get("ELPS_MONITOR_URL") or None, None)
    if amqp or redis:
        missing = "ELPS_REDIS_URL" if amqp else "ELPS_AMQP_URL"
        raise SetupError(f"{missing} is not set: ELPS_AMQP_URL and ELPS_REDIS_URL go together")
    if stopped is not None:
        raise SetupError(f"the stack in {stopped} is not running: start it with 'make up'")
    raise SetupError(
        f"no stack was found: there is no running one in {cwd} or above it. Start one with 'make up', or name "
        "another folder's with ELPS_HOME=/path/to/elps/.elps, or set ELPS_AMQP_URL and ELPS_REDIS_URL "
        "(and ELPS_MONITOR_URL) to one that runs elsewhere, or train without any: 'elps run JOB'"
    )


def _homes(cwd: Path, env: Mapping[str, str]) -> list[Path]:
    if named := env.get("ELPS_HOME"):
        return [Path(named).absolute()]
    folders = (cwd.absolute(), *cwd.absolute().parents)
    return [folder / FOLDER for folder in folders if (folder / FOLDER / FILE).is_file()]


def _info(home: Path, record: StackRecord) -> StackInfo:
    return StackInfo(record.amqp_url, record.redis_url, record.monitor_url, home)
