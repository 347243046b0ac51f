"""The world as the services find it: time, threads, sockets, chance and signals are those of a simulation.

The modules of elps take these from modules of the standard library (`threading.Lock()`, `time.monotonic()`), so the
names of those modules are what is replaced, in all of elps, for as long as a simulation runs.
"""

from __future__ import annotations

import concurrent.futures._base
import contextlib
import functools
import importlib
import os
import random
import secrets
import select
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from simulation.clockwork import UNIX_S, VirtualLoop, current
from simulation.network import Network, Polls, Sockets
from simulation.outside import AtHome
from simulation.threads import Threads
from simulation.trainers import Output, Unnoticing, ZygoteLink, counting_job

from elps.optim import warm_up
from elps.scheduler.core.core import Core

BESIDE = ("elps.cli", "elps.local", "elps.monitor", "elps.client.http")
"""No part of a simulation."""
NEEDED = (
    "elps.scheduler.app",
    "elps.psshard.app",
    "elps.worker.app",
    "elps.worker.trainer.main",
    "elps.messaging.memory",
    "elps.storage.checkpoints",
    "elps.client.control",
)

Change = tuple[Any, str, Any]
"""Whose attribute is replaced, its name, and by what."""


class Time:
    """Stands in for the module `time`."""

    def __init__(self, loop: VirtualLoop, threads: Threads) -> None:
        self._loop, self.sleep = loop, threads.sleep

    def monotonic(self) -> float:
        return self._loop.now

    perf_counter = monotonic

    def time(self) -> float:
        return UNIX_S + self._loop.now


class Chance:
    """Stands in for `secrets`, `uuid` and the chance in `os`; also for what of `os` is a trainer's own process."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def token_hex(self, size: int) -> str:
        return self._rng.randbytes(size).hex()

    def randbits(self, bits: int) -> int:
        return self._rng.getrandbits(bits)

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)

    def urandom(self, size: int) -> bytes:
        return self._rng.randbytes(size)

    def getpid(self) -> int:
        return 1

    def kill(self, _pid: int, number: int) -> None:
        main = current().main
        if main is not None:
            main.interrupt(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class Signals:
    """Stands in for the module `signal`."""

    SIGTERM = signal.SIGTERM

    def signal(self, number: int, handler: Callable[..., object]) -> None:
        current().handlers[number] = handler


warmed_up = functools.cache(warm_up)
"""Once for all simulations."""


def _checked(handle: Callable[..., Any]) -> Callable[..., Any]:
    """The scheduler's books must never contradict themselves."""

    def checked(core: Core, *args: Any) -> Any:
        commands = handle(core, *args)
        core.check_invariants()
        return commands

    return checked


@functools.cache
def _uses(module: ModuleType) -> list[tuple[ModuleType, str]]:
    """Where in elps a module of the standard library is named."""
    for name in NEEDED:
        importlib.import_module(name)
    return [
        (user, attribute)
        for name, user in sorted(sys.modules.items())
        if name.startswith("elps.") and not name.startswith(BESIDE)
        for attribute, value in sorted(vars(user).items())
        if value is module
    ]


@contextlib.contextmanager
def injected(
    loop: VirtualLoop, threads: Threads, network: Network, more: Sequence[Change] = ()
) -> Iterator[None]:
    """Have elps live in a simulation, and changed where a rule is to be left out."""
    chance = Chance(loop.rng.getrandbits(64))
    in_place_of: dict[ModuleType, Any] = {
        time: Time(loop, threads),
        threading: threads,
        socket: Sockets(network),
        select: Polls(),
        secrets: chance,
        uuid: chance,
    }
    changes: list[Change] = [
        (m, name, new) for old, new in in_place_of.items() for m, name in _uses(old)
    ]
    module = importlib.import_module
    changes += [
        (concurrent.futures._base, "threading", threads),
        (module("elps.wire.handshake"), "os", chance),
        (module("elps.worker.trainer.main"), "os", chance),
        (module("elps.worker.trainer.main"), "signal", Signals()),
        (module("elps.worker.trainer.main"), "open_job", counting_job),
        (module("elps.worker.trainer.main"), "Noticing", Unnoticing),
        (module("elps.worker.trainer.main"), "_say", lambda text: None),
        (module("elps.worker.agent.trainers"), "ZygoteLink", ZygoteLink),
        (module("elps.worker.agent.trainers"), "TrainerOutput", Output),
        (module("elps.worker.agent.trainers"), "rss_bytes", lambda pid=0: 0),
        (module("elps.worker.app"), "rss_bytes", lambda pid=0: 0),
        (module("elps.messaging.memory"), "Receiver", AtHome),
        (module("elps.psshard.app"), "rss_bytes", lambda pid=0: 0),
        (module("elps.psshard.app"), "warm_up", warmed_up),
        (Core, "handle", _checked(Core.handle)),
    ]
    changes += more
    before = [(m, name, getattr(m, name)) for m, name, _ in changes]
    switch_s = sys.getswitchinterval()
    for m, name, new in changes:
        setattr(m, name, new)
    try:
        yield
    finally:
        for m, name, old in before:
            setattr(m, name, old)
        sys.setswitchinterval(switch_s)
