"""What tests of several tiers share: a real broker and store of their own, started only when a test asks.

The session's broker and store are shared by all xdist workers of one run; each worker has its own
virtual host and databases there. Tests that kill or restart a server ask for `private_broker` and
`private_store`, which are theirs alone.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
import structlog

from elps.local import processes
from elps.local.binaries import find_broker, find_store
from elps.local.broker import BrokerPorts, PrivateBroker, start_broker
from elps.local.processes import Handle
from elps.local.store import PrivateStore, start_store

# How long an example takes says nothing on a machine that does other things as well. The same examples every time, so
# that a change is judged by what it changes; `make fuzz` draws others.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("same")

HOME = Path(__file__).parent.parent / ".elps"
RUN_VARIABLE = "ELPS_TEST_RUN"
STACK_PREFIX = "elps-tests-"


class _Shared(msgspec.Struct):
    """The servers of this run, written by whichever worker started them first."""

    broker: Handle | None = None
    broker_ports: BrokerPorts | None = None
    store: Handle | None = None
    store_port: int = 0


@pytest.fixture(autouse=True, scope="session")
def loggers_keep_no_configuration() -> Iterator[None]:
    """In a service a logger keeps the one that it is first used under; here others come, and tests that listen."""
    configure = structlog.configure

    def for_now(*arguments: Any, **named: Any) -> None:
        configure(*arguments, **named | {"cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", for_now)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """The controlling process makes the folder that its workers share."""
    if not hasattr(config, "workerinput"):
        _end_leftovers_of_dead_runs()
        own = processes.handle_of("pytest", os.getpid())
        assert own is not None
        folder = tempfile.mkdtemp(prefix=f"{STACK_PREFIX}{own.pid}-{own.start_ticks}-")
        os.environ[RUN_VARIABLE] = folder


def pytest_unconfigure(config: pytest.Config) -> None:
    """The controlling process ends last and stops what any worker started."""
    folder = os.environ.get(RUN_VARIABLE)
    if not hasattr(config, "workerinput") and folder is not None:
        shared = _read(Path(folder))
        if shared.store is not None:
            _store(Path(folder), shared).stop()
        if shared.broker is not None:
            _broker(Path(folder), shared).stop()
        processes.end(processes.belonging_to(Path(folder).name), grace_s=5.0)
        shutil.rmtree(folder, ignore_errors=True)


def _end_leftovers_of_dead_runs() -> None:
    """End the servers of earlier runs that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{STACK_PREFIX}*"):
        pid, start = (int(word) for word in folder.name.removeprefix(STACK_PREFIX).split("-")[:2])
        owner = Handle(name="pytest", pid=pid, start_ticks=start, boot_id=processes.boot_id())
        if not processes.is_alive(owner):
            processes.end(processes.belonging_to(folder.name), grace_s=2.0)
            shutil.rmtree(folder, ignore_errors=True)


def _read(folder: Path) -> _Shared:
    try:
        return msgspec.json.decode((folder / "shared.json").read_bytes(), type=_Shared)
    except FileNotFoundError:
        return _Shared()


@contextmanager
def _updating(folder: Path) -> Iterator[_Shared]:
    """The shared record, under a lock, written back at the end."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shared = _read(folder)
        yield shared
        (folder / "shared.json").write_bytes(msgspec.json.encode(shared))


def _broker(folder: Path, shared: _Shared) -> PrivateBroker:
    assert shared.broker_ports is not None
    return PrivateBroker(
        folder / "broker",
        shared.broker_ports,
        find_broker(HOME),
        stack_id=folder.name,
        handle=shared.broker,
    )


def _store(folder: Path, shared: _Shared) -> PrivateStore:
    return PrivateStore(
        folder / "store",
        shared.store_port,
        find_store(HOME),
        stack_id=folder.name,
        handle=shared.store,
    )


@pytest.fixture(scope="session")
def run_folder() -> Path:
    """Folder of this test run, shared by its xdist workers."""
    return Path(os.environ[RUN_VARIABLE])


@pytest.fixture(scope="session")
def worker_number() -> int:
    """Which xdist worker this is, from 0; 0 without xdist."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture(scope="session")
def shared_broker(run_folder: Path) -> PrivateBroker:
    """The run's broker. Not to be killed: others use it."""
    with _updating(run_folder) as shared:
        if shared.broker is None:
            broker = start_broker(
                run_folder / "broker", binaries=find_broker(HOME), stack_id=run_folder.name
            )
            shared.broker, shared.broker_ports = broker.handle, broker.ports
        return _broker(run_folder, shared)


@pytest.fixture(scope="session")
def shared_store(run_folder: Path) -> PrivateStore:
    """The run's store. Not to be killed: others use it."""
    with _updating(run_folder) as shared:
        if shared.store is None:
            store = start_store(
                run_folder / "store", binaries=find_store(HOME), stack_id=run_folder.name
            )
            shared.store, shared.store_port = store.handle, store.port
        return _store(run_folder, shared)


@pytest.fixture(scope="session")
def amqp_url(shared_broker: PrivateBroker, worker_number: int) -> str:
    """A real broker; the virtual host is this xdist worker's, kept over all its tests."""
    return shared_broker.new_virtual_host(f"worker-{worker_number}")


@pytest.fixture(scope="session")
def redis_url(shared_store: PrivateStore, worker_number: int) -> str:
    """A real store; the database is this xdist worker's, kept over all its tests."""
    return shared_store.url_of(1 + worker_number)


_serial = itertools.count()


@pytest.fixture
def fresh_amqp_url(shared_broker: PrivateBroker, worker_number: int) -> str:
    """A real broker with an empty virtual host of this test's own (40 ms)."""
    return shared_broker.new_virtual_host(f"test-{worker_number}-{next(_serial)}")


@pytest.fixture
def fresh_redis_url(shared_store: PrivateStore, worker_number: int) -> str:
    """A real store with an empty database of this test's own."""
    return shared_store.url_of(100 + worker_number * 200 + next(_serial) % 200)


@pytest.fixture
def private_broker(run_folder: Path, tmp_path: Path) -> Iterator[PrivateBroker]:
    """A broker that this test may stop, kill and restart (about 10 s to start)."""
    broker = start_broker(
        tmp_path / "private-broker", binaries=find_broker(HOME), stack_id=run_folder.name
    )
    yield broker
    broker.stop()


@pytest.fixture
def private_store(run_folder: Path, tmp_path: Path) -> Iterator[PrivateStore]:
    """A store that this test may stop, kill and restart."""
    store = start_store(
        tmp_path / "private-store", binaries=find_store(HOME), stack_id=run_folder.name
    )
    yield store
    store.stop()
