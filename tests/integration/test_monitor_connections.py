"""Clients that say nothing, say half of it, or do not listen: none of them keeps a connection of the monitor's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from monitor_served import WAIT_S, Stack, running

from elps.monitor import connections
from elps.monitor.connections import BoundedProtocol

SOON_S = 1.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", SOON_S)
    monkeypatch.setattr(connections, "STALLED_S", SOON_S)
    monkeypatch.setattr(connections, "LOOK_S", SOON_S / 10)


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running() as made:
        yield made


def _request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nX-Half: ",
        _request("/api/jobs") + b"GET /api/",
        b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nonly this",
    ],
    ids=["nothing", "half", "whole and half", "no body"],
)
async def test_one_that_does_not_ask_is_let_go_however_it_trickles(
    stack: Stack, said: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.monitor.port)
    writer.write(said)

    async def trickle() -> None:
        while True:
            writer.write(b"x" if said else b"")
            await asyncio.sleep(SOON_S / 10)

    trickling = asyncio.create_task(trickle())
    try:
        async with asyncio.timeout(WAIT_S):
            while await _more(reader):
                pass
    finally:
        trickling.cancel()
        writer.close()


async def _more(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except ConnectionError:
        return b""


async def test_one_that_asks_now_and_then_or_waits_for_events_is_kept(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.monitor.port)
    events = await asyncio.open_connection("127.0.0.1", stack.monitor.port)
    events[1].write(_request("/api/events"))
    async with asyncio.timeout(WAIT_S):
        assert b"200" in await events[0].readline()
        for _ in range(12):
            writer.write(_request("/api/jobs"))
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(size)
            await asyncio.sleep(SOON_S / 4)
    assert stack.monitor.readers.open_now == 1
    for one in (writer, events[1]):
        one.close()


BODY = b"x" * 65536


async def _endless(scope: object, receive: object, send: object) -> None:
    assert callable(send)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": BODY, "more_body": True})
        _endless.sent += len(BODY)  # type: ignore[attr-defined]
        await asyncio.sleep(0)


async def test_one_that_does_not_listen_is_let_go_and_a_slow_one_is_not() -> None:
    _endless.sent = 0  # type: ignore[attr-defined]
    config = uvicorn.Config(
        _endless, http=BoundedProtocol, log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        async with asyncio.timeout(WAIT_S):
            while not server.started:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(_request("/"))
            for _ in range(12):
                await reader.readexactly(2 * 1024 * 1024)
                await asyncio.sleep(SOON_S / 4)
            assert server.server_state.connections
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            while server.server_state.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            writer.close()
            server.should_exit = True
            await serving
