"""Free ports for private servers."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from typing import Self

FIRST_PORT, LAST_PORT = 20000, 32767
"""Below the kernel's ephemeral range (from 32768), so that no outgoing connection takes one meanwhile."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, avoid: Collection[int] = ()) -> list[int]:
    """Distinct ports that nobody listens on now, drawn at random so that two stacks rarely draw the same."""
    chosen: list[int] = []
    while len(chosen) < count:
        port = random.randint(FIRST_PORT, LAST_PORT)
        if port not in chosen and port not in avoid and is_free(port):
            chosen.append(port)
    return chosen


class Reservations:
    """Ports that a stack under way will listen on, so that another one started in the same second takes others.

    A port is free until its server has started, which takes seconds. The reservation is a name in Linux's abstract
    namespace of sockets: seen by every user of the machine, and gone with the process that holds it.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, port: int) -> bool:
        """Reserve a port; False when somebody else has."""
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0elps-port-{port}")
        except OSError:
            mark.close()
            return False
        self._held.append(mark)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Give all of them back: their servers listen by now, or never will."""
        while self._held:
            self._held.pop().close()


def accepts(port: int, host: str = "127.0.0.1", timeout_s: float = 1.0) -> bool:
    """Whether a server listens there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False
