"""What the benchmarks share: how a measurement is printed, and the bare sockets that elps is compared with.

Every figure on a shared machine drifts; a ratio to something measured in the same minute does not. So the peers here
are asked in turns with what is measured, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any, Self

import numpy as np
import psutil

from elps.runtime import logs
from elps.wire.connection import SOCKET_BUFFER_BYTES

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # of the processes that are started; this one multiplies nothing

MIB = 1024 * 1024
_ORDER = struct.Struct(
    "<cqqq"
)  # what to do; bytes (or times); bytes of a piece; bytes of the buffer


def arguments(about: str) -> argparse.Namespace:
    """The command line of a benchmark; `full` asks for the long form."""
    parser = argparse.ArgumentParser(description=about)
    logs.configure("bench", "WARNING")  # to standard error: the measurements alone are printed
    parser.add_argument("--full", action="store_true", help="more repeats and sizes; takes minutes")
    return parser.parse_args()


def emit(
    name: str,
    value: float,
    unit: str,
    *,
    ratio: float | None = None,
    to: str = "",
    **conditions: Any,
) -> None:
    """Print one measurement as a JSON line. `ratio` is the value over that of `to`, or as `to` says."""
    line: dict[str, Any] = {"name": name, "value": _short(value), "unit": unit}
    if ratio is not None:
        line |= {"ratio": _short(ratio), "to": to}
    conditions["cores"] = len(os.sched_getaffinity(0))
    conditions["load"] = round(os.getloadavg()[0], 1)
    conditions["python"] = platform.python_version()
    line["conditions"] = {
        k: _short(v) if isinstance(v, float) else v for k, v in conditions.items()
    }
    print(json.dumps(line), flush=True)


def _short(value: float) -> float:
    """Four digits."""
    if not math.isfinite(value) or not value:
        return value
    return round(value, max(0, 3 - math.floor(math.log10(abs(value)))))


def median(values: Sequence[float]) -> float:
    """Middle value."""
    return statistics.median(values)


def p90(values: Sequence[float]) -> float:
    """The value that 9 of 10 do not exceed."""
    return float(np.percentile(np.asarray(values), 90))


def say(text: str) -> None:
    """Progress, beside the measurements."""
    print(text, file=sys.stderr, flush=True)


def in_turns(times: int, measures: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Take every measure once, then every one again, and so on; the first round is not counted."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(times + 1):
        for name, measure in measures.items():
            value = measure()
            if turn:
                found[name].append(value)
    return found


def memory_bytes(pid: int) -> tuple[int, int]:
    """Resident memory of a process, and its proportional share of what it shares with others."""
    info = psutil.Process(pid).memory_full_info()
    return int(info.rss), int(info.pss)


class BarePeer:
    """Another process at the end of a bare loopback connection: what the machine gives to anyone.

    The buffers of the sockets are those of elps. Nothing is framed, checked or added.
    """

    def __enter__(self) -> Self:
        listening = socket.socket()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            listening.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        self._process: BaseProcess = get_context("spawn").Process(
            target=_serve, args=(listening.getsockname()[1],), daemon=True
        )
        self._process.start()
        listening.settimeout(30.0)
        self._sock, _ = listening.accept()
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()

    def round_trip(self, times: int, size: int) -> float:
        """Seconds for a message of `size` bytes there and back; median."""
        self._sock.sendall(_ORDER.pack(b"P", times, size, size))
        message, into, took = bytes(size), memoryview(bytearray(size)), []
        for _ in range(times):
            began = time.perf_counter()
            self._sock.sendall(message)
            fill(self._sock, into)
            took.append(time.perf_counter() - began)
        return median(took)

    def give(self, data: memoryview, piece: int, buffer: int) -> float:
        """Seconds to send all of it in pieces, until the peer says that it has received it.

        The peer receives into a buffer of `buffer` bytes, over and over when it is smaller than the data.
        """
        self._sock.sendall(_ORDER.pack(b"G", len(data), piece, buffer))
        fill(self._sock, memoryview(bytearray(1)))  # the peer's buffer is there
        began = time.perf_counter()
        _send(self._sock, data, piece)
        fill(self._sock, memoryview(bytearray(1)))
        return time.perf_counter() - began

    def take(self, into: memoryview, piece: int) -> float:
        """Seconds to receive all of it in pieces, from the moment of asking for it."""
        self._sock.sendall(_ORDER.pack(b"T", len(into), piece, 0))
        fill(self._sock, memoryview(bytearray(1)))
        began = time.perf_counter()
        self._sock.sendall(b"!")
        _receive(self._sock, len(into), piece, into)
        return time.perf_counter() - began


def fill(sock: socket.socket, view: memoryview) -> None:
    """Receive until a buffer is full."""
    while len(view):
        got = sock.recv_into(view)
        if not got:
            raise ConnectionResetError("the peer is gone")
        view = view[got:]


def _send(sock: socket.socket, data: memoryview, piece: int) -> None:
    for at in range(0, len(data), piece):
        sock.sendall(data[at : at + piece])


def _receive(sock: socket.socket, size: int, piece: int, buffer: memoryview) -> None:
    """Receive `size` bytes, at most a piece at a time, into a buffer that is begun again when it is full."""
    left, at = size, 0
    while left:
        got = sock.recv_into(buffer[at : at + min(piece, left)])
        if not got:
            raise ConnectionResetError("the peer is gone")
        left -= got
        at = at + got if at + got < len(buffer) else 0


def _serve(port: int) -> None:
    """The other process."""
    sock = socket.socket()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    sock.connect(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = memoryview(bytearray(_ORDER.size))
    buffers: dict[int, memoryview] = {}
    while True:
        try:
            fill(sock, head)
        except ConnectionResetError:
            return
        what, size, piece, buffer = _ORDER.unpack(head)
        length = buffer or size
        if what != b"P" and length not in buffers:
            buffers[length] = np.ones(length, np.uint8).data  # touched: no page faults later
        if what == b"P":
            message = memoryview(bytearray(piece))
            for _ in range(size):
                fill(sock, message)
                sock.sendall(message)
        elif what == b"G":
            sock.sendall(b"!")
            _receive(sock, size, piece, buffers[length])
            sock.sendall(b"!")
        else:
            sock.sendall(b"!")
            fill(sock, memoryview(bytearray(1)))
            _send(sock, buffers[length], piece)
