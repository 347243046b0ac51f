"""What the private broker and the private store share: one server process of ours, started, awaited and ended."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from elps.contracts.errors import SetupError
from elps.local import processes
from elps.local.processes import Handle


class PrivateServer(ABC):
    """A server that keeps its data in one folder and listens on one port of 127.0.0.1."""

    title: ClassVar[str]
    """Its name, for people."""
    start_s: ClassVar[float]
    """How long it may take until it answers."""
    stop_s: ClassVar[float]
    """How long it may take to end in order."""

    def __init__(
        self, folder: Path, port: int, *, stack_id: str, handle: Handle | None, log: Path
    ) -> None:
        self.folder = folder
        self.port = port
        self.stack_id = stack_id
        self.handle = handle  #: the running process; None before the first start
        self.log = log

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.handle is not None and processes.is_alive(self.handle)

    @abstractmethod
    def launch(self) -> Handle:
        """Start the server without waiting for it."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it answers a client."""

    def await_ready(self, timeout_s: float | None = None) -> None:
        """Wait until it answers a client; `SetupError` with the end of its log if it does not."""
        bound_s = self.start_s if timeout_s is None else timeout_s
        ready = processes.wait_until(lambda: not self.alive or self.answers(), bound_s)
        if not ready or not self.alive:
            raise SetupError(
                f"{self.title} did not start on port {self.port} within {bound_s:.0f} s; its log {self.log} ends:\n"
                + "\n".join(processes.tail(self.log))
            )

    def start(self) -> None:
        """Start and wait until it answers."""
        self.launch()
        self.await_ready()

    def stop(self, timeout_s: float | None = None) -> None:
        """End in order: what was acknowledged is on disk afterwards."""
        if self.handle is not None:
            processes.end([self.handle], grace_s=self.stop_s if timeout_s is None else timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self.handle is not None:
            processes.send(self.handle, signal.SIGKILL)
            processes.wait_until(lambda: not self.alive, 5.0)

    def restart(self) -> None:
        """Start again on the same port with the same data, after a stop or a kill; or stop first."""
        self.stop()
        self.start()
