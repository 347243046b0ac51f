"""A private Redis of our own: loopback only, append-only file, never evicting."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from elps.local import processes
from elps.local.binaries import StoreBinaries, find_store
from elps.local.ports import free_ports
from elps.local.private_server import PrivateServer
from elps.local.processes import PART_VARIABLE, STACK_VARIABLE, Handle

START_S = 20.0
"""An empty Redis is there in 0.1 s; loading an append-only file of gigabytes takes longer."""
STOP_S = 20.0
DATABASES = 4096
"""Numbered databases, so that each test can have one of its own; an empty one costs nothing."""


class PrivateStore(PrivateServer):
    """A Redis server that keeps its data in one folder."""

    title = "Redis"
    start_s = START_S
    stop_s = STOP_S

    def __init__(
        self,
        folder: Path,
        port: int,
        binaries: StoreBinaries,
        *,
        stack_id: str = "",
        handle: Handle | None = None,
        log: Path | None = None,
    ) -> None:
        folder = folder.absolute()
        super().__init__(
            folder, port, stack_id=stack_id, handle=handle, log=log or folder / "redis.log"
        )
        self.binaries = binaries

    @property
    def url(self) -> str:
        """Where clients connect, database 0."""
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """Where clients connect for one of the numbered databases."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def launch(self) -> Handle:
        """Start the server without waiting for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        argv = [str(self.binaries.server)]
        argv += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        # Bound to the loopback as it is, of which its protected mode takes the one address for all.
        argv += ["--protected-mode", "no"]
        argv += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        argv += [
            "--maxmemory-policy",
            "noeviction",
            "--databases",
            str(DATABASES),
            "--daemonize",
            "no",
        ]
        self.handle = processes.spawn(
            "redis", argv, env=self._environment(), log=self.log, cwd=self.folder
        )
        return self.handle

    def _environment(self) -> Mapping[str, str]:
        env = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        env |= {"HOME": str(self.folder), STACK_VARIABLE: self.stack_id, PART_VARIABLE: "store"}
        if self.binaries.library_path:
            env["LD_LIBRARY_PATH"] = self.binaries.library_path
        return env

    def answers(self) -> bool:
        """Whether a client would be answered now."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def start_store(
    folder: Path,
    *,
    port: int | None = None,
    binaries: StoreBinaries | None = None,
    stack_id: str = "",
) -> PrivateStore:
    """Start a private Redis with its data in `folder` and wait until it answers."""
    store = PrivateStore(
        folder, port or free_ports(1)[0], binaries or find_store(), stack_id=stack_id
    )
    try:
        store.start()
    except BaseException:
        store.stop()
        raise
    return store
