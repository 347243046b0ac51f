"""A blocking connection that sends and receives whole frames.

One thread reads a connection; any thread may send, under the connection's lock, so frames never mix. A read waits
for the *beginning* of a frame as long as `idle_s` says; from then on every piece must come within `PROGRESS_S`. A peer
whose machine is gone without a word is found by TCP keep-alive and by the bound on unacknowledged data.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson

from elps.contracts.errors import ProtocolError, RetryLater
from elps.wire.frames import HEADER_BYTES, Header, unpack

Buffer = memoryview | bytearray | bytes

PROGRESS_S = 20.0
"""A frame that was begun makes progress within this time, or the connection is given up."""
SLICE_S = 1.0
"""Waits are counted in slices, none as more than that: while this process stood still, its peer may have, too."""
DEAD_PEER_MS = 10_000
"""Data that a peer's machine does not acknowledge for this long ends the connection."""
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
"""Measured: 1 to 4 MB give the full speed of a loopback copy."""
META_PIECE_BYTES = 64 * 1024
"""Room for a frame's JSON is made as it comes: a header can promise 16 MiB of it and bring none."""


class ConnectionEnded(RetryLater):
    """The peer closed the connection, or it was lost."""


class Connection:
    """A connected socket that carries frames. `peer` names the other side in errors."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._sock = sock
        self._head = bytearray(HEADER_BYTES)
        self._send_lock = threading.RLock()
        self._read_lock = threading.RLock()
        self._close_lock = threading.Lock()
        self._closed = False
        self._mute = False  #: the peer takes nothing any more; what it had said can still be read
        self._piece_s = 0.0  #: receive time-out set on the socket
        self.between: Callable[[], None] | None = None
        """Asked between the slices of a wait; what it raises ends the wait, and the connection with it."""
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        self._timeout(socket.SO_SNDTIMEO, min(SLICE_S, PROGRESS_S))

    def _timeout(self, option: int, seconds: float) -> None:
        whole = int(seconds)
        self._sock.setsockopt(
            socket.SOL_SOCKET, option, struct.pack("@ll", whole, int((seconds - whole) * 1e6))
        )

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, header: Header, meta: Any = None, body: Buffer | None = None) -> None:
        """Send one frame. `meta` is written as JSON; `body` is sent as it is."""
        tail = orjson.dumps(meta) if meta is not None else b""
        size = len(body) if body is not None else 0
        if len(tail) != header.meta_bytes or size != header.body_bytes:
            header = Header(
                header.kind, header.epoch, header.flags, header.status, header.partition, header.iteration,
                header.interval, header.ticket, len(tail), size,
            )  # fmt: skip
        head = header.pack() + tail
        self.send_raw([head, body] if body is not None else [head])

    def send_raw(self, pieces: list[Buffer]) -> None:
        """Send the bytes of one or more whole frames."""
        with self._send_lock:
            if self._closed or self._mute:
                raise ConnectionEnded(f"the connection to {self.peer} is closed")
            try:
                try:
                    sent = self._sock.sendmsg(pieces)
                except BlockingIOError:
                    sent = 0
                if sent < sum(map(len, pieces)):
                    self._send_rest(pieces, sent)
            except OSError as error:
                self._mute = True
                raise ConnectionEnded(f"the connection to {self.peer} is lost: {error}") from None

    def _send_rest(self, pieces: list[Buffer], sent: int) -> None:
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
                continue
            view, sent, waited_s = memoryview(piece)[sent:], 0, 0.0
            while len(view):
                began = time.monotonic()
                try:
                    taken = self._sock.send(view)
                except BlockingIOError:
                    taken = 0
                view = view[taken:]
                waited_s = 0.0 if taken else waited_s + min(time.monotonic() - began, SLICE_S)
                if waited_s >= PROGRESS_S * 0.99:
                    self.close()
                    raise ConnectionEnded(f"{self.peer} has read nothing for {PROGRESS_S:.0f} s")
                if len(view):
                    self._look()

    def _look(self) -> None:
        """Between two slices of a wait."""
        if self.between is not None:
            try:
                self.between()
            except BaseException:
                self.close()
                raise

    # --- receiving --------------------------------------------------------------------------------------------------

    def receive(self, idle_s: float | None = None) -> Header:
        """Wait for the next frame and return its header; meta and body must be taken next.

        `idle_s`: raise `TimeoutError` when no frame begins within this time; None waits as long as the peer lives.
        """
        piece_s = PROGRESS_S if idle_s is None else min(max(idle_s, 0.001), SLICE_S)
        if piece_s != self._piece_s:
            try:
                self._timeout(socket.SO_RCVTIMEO, piece_s)
            except OSError as error:
                raise self._lost(error) from None
            self._piece_s = piece_s
        view = memoryview(self._head)
        got, waited_s = -1, 0.0
        while got < 0:
            began = time.monotonic()
            try:
                with self._read_lock:
                    got = self._sock.recv_into(view, HEADER_BYTES)
            except (BlockingIOError, TimeoutError):
                waited_s += min(time.monotonic() - began, piece_s)
                if idle_s is not None and waited_s >= idle_s * 0.99:
                    raise TimeoutError(f"{self.peer} has sent nothing for {idle_s:g} s") from None
                self._look()
            except OSError as error:
                raise self._lost(error) from None
        if got == 0:
            self.close()
            raise ConnectionEnded(f"{self.peer} has closed the connection")
        if got < HEADER_BYTES:
            self._fill(view[got:])
        return unpack(view)

    def _lost(self, error: OSError) -> ConnectionEnded:
        """What a failed read means; one that was closed here fails with whatever its descriptor says then."""
        closed, what = self._closed, f"the connection to {self.peer} is"
        self.close()
        return ConnectionEnded(f"{what} closed" if closed else f"{what} lost: {error}")

    def pending(self) -> bool:
        """Whether there is something to receive now, the end of the connection included."""
        poll = select.poll()
        with self._read_lock:
            if self._closed:
                return True
            poll.register(self._sock, select.POLLIN)
            return bool(poll.poll(0))

    def meta(self, header: Header) -> dict[str, Any]:
        """Read a frame's JSON part: always an object."""
        data = bytearray()
        while (left := header.meta_bytes - len(data)) > 0:
            piece = bytearray(min(left, META_PIECE_BYTES))
            self._fill(memoryview(piece))
            data += piece
        try:
            value = orjson.loads(data) if data else {}
        except orjson.JSONDecodeError as error:
            raise ProtocolError(
                f"{header.kind.name} from {self.peer}: meta is not JSON: {error}"
            ) from None
        if not isinstance(value, dict):
            raise ProtocolError(f"{header.kind.name} from {self.peer}: meta is not an object")
        return value

    def body(self, header: Header, into: memoryview) -> None:
        """Read a frame's body into a buffer of exactly its size."""
        if header.body_bytes != len(into):
            raise ProtocolError(
                f"{header.kind.name} from {self.peer}: {header.body_bytes} bytes of body, expected {len(into)}"
            )
        self._fill(into)

    def discard(self, header: Header, scratch: memoryview) -> None:
        """Read a frame's body and forget it."""
        left = header.body_bytes
        while left:
            piece = scratch[: min(left, len(scratch))]
            self._fill(piece)
            left -= len(piece)

    def _fill(self, view: memoryview) -> None:
        waited_s = 0.0
        while len(view):
            began = time.monotonic()
            try:
                with self._read_lock:
                    got = self._sock.recv_into(view, len(view), socket.MSG_WAITALL)
            except (BlockingIOError, TimeoutError):
                got = -1
            except OSError as error:
                raise self._lost(error) from None
            if got == 0:
                self.close()
                raise ConnectionEnded(f"{self.peer} closed the connection in the middle of a frame")
            if got > 0:
                view, waited_s = view[got:], 0.0
                continue
            waited_s += min(time.monotonic() - began, self._piece_s or PROGRESS_S)
            if waited_s >= PROGRESS_S * 0.99:
                self.close()
                raise ConnectionEnded(
                    f"{self.peer} stopped in the middle of a frame {PROGRESS_S:.0f} s ago"
                )
            self._look()

    def close(self) -> None:
        """End the connection; a thread that waits in it wakes with `ConnectionEnded`."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        # The descriptor is given back once nobody is inside a call: its number may go to another connection at once.
        with self._send_lock, self._read_lock:
            self._sock.close()

    @property
    def closed(self) -> bool:
        """Whether this side has given the connection up, or cannot send on it any more."""
        return self._closed or self._mute
