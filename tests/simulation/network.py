"""The network of a simulation: sockets in memory, whose bytes take a while, and which can be cut off.

`Sockets` stands in for the modules `socket` and `select` as far as the data plane uses them. What is sent over one
connection comes in its order, each piece after a delay of its own. Between a process that is cut off and all others
nothing comes through: what is sent waits, and after `DEAD_S` both sides give the connection up, as TCP does here.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket as real
import struct
from collections import deque
from typing import Any

from simulation.clockwork import Process, VirtualLoop, current
from simulation.threads import Thread, Threads

DELAY_S = 2e-3
"""The longest way of a piece, where the network is not slow."""
DEAD_S = 10.0
"""As `elps.wire.connection` sets TCP's bounds."""
BACKLOG = 256
POLLIN = 1
_END = None  #: in place of a piece: the other side says nothing more


class Network:
    """Who listens where, and who is cut off."""

    def __init__(self, loop: VirtualLoop, threads: Threads, slowness: float) -> None:
        self.loop, self.threads, self._slowness = loop, threads, slowness
        self.rng = random.Random(loop.rng.random())
        self.listening: dict[tuple[str, int], Socket] = {}
        self.open: dict[Socket, None] = {}
        self.cut: dict[str, float] = {}  #: places, and since when
        self._port = 20_000
        loop.connect = self._probe

    def delay_s(self) -> float:
        """Of a piece: most are quick, few are late."""
        most_s = DELAY_S if self.rng.random() < 0.2 else DELAY_S / 10
        return most_s * self.rng.random() * self._slowness

    def port(self) -> int:
        self._port += 1
        return self._port

    def apart(self, one: Process, other: Process) -> bool:
        return one.place != other.place and (one.place in self.cut or other.place in self.cut)

    def cut_off(self, place: str) -> None:
        """From the data plane, in both directions."""
        since = self.cut[place] = self.loop.now
        self.loop.call_later(DEAD_S, self._give_up, place, since)

    def reset(self, place: str) -> None:
        """All connections between a place and others are lost."""
        self._break_off(place, errno.ECONNRESET)

    def _give_up(self, place: str, since: float) -> None:
        if self.cut.get(place) == since:
            self._break_off(place, errno.ETIMEDOUT)

    def _break_off(self, place: str, error: int) -> None:
        for sock in list(self.open):
            if sock.peer is not None:
                places = sock.process.place, sock.peer.process.place
                if place in places and places[0] != places[1]:
                    sock.break_off(error)

    def join(self, place: str) -> None:
        """It is there again."""
        self.cut.pop(place, None)
        for sock in list(self.open):
            sock.send_held()

    async def _probe(self, host: str, port: int) -> bool:
        asker = current()
        await asyncio.sleep(self.delay_s())
        listener = self.listening.get((host, port))
        if listener is not None and self.apart(asker, listener.process):
            await asyncio.Event().wait()  # its caller has a bound
        return listener is not None


