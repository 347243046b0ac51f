"""What a stack keeps about itself in ``.elps/stack.json``, so that the next command can go on from there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from elps.contracts.errors import SetupError
from elps.local.broker import BrokerPorts
from elps.local.processes import Handle, boot_id

FILE = "stack.json"


class StackRecord(msgspec.Struct, kw_only=True):
    """One stack. Ports are chosen once and kept, so that addresses stay the same."""

    stack_id: str
    """Marks this stack's processes in their environment."""
    running: bool = False
    """Set before the first process starts and cleared after the last has ended: a crash leaves it set."""
    boot_id: str = ""
    """The boot of the machine in which it was started."""
    broker_ports: BrokerPorts | None = None
    """None where ELPS_AMQP_URL names a broker that is not ours."""
    store_port: int | None = None
    monitor_host: str = "127.0.0.1"
    monitor_port: int = 0
    amqp_url: str = ""
    redis_url: str = ""
    broker: Handle | None = None
    store: Handle | None = None
    services: dict[str, Handle] = {}
    """By name: ``scheduler``, ``monitor``, ``shard-1``, ``agent-1`` …"""
    paths: dict[str, str] = {}
    """Where its agents take code and data from besides the examples, as `elps.local.paths` keeps it."""

    @property
    def monitor_url(self) -> str:
        """Where the monitor answers."""
        return f"http://{self.monitor_host}:{self.monitor_port}"

    @property
    def is_up(self) -> bool:
        """Whether it was started in this boot and not stopped since."""
        return self.running and self.boot_id == boot_id()


def new_record() -> StackRecord:
    """A stack that never ran."""
    return StackRecord(stack_id=f"elps-{secrets.token_hex(6)}")


def read_record(home: Path) -> StackRecord | None:
    """The stack kept in this folder; None when there is none."""
    path = home / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StackRecord)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise SetupError(
            f"{path} cannot be read ({error}); it was written by another version of elps or damaged. "
            "End what runs there with the version that started it, then remove the file"
        ) from None


def write_record(home: Path, record: StackRecord) -> None:
    """Keep the record; readers see the old or the new one, never a part. Only its owner may read it."""
    home.mkdir(parents=True, exist_ok=True)
    draft = home / f".{FILE}.{os.getpid()}"
    draft.touch(mode=0o600)
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    draft.replace(home / FILE)
