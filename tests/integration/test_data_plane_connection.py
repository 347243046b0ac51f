"""Connections over loopback: whole frames or none, every wait bounded, a close that wakes whoever waits."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elps.contracts.errors import ProtocolError
from elps.wire import connection as module
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import HEADER_BYTES, MAX_META_BYTES, MAX_PART_BYTES, Header, Kind

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import descriptors, eventually, running, sockets

META = {"samples": 7, "text": "☃"}
BODY = bytes(range(256)) * 4


def body_of(connection: Connection, header: Header) -> bytes:
    into = bytearray(header.body_bytes)
    connection.body(header, memoryview(into))
    return bytes(into)


def frame_of(connection: Connection) -> tuple[Header, dict[str, Any], bytes]:
    header = connection.receive(idle_s=10)
    return header, connection.meta(header), body_of(connection, header)


def send_for_ever(connection: Connection) -> None:
    while True:
        connection.send(Header(Kind.PART), body=bytes(MAX_PART_BYTES))


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    near, far = sockets()
    both = Connection(near, "far"), Connection(far, "near")
    yield both
    for connection in both:
        connection.close()


@pytest.fixture
def raw() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection and the bare socket at its other end."""
    near, far = sockets()
    connection = Connection(near, "far")
    yield connection, far
    connection.close()
    far.close()


def wire_bytes(meta: Any, body: bytes) -> bytes:
    near, far = sockets()
    with far:
        connection = Connection(near, "far")
        connection.send(Header(Kind.PUSH, partition=3), meta, body)
        connection.close()
        return b"".join(iter(lambda: far.recv(65536), b""))


def test_frames_in_pieces_of_any_size_are_put_together(
    raw: tuple[Connection, socket.socket],
) -> None:
    connection, far = raw
    data = wire_bytes(META, BODY) * 20
    rng = np.random.default_rng(5)

    def dribble() -> None:
        at = 0
        while at < len(data):
            size = int(rng.choice([1, 2, 3, 70, 71, 72, 73, 500, 5000]))
            far.sendall(data[at : at + size])
            at += size

    with running(dribble):
        for _ in range(20):
            header, meta, body = frame_of(connection)
            assert (header.kind, header.partition, meta, body) == (Kind.PUSH, 3, META, BODY)


def test_a_frame_far_larger_than_the_socket_buffers_arrives_whole(
    raw: tuple[Connection, socket.socket],
) -> None:
    connection, far = raw
    connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = np.random.default_rng(1).bytes(MAX_PART_BYTES)
    got = bytearray()

    def read_slowly() -> None:
        while len(got) < HEADER_BYTES + len(body):
            got.extend(far.recv(10_000))

    with running(read_slowly):
        connection.send(Header(Kind.PART), body=body)
    assert bytes(got[HEADER_BYTES:]) == body


@pytest.mark.parametrize("part", ["header", "meta", "body"])
def test_a_frame_cut_off_at_any_byte_is_never_delivered(part: str) -> None:
    data = wire_bytes({"a": 1}, b"0123456789")
    bounds = {"header": (1, HEADER_BYTES), "meta": (HEADER_BYTES, HEADER_BYTES + 7)}
    low, high = bounds.get(part, (HEADER_BYTES + 7, len(data)))
    for size in range(low, high):
        near, far = sockets()
        connection = Connection(near, "far")
        far.sendall(data[:size])
        far.close()
        with pytest.raises(ConnectionEnded, match="in the middle of a frame"):
            frame_of(connection)
        assert connection.closed


def test_the_end_between_two_frames_is_told_apart_from_one_in_the_middle(
    raw: tuple[Connection, socket.socket],
) -> None:
    connection, far = raw
    far.close()
    with pytest.raises(ConnectionEnded, match="far has closed the connection"):
        connection.receive(idle_s=5)


def test_a_reset_connection_is_said_to_be_lost(raw: tuple[Connection, socket.socket]) -> None:
    connection, far = raw
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    with pytest.raises(ConnectionEnded, match="lost"):
        connection.receive(idle_s=5)
    with pytest.raises(ConnectionEnded, match="closed"):
        connection.send(Header(Kind.BEAT))


def test_one_that_was_closed_here_is_said_to_be_closed(
    ends: tuple[Connection, Connection],
) -> None:
    near, _ = ends
    near.close()
    for bound_s in (None, 3.0):
        with pytest.raises(ConnectionEnded, match="the connection to far is closed"):
            near.receive(idle_s=bound_s)