class Socket:
    """As `socket.socket`, for one thread that receives and any that send."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network, self.process = network, process
        self.peer: Socket | None = None
        self.address = ("", 0)
        self._timeout_s: float | None = None
        self._receive_s: float | None = None  #: SO_RCVTIMEO
        self._in = bytearray()
        self._ended = self._shut = self._closed = False
        self._error = 0
        self._reader: Thread | None = None
        self._waiting: deque[Socket] = deque()  #: of a listener: who has connected
        self._due = 0.0  #: when the newest piece arrives
        self._held: list[bytes | None] = []  #: pieces that do not come through
        network.open[self] = None
        process.at_death.append(self.close)

    # --- as a socket --------------------------------------------------------------------------------------------------

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "closed")
        if (level, option) == (real.SOL_SOCKET, real.SO_RCVTIMEO):
            whole, micro = struct.unpack("@ll", value)
            self._receive_s = whole + micro / 1e6

    def bind(self, address: tuple[str, int]) -> None:
        self.address = (address[0], address[1] or self.network.port())

    def listen(self, _backlog: int) -> None:
        self.network.listening[self.address] = self

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def accept(self) -> tuple[Socket, Any]:
        while not self._waiting:
            if self._closed or self._shut:
                raise OSError(errno.EBADF, "closed")
            self._park(None)
        return self._waiting.popleft(), None

    def connect(self, address: tuple[str, int]) -> None:
        network, me = self.network, self.network.threads.me()
        assert me is not None
        until = network.loop.now + (self._timeout_s or 120.0)
        me.park(network.delay_s())
        listener = network.listening.get(address)
        if listener is not None and network.apart(self.process, listener.process):
            while network.loop.now < until and network.apart(self.process, listener.process):
                me.park(0.2)
            if network.apart(self.process, listener.process):
                raise TimeoutError("timed out")
            listener = network.listening.get(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        self.peer = Socket(network, listener.process)
        self.peer.peer = self
        listener._waiting.append(self.peer)
        listener._wake()

    def send(self, data: Any) -> int:
        self._may_send()
        piece = bytes(data)
        if piece:
            self._transmit(piece)
        return len(piece)

    def sendall(self, data: Any) -> None:
        self.send(data)

    def sendmsg(self, pieces: list[Any]) -> int:
        return self.send(b"".join(pieces))

    def recv(self, size: int) -> bytes:
        data = bytearray(size)
        got = self.recv_into(memoryview(data), size)
        return bytes(data[:got])

    def recv_into(self, view: memoryview, size: int, flags: int = 0) -> int:
        """BlockingIOError past SO_RCVTIMEO, TimeoutError past `settimeout`."""
        wanted = size if flags & real.MSG_WAITALL else 1
        bound_s = self._timeout_s if self._timeout_s is not None else self._receive_s
        until = None if not bound_s else self.network.loop.now + bound_s
        while len(self._in) < wanted and not (self._ended or self._shut or self._error):
            if self._closed:
                raise OSError(errno.EBADF, "closed")
            left = None if until is None else until - self.network.loop.now
            if left is not None and left <= 0:
                if self._in:
                    break
                late = TimeoutError("timed out") if self._timeout_s is not None else None
                raise late or BlockingIOError(errno.EAGAIN, "nothing came")
            self._park(left)
        if not self._in and self._error and not self._shut:
            raise OSError(self._error, errno.errorcode[self._error])
        got = min(size, len(self._in))
        view[:got] = self._in[:got]
        del self._in[:got]
        return got

    def shutdown(self, _how: int) -> None:
        if self._shut or self._closed or (self.peer is None and not self.listens):
            raise OSError(errno.ENOTCONN, "not connected")
        self._shut = True
        if self.peer is not None:
            self._transmit(_END)
        self._wake()

    def close(self) -> None:
        if self._closed:
            return
        if self.listens:
            del self.network.listening[self.address]
            for sock in self._waiting:
                sock.close()
        if self.peer is not None and not self._shut:
            self._transmit(_END)
        self._closed = True
        if self.close in self.process.at_death:
            self.process.at_death.remove(self.close)
        self.network.open.pop(self, None)
        self._wake()

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def listens(self) -> bool:
        return self.network.listening.get(self.address) is self

    @property
    def readable(self) -> bool:
        """Whether there is something to receive now, the end included."""
        return bool(self._in) or self._ended or self._shut or bool(self._error)

    def _may_send(self) -> None:
        if self._error or self._shut or self._closed or self.peer is None:
            raise BrokenPipeError(self._error or errno.EPIPE, "Broken pipe")

    def _park(self, timeout_s: float | None) -> None:
        self._reader = self.network.threads.me()
        assert self._reader is not None, "the event loop waits for a socket"
        try:
            self._reader.park(timeout_s)
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.wake()

    def _transmit(self, piece: bytes | None) -> None:
        assert self.peer is not None
        network = self.network
        if self._held or network.apart(self.process, self.peer.process):
            self._held.append(piece)
            return
        arrives = network.loop.now + network.delay_s()
        self._due = max(self._due + 1e-6, arrives)
        network.loop.call_exactly_at(self._due, self.peer._arrive, piece)

    def send_held(self) -> None:
        """What could not come through does now, unless it still cannot."""
        held, self._held = self._held, []
        for piece in held:
            self._transmit(piece)

    def _arrive(self, piece: bytes | None) -> None:
        if piece is _END:
            self._ended = True
        elif self._closed:
            assert self.peer is not None
            self.peer.break_off(errno.ECONNRESET)
        elif not self._shut:
            self._in += piece
        self._wake()

    def break_off(self, error: int) -> None:
        """The connection is lost; what has come can still be read."""
        self._error = self._error or error
        self._held.clear()
        self._wake()


class Sockets:
    """Stands in for the module `socket`."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def socket(self, _family: int = real.AF_INET, _kind: int = real.SOCK_STREAM) -> Socket:
        return Socket(self._network, current())

    def gethostname(self) -> str:
        return current().host

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)


class Polls:
    """Stands in for the module `select`."""

    POLLIN = POLLIN

    def poll(self) -> _Poll:
        return _Poll()


class _Poll:
    def register(self, sock: Socket, _events: int) -> None:
        self._sock = sock

    def poll(self, _timeout: int) -> list[Any]:
        return [self._sock] if self._sock.readable else []
