"""A TCP proxy of ours, to cut, freeze and slow down connections to a real broker or store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit, urlunsplit

import pytest

PIECE_BYTES = 64 * 1024


class TcpProxy:
    """Forwards to one address. `url` is the target's with the proxy's port."""

    def __init__(self, target_url: str) -> None:
        self._target = urlsplit(target_url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.flowing = (
            asyncio.Event()
        )  #: while clear, bytes are held back and no connection is closed
        self.flowing.set()
        self.delay_s = 0.0  #: for each piece, in each direction
        self.connections = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user, at, _ = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{user}{at}127.0.0.1:{port}"))

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=PIECE_BYTES)

    def cut(self) -> None:
        """Abort every connection there is; new ones are taken."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(
                self._target.hostname, self._target.port
            )
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(PIECE_BYTES):
                await asyncio.sleep(self.delay_s)
                await self.flowing.wait()
                sink.write(piece)
                await sink.drain()
        sink.close()
        self._writers.discard(sink)


@pytest.fixture
async def proxy_to() -> AsyncIterator[Callable[[str], Awaitable[TcpProxy]]]:
    """Starts proxies to URLs; all end with the test."""
    proxies: list[TcpProxy] = []

    async def start(url: str) -> TcpProxy:
        proxy = TcpProxy(url)
        await proxy.start()
        proxies.append(proxy)
        return proxy

    yield start
    for proxy in proxies:
        await proxy.stop()