@pytest.mark.parametrize("idle_s", [0.0, 1e-9, 0.05, 0.2])
def test_silence_ends_after_the_idle_time_and_the_connection_lives_on(
    ends: tuple[Connection, Connection], idle_s: float
) -> None:
    near, far = ends
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="has sent nothing"):
        near.receive(idle_s=idle_s)
    assert idle_s * 0.9 <= time.monotonic() - began < idle_s + 2
    far.send(Header(Kind.BEAT, ticket=4))
    assert near.receive(idle_s=5).ticket == 4


def test_the_idle_time_may_be_longer_than_the_progress_time(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = ends
    monkeypatch.setattr(module, "PROGRESS_S", 0.05)
    threading.Timer(0.4, lambda: far.send(Header(Kind.BEAT))).start()
    assert near.receive(idle_s=5).kind is Kind.BEAT
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        near.receive(idle_s=0.3)
    assert time.monotonic() - began >= 0.25


@pytest.mark.parametrize("sent", [0, HEADER_BYTES + 100])
def test_while_the_machine_stands_still_nobody_falls_silent(
    raw: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """Each look at the time is an hour after the one before; the peer goes on after some."""
    connection, far = raw
    frame, looks = wire_bytes(None, BODY), iter(range(1_000))

    def monotonic() -> float:
        look = next(looks)
        if look == 12:
            far.sendall(frame[sent:])
        return look * 3_600.0

    monkeypatch.setattr(module, "SLICE_S", 0.02)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    far.sendall(frame[:sent])
    assert body_of(connection, connection.receive(idle_s=20)) == BODY
    assert next(looks) > 12


@pytest.mark.parametrize("sent", [1, HEADER_BYTES - 1, HEADER_BYTES + 100])
def test_a_peer_that_stops_within_a_frame_is_given_up_after_the_progress_time(
    raw: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    connection, far = raw
    monkeypatch.setattr(module, "PROGRESS_S", 0.2)
    far.sendall(wire_bytes(None, BODY)[:sent])
    began = time.monotonic()
    with pytest.raises(ConnectionEnded, match="stopped in the middle of a frame"):
        body_of(connection, connection.receive(idle_s=60))
    assert 0.1 < time.monotonic() - began < 5
    assert connection.closed


def test_a_slow_peer_that_makes_progress_is_not_given_up(
    raw: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, far = raw
    monkeypatch.setattr(module, "PROGRESS_S", 0.3)
    data, pause = wire_bytes(None, b"x" * 10), threading.Event()

    def slowly() -> None:
        for at in range(0, len(data), 9):
            far.sendall(data[at : at + 9])
            pause.wait(0.1)  # far above nothing, far below the limit; ten of them are above it

    with running(slowly):
        assert body_of(connection, connection.receive(idle_s=5)) == b"x" * 10


def test_a_peer_that_does_not_read_ends_the_connection_after_the_progress_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROGRESS_S", 0.3)
    near, far = sockets()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection = Connection(near, "far")
    began = time.monotonic()
    with pytest.raises(ConnectionEnded, match="far has read nothing"):
        send_for_ever(connection)
    assert time.monotonic() - began < 5
    assert connection.closed
    far.close()


@pytest.mark.parametrize("waits_for", ["a frame", "the rest of one", "room to send"])
def test_who_waits_is_asked_between_and_may_end_the_wait(
    monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.02)
    near, far = sockets()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection, looks = Connection(near, "far"), iter(range(10**6))

    def between() -> None:
        if next(looks) == 3:
            raise KeyError("enough")

    connection.between = between
    began = time.monotonic()
    if waits_for == "the rest of one":
        far.sendall(wire_bytes(None, BODY)[:-1])
    waits = send_for_ever if waits_for == "room to send" else frame_of
    with pytest.raises(KeyError):
        waits(connection)
    assert time.monotonic() - began < 10
    assert connection.closed, "a part of a frame must not be taken for the next"
    far.close()


def test_a_close_wakes_a_waiting_reader_and_a_blocked_sender(
    ends: tuple[Connection, Connection],
) -> None:
    near, _ = ends
    ended: list[str] = []

    def read() -> None:
        with pytest.raises(ConnectionEnded):
            near.receive()
        ended.append("reader")

    def write() -> None:
        with pytest.raises(ConnectionEnded):
            send_for_ever(near)
        ended.append("sender")

    with running(read, write):
        time.sleep(0.2)  # both are in the kernel by then; when not, they find the connection closed
        began = time.monotonic()
        near.close()
        eventually(lambda: len(ended) == 2)
        assert time.monotonic() - began < 10


def test_a_descriptor_is_not_given_back_while_somebody_is_inside_a_call() -> None:
    """Else its number could be another connection's by the time the call reaches the kernel."""
    inside, leave = threading.Event(), threading.Event()

    class Held:
        """Stands for a socket whose thread has been stopped just before the call to the kernel."""

        closed = False

        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock

        def recv_into(self, *_: Any) -> int:
            inside.set()
            leave.wait(10)
            assert not self.closed
            return 0

        def close(self) -> None:
            self.closed = True
            self.sock.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.sock, name)

    near, far = sockets()
    held = Held(near)
    connection = Connection(held, "far")  # type: ignore[arg-type]

    def read() -> None:
        with pytest.raises(ConnectionEnded):
            connection.receive()

    with running(read, lambda: (inside.wait(10), connection.close())):
        inside.wait(10)
        eventually(lambda: connection.closed)
        assert not held.closed
        leave.set()
    assert held.closed
    far.close()


def test_closing_from_many_threads_at_once_ends_and_leaves_no_descriptor() -> None:
    before = descriptors()
    for _ in range(50):
        near, far = sockets()
        connection = Connection(near, "far")

        def read(connection: Connection = connection) -> None:
            with pytest.raises(ConnectionEnded):
                connection.receive()

        def write(connection: Connection = connection) -> None:
            with pytest.raises(ConnectionEnded):
                send_for_ever(connection)

        with running(read, write, connection.close, connection.close):
            pass
        far.close()
    assert descriptors() <= before


def test_frames_of_several_senders_are_never_mixed(ends: tuple[Connection, Connection]) -> None:
    near, far = ends
    near._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    count, senders = 150, 4

    def send(who: int) -> None:
        rng = np.random.default_rng(who)
        for n in range(count):
            size = int(rng.choice([0, 1, 1000, 60_000]))
            meta = {"n": n} if n % 3 == 0 else None
            near.send(Header(Kind.PUSH, partition=who, ticket=n), meta, bytes([who]) * size)

    seen = dict.fromkeys(range(senders), 0)
    with running(*(lambda w=w: send(w) for w in range(senders))):
        for _ in range(count * senders):
            header, meta, body = frame_of(far)
            assert header.ticket == seen[header.partition]
            assert meta == ({"n": header.ticket} if header.ticket % 3 == 0 else {})
            assert set(body) <= {header.partition}
            seen[header.partition] += 1


@pytest.mark.parametrize(
    ("meta", "text"),
    [(b"{", "not JSON"), (b"\xff\xff", "not JSON"), (b"[1]", "not an object"), (b"7", "not an")],
)
def test_meta_that_is_no_object_is_refused(
    raw: tuple[Connection, socket.socket], meta: bytes, text: str
) -> None:
    connection, far = raw
    far.sendall(Header(Kind.READY, meta_bytes=len(meta)).pack() + meta)
    with pytest.raises(ProtocolError, match=text):
        connection.meta(connection.receive(idle_s=5))


def test_meta_of_any_size_is_read_whole(ends: tuple[Connection, Connection]) -> None:
    near, far = ends
    meta = {"x": "y" * 1_000_000}
    with running(lambda: far.send(Header(Kind.READY), meta)):
        header = near.receive(idle_s=5)
        assert near.meta(header) == meta
    far.send(Header(Kind.BEAT))
    assert near.receive(idle_s=5).kind is Kind.BEAT


def test_no_room_is_made_for_what_a_header_promises_and_does_not_bring(
    raw: tuple[Connection, socket.socket],
) -> None:
    connection, far = raw
    far.sendall(Header(Kind.READY, meta_bytes=MAX_META_BYTES).pack() + b'{"a":' * 1000)
    far.close()
    header = connection.receive(idle_s=5)
    tracemalloc.start()
    try:
        with pytest.raises(ConnectionEnded, match="in the middle of a frame"):
            connection.meta(header)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < MAX_META_BYTES / 16


def test_a_body_of_another_size_is_refused_unread(ends: tuple[Connection, Connection]) -> None:
    near, far = ends
    far.send(Header(Kind.PUSH), body=b"12345678")
    with pytest.raises(ProtocolError, match="8 bytes of body, expected 16"):
        near.body(near.receive(idle_s=5), memoryview(bytearray(16)))


def test_a_discarded_body_leaves_the_next_frame_in_place(
    ends: tuple[Connection, Connection],
) -> None:
    near, far = ends
    far.send(Header(Kind.PUSH), body=bytes(1001))
    far.send(Header(Kind.BEAT, ticket=9))
    near.discard(near.receive(idle_s=5), memoryview(bytearray(100)))
    assert near.receive(idle_s=5).ticket == 9
