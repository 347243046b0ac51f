"""Free ports for private servers."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

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


def accepts(port: int, host: str = "127.0.0.1", timeout_s: float = 1.0) -> bool:
    """Whether a server listens there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False
