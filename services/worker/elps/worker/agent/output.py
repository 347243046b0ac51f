"""Reads what one trainer prints, without ever letting it hurt the agent."""

from __future__ import annotations

import asyncio
import os
from typing import get_args

import structlog

from elps.runtime.service import Clock
from elps.worker.agent.log_file import LogFile
from elps.worker.core.commands import TrainerKey
from elps.worker.core.printed import Printed, Stream

log = structlog.get_logger(__name__)

CHUNK_BYTES = 64 * 1024
WINDOW_S = 0.05
WINDOW_BYTES = 2 * 1024 * 1024
"""Read per window and trainer at most, 40 MiB/s: whoever prints faster waits in its own `print`."""
DRAIN_BYTES = 1024 * 1024
"""The most that a pipe can hold of a trainer that is gone."""


class TrainerOutput:
    """The reading ends of a trainer's standard output and error, owned by this object."""

    def __init__(
        self, key: TrainerKey, output: int, errors: int, clock: Clock, file: LogFile | None
    ) -> None:
        """Begin to read at once."""
        self.key = key
        self._clock = clock
        self._file = file
        self._printed = Printed(clock.monotonic())
        #: Those that are not at their end.
        self._open: dict[Stream, int] = dict(zip(get_args(Stream), (output, errors), strict=True))
        self._window_bytes = 0
        self._paused: asyncio.TimerHandle | None = None
        self._resume()

    def take(self) -> list[str]:
        """The lines since the last call; they are in the log file then."""
        lines = self._printed.take()
        if self._file and lines:
            self._file.write(lines)
        return lines

    def finish(self) -> list[str]:
        """The last lines, after `read_out`; the log file is closed then."""
        lines = self.take()
        if self._file:
            self._file.close()
        return lines

    def read_out(self) -> None:
        """Read what is left and close: the trainer is gone."""
        self._pause()
        for stream, descriptor in list(self._open.items()):
            left = DRAIN_BYTES
            while stream in self._open and left > 0:
                if (count := self._read(stream, descriptor)) is None:
                    break
                left -= count
            if stream in self._open:
                self._end(stream)
        if self._paused:
            self._paused.cancel()

    def say(self, line: str) -> None:
        """Add a line of the agent's to the trainer's."""
        self._printed.say(f"[elps: {line}]")

    def last_errors(self, count: int) -> str:
        """The last lines of standard error."""
        return "\n".join(self._printed.last_lines("stderr", count))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        self._window_bytes, self._paused = 0, None
        loop = asyncio.get_running_loop()
        for stream, descriptor in self._open.items():
            loop.add_reader(descriptor, self._on_readable, stream, descriptor)

    def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in self._open.values():
            loop.remove_reader(descriptor)

    def _on_readable(self, stream: Stream, descriptor: int) -> None:
        self._window_bytes += self._read(stream, descriptor) or 0
        if self._window_bytes >= WINDOW_BYTES and self._paused is None:
            self._pause()
            self._paused = asyncio.get_running_loop().call_later(WINDOW_S, self._resume)

    def _read(self, stream: Stream, descriptor: int) -> int | None:
        """Read one chunk; None when there is nothing now."""
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None
        if chunk:
            self._printed.feed(stream, chunk, self._clock.monotonic())
        else:
            self._end(stream)
        return len(chunk)

    def _end(self, stream: Stream) -> None:
        self._printed.end(stream)
        descriptor = self._open.pop(stream)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
