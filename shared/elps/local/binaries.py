"""The programs of RabbitMQ and Redis: those on the machine, or Debian packages unpacked for us alone.

`ELPS_BINARIES` forces one way: ``system`` (only what is installed) or ``unpack`` (only the private copy).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from elps.contracts.errors import SetupError
from elps.local.home import elps_home
from elps.local.unpack import Unpacked, install_with_apt, unpack, unpacked

BROKER_PACKAGE, STORE_PACKAGE = "rabbitmq-server", "redis-server"

SYSTEM_SBIN = (
    "/usr/lib/rabbitmq/bin",
    "/opt/rabbitmq/sbin",
    "/usr/local/opt/rabbitmq/sbin",
    "/opt/homebrew/opt/rabbitmq/sbin",
)
"""Folders of the real scripts; those in /usr/sbin switch to the user `rabbitmq` and are of no use here."""

WHAT_TO_INSTALL = (
    "Neither was found on this machine, nor could be fetched. Do one of these:\n"
    "  - sudo apt-get install -y --no-install-recommends rabbitmq-server redis-server\n"
    "    (or whatever your system calls RabbitMQ 3.10 or later and Redis 7 or later)\n"
    "  - set ELPS_AMQP_URL and ELPS_REDIS_URL to servers that you have\n"
    "  - train without either, in one process tree: elps run JOB.toml"
)


@dataclass(frozen=True)
class BrokerBinaries:
    """Where RabbitMQ's programs are."""

    sbin: Path
    """Folder of the real `rabbitmq-server` and `rabbitmqctl`."""
    epmd: Path
    """Erlang's port mapper."""
    erl_call: Path | None
    """Calls a function in a running node without starting an Erlang machine; not in every installation."""
    path: tuple[Path, ...]
    """To be put before PATH, so that the scripts find the right `erl`."""
    library_path: str
    """LD_LIBRARY_PATH, or empty."""
    way: str
    """Which way they were found, for people."""


@dataclass(frozen=True)
class StoreBinaries:
    """Where Redis' server is."""

    server: Path
    library_path: str
    way: str


Found = TypeVar("Found", BrokerBinaries, StoreBinaries)


def find_broker(home: Path | None = None, env: Mapping[str, str] = os.environ) -> BrokerBinaries:
    """RabbitMQ as it is on this machine now; `SetupError` says what to do if it is not."""
    return _found(_broker_on_system, _broker_in, BROKER_PACKAGE, home, env)


def find_store(home: Path | None = None, env: Mapping[str, str] = os.environ) -> StoreBinaries:
    """Redis as it is on this machine now; `SetupError` says what to do if it is not."""
    return _found(_store_on_system, _store_in, STORE_PACKAGE, home, env)


@dataclass(frozen=True)
class Provided:
    """What `provide` found or fetched; None for what was not asked for."""

    broker: BrokerBinaries | None
    store: StoreBinaries | None


def provide(
    home: Path,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = print,
    wanted: Collection[str] = (BROKER_PACKAGE, STORE_PACKAGE),
) -> Provided:
    """Those wanted, fetched if they are missing: unpacked under `home`, else by apt when we are root."""
    missing = []
    for find, package in ((find_broker, BROKER_PACKAGE), (find_store, STORE_PACKAGE)):
        try:
            if package in wanted:
                find(home, env)
        except SetupError:
            missing.append(package)
    if missing:
        if _mode(env) == "system":
            raise SetupError(
                f"{' and '.join(missing)}: not installed, and ELPS_BINARIES=system allows no other way"
            )
        _fetch(missing, home, env, say)
    return Provided(
        find_broker(home, env) if BROKER_PACKAGE in wanted else None,
        find_store(home, env) if STORE_PACKAGE in wanted else None,
    )


def _fetch(
    missing: list[str], home: Path, env: Mapping[str, str], say: Callable[[str], None]
) -> None:
    say(
        f"{' and '.join(missing)} not found on this machine: fetching Debian packages into {home / 'binaries'}"
    )
    try:
        unpack(home, missing, say)
        return
    except SetupError as error:
        reason = str(error)
    if os.geteuid() == 0 and _mode(env) != "unpack" and shutil.which("apt-get"):
        say(f"that did not work ({reason}); installing with apt-get")
        install_with_apt(missing)
        return
    raise SetupError(f"{' and '.join(missing)}: {reason}\n{WHAT_TO_INSTALL}")


def _mode(env: Mapping[str, str]) -> str:
    mode = env.get("ELPS_BINARIES", "") or "any"
    if mode not in ("any", "system", "unpack"):
        raise SetupError(f"ELPS_BINARIES={mode!r}: expected 'system' or 'unpack'")
    return mode


def _found(
    on_system: Callable[[], Found | None],
    inside: Callable[[Unpacked], Found | None],
    package: str,
    home: Path | None,
    env: Mapping[str, str],
) -> Found:
    mode = _mode(env)
    if mode != "unpack" and (found := on_system()):
        return found
    private = unpacked(home or elps_home(Path.cwd(), env)) if mode != "system" else None
    if private and (found := inside(private)):
        return found
    raise SetupError(
        f"{package} was not found (ELPS_BINARIES={mode}); 'make setup' fetches it.\n{WHAT_TO_INSTALL}"
    )


def _broker_on_system() -> BrokerBinaries | None:
    erl, epmd = shutil.which("erl"), shutil.which("epmd")
    if not erl or not epmd:
        return None
    folders = [Path(folder) for folder in SYSTEM_SBIN]
    if server := shutil.which("rabbitmq-server"):
        folders.append(Path(server).resolve().parent)
    for sbin in folders:
        if all(
            (sbin / name).is_file() for name in ("rabbitmq-server", "rabbitmqctl", "rabbitmq-env")
        ):
            call = Path(erl).resolve().parent / "erl_call"
            return BrokerBinaries(
                sbin,
                Path(epmd),
                call if call.is_file() else None,
                (),
                "",
                f"installed on this machine ({sbin})",
            )
    return None


def _store_on_system() -> StoreBinaries | None:
    for name in ("redis-server", "valkey-server"):
        if server := shutil.which(name):
            return StoreBinaries(Path(server), "", f"installed on this machine ({server})")
    return None


def _broker_in(private: Unpacked) -> BrokerBinaries | None:
    sbin, erlang = private.root / "usr/lib/rabbitmq/bin", private.root / "usr/lib/erlang/bin"
    call = erlang / "erl_call"
    if not (sbin / "rabbitmq-server").is_file() or not (erlang / "erl").is_file():
        return None
    return BrokerBinaries(
        sbin,
        erlang / "epmd",
        call if call.is_file() else None,
        (erlang, private.root / "usr/bin"),
        private.library_path,
        f"Debian packages unpacked in {private.root}",
    )


def _store_in(private: Unpacked) -> StoreBinaries | None:
    server = private.root / "usr/bin/redis-server"
    if not server.is_file():
        return None
    return StoreBinaries(
        server, private.library_path, f"Debian packages unpacked in {private.root}"
    )
