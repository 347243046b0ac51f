"""Gates: places in a task's code at which it asks the test what to do, and waits for the answer.

So a test knows exactly where a trainer is when it is killed, and no task needs a clock or a file to misbehave once.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

WAIT_S = 40.0


@dataclass(frozen=True)
class Ask:
    """A trainer stands at a gate."""

    pid: int
    stage: str
    """``init``, ``data``, ``compute`` or ``evaluate``."""
    samples: list[int]
    """Those of its batch."""
    number: int
    """How many times this gate has been asked, from 1."""


Answerer = Callable[[Ask], str | None]
"""What the task is to do (see `directed.py` in `tasks`); None: no answer, it stands there for ever."""


class Gate:
    """Made by `gate`."""

    def __init__(self, path: Path, answerer: Answerer) -> None:
        self.path, self.answerer = str(path), answerer
        self.asks: list[Ask] = []
        self._changed = asyncio.Condition()
        self._hands: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question."""
        self._hands.append(writer)
        line = await reader.readline()
        if not line:
            return
        async with self._changed:
            ask = Ask(**json.loads(line), number=len(self.asks) + 1)
            self.asks.append(ask)
            self._changed.notify_all()
        answer = self.answerer(ask)
        if answer is not None:
            await self._say(writer, answer)

    async def asked(self, count: int = 1) -> Ask:
        """Wait until the gate was asked so many times."""
        async with asyncio.timeout(WAIT_S):
            async with self._changed:
                await self._changed.wait_for(lambda: len(self.asks) >= count)
        return self.asks[count - 1]

    async def let_through(self, answer: str = "go") -> None:
        """Answer everyone who stands there."""
        for writer in self._hands:
            await self._say(writer, answer)

    async def open(self, answer: str = "go") -> None:
        """Answer everyone who stands there, and from now on all who come."""
        self.answerer = lambda _: answer
        await self.let_through(answer)

    async def _say(self, writer: asyncio.StreamWriter, answer: str) -> None:
        if not writer.is_closing():
            writer.write(answer.encode() + b"\n")
            try:
                await writer.drain()
            except ConnectionError:
                pass  # it is dead
            writer.close()

    def close(self) -> None:
        for writer in self._hands:
            writer.close()


@asynccontextmanager
async def gate(answerer: Answerer = lambda _: None) -> AsyncIterator[Gate]:
    """A gate; by default everyone stands there until it is opened."""
    folder = Path(tempfile.mkdtemp(prefix="elps-gate-"))
    try:
        it = Gate(folder / "g", answerer)
        server = await asyncio.start_unix_server(it.serve, it.path)
        try:
            yield it
        finally:
            server.close()
            it.close()
    finally:
        shutil.rmtree(folder)
