"""The data plane under test: pairs of sockets, a proxy that cuts at a chosen byte, one shard's share behind a listener.

It lies beside the tiers, for all of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import JobId, PartitionId, ShardId, WorkerId
from elps.contracts.job import Batch, JobDocument, Optimizer
from elps.contracts.messages import Address, StartTrainer
from elps.psshard.assignment import Assignment
from elps.psshard.core.inheriting import History
from elps.psshard.listener import Listener
from elps.psshard.member import Member
from elps.psshard.serving import PullConnection, PushConnection
from elps.stream.interval import Interval
from elps.wire.connection import Connection
from elps.wire.frames import Status
from elps.wire.handshake import Hello
from elps.worker.trainer.shards import Pushing, Shards

SECRET = "s3cret"
JOB = JobId("job")
EPOCH = Epoch(Term(1, 99), 0)
PIECE_BYTES = 256 * 1024
SOON_S = 10.0
"""Everything that a test waits for comes within this time."""


def eventually(holds: Callable[[], bool], within_s: float = SOON_S, what: str = "it") -> None:
    """Wait until something that other threads bring about holds."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come about within {within_s:g} s"
        time.sleep(0.005)


def sockets() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


@contextlib.contextmanager
def running(*targets: Callable[[], Any]) -> Iterator[None]:
    """Run functions in threads beside the test; what one of them raises is raised here at the end."""
    errors: list[BaseException] = []

    def guard(target: Callable[[], Any]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001  # handed to the test
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(t,), daemon=True) for t in targets]
    for thread in threads:
        thread.start()
    yield
    deadline = time.monotonic() + 30
    for thread in threads:
        while thread.is_alive() and not errors:
            assert time.monotonic() < deadline, "a thread of the test did not end within 30 s"
            thread.join(0.05)
    if errors:
        raise errors[0]


def descriptors() -> int:
    """Open file descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Proxy:
    """Forwards TCP to one port. Each connection may be cut after so many bytes in a direction, or held back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.flowing = threading.Event()  #: while clear, bytes are held back
        self.flowing.set()
        self.flowing_up = threading.Event()  #: while clear, those towards the target are
        self.flowing_up.set()
        self.cut_up: list[
            int
        ] = []  #: bytes towards the target after which the next connections are cut
        self.cut_down: list[
            int
        ] = []  #: bytes from the target after which the next connections are cut
        self.connections = 0
        self.refusing = False  #: whether new connections are cut at once
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._server.accept()[0]
            except OSError:
                return
            self.connections += 1
            if self.refusing:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
                up = self.cut_up.pop(0) if self.cut_up else None
                down = self.cut_down.pop(0) if self.cut_down else None
            threading.Thread(target=self._pair, args=(near, far, up, down), daemon=True).start()

    def _pair(
        self, near: socket.socket, far: socket.socket, up: int | None, down: int | None
    ) -> None:
        back = threading.Thread(
            target=self._pump, args=(far, near, down, self.flowing), daemon=True
        )
        back.start()
        self._pump(near, far, up, self.flowing_up)
        back.join()
        near.close()
        far.close()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        limit: int | None,
        flowing: threading.Event,
    ) -> None:
        try:
            while limit is None or limit > 0:
                piece = source.recv(PIECE_BYTES if limit is None else min(limit, PIECE_BYTES))
                if not piece:
                    break
                self.flowing.wait()
                flowing.wait()
                sink.sendall(piece)
                limit = None if limit is None else limit - len(piece)
        except OSError:
            pass
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._open.discard(sock)

    def cut(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            open_, self._open = self._open, set()
        for sock in open_:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut everything and take nothing more."""
        self.flowing.set()
        self.flowing_up.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()


def document(**fields: Any) -> JobDocument:
    """A job of a hundred iterations of 4 samples; the step is the plain gradient mean."""
    defaults: dict[str, Any] = {
        "task": "linear",
        "iterations": 100,
        "batch": Batch(global_=4),
        "optimizer": Optimizer(name="sgd", lr=1.0),
    }
    return JobDocument(**(defaults | fields))


def cut_into(sizes: list[int]) -> list[tuple[int, int, int]]:
    """Consecutive partitions of these sizes, in elements."""
    ends = np.cumsum([0, *sizes]).tolist()
    return [(n, ends[n], ends[n + 1]) for n in range(len(sizes))]


def assignment(partitions: list[tuple[int, int, int]], **fields: Any) -> Assignment:
    """Iterations of 4 samples, from version 0."""
    defaults: dict[str, Any] = {
        "samples": 4,
        "batch": 4,
        "granule": 1,
        "iterations": 100,
        "start": 0,
        "checkpoint": None,
        "history": History(EPOCH, "", partitions[-1][2] if partitions else 0),
        "skips": [],
    }
    return Assignment(partitions=partitions, **(defaults | fields))


def bring_zeros(member: Member, epoch: Epoch, partitions: list[tuple[int, int, int]]) -> None:
    """Version 0 is all zeros."""
    dtype = np.dtype(member.document.dtype)
    for number, lo, hi in partitions:
        member.bring(epoch, PartitionId(number), {"values": np.zeros(hi - lo, dtype)}, 0)


class Shard:
    """One member behind a listener, without a leader: the test says what a leader would."""

    def __init__(self, doc: JobDocument, partitions: list[tuple[int, int, int]], **fields: Any):
        self.member = Member(doc)
        self.partitions = partitions
        self.member.assign(EPOCH, assignment(partitions, **fields))
        self.member.report_always_to(self._reported)
        self.version = -1
        self.listener = Listener("127.0.0.1", 0, lambda _: SECRET, lambda _: None, self._serve)

    def begin(self) -> None:
        """Zeros for values, and every gate open."""
        bring_zeros(self.member, EPOCH, self.partitions)
        self.member.gate(EPOCH, 10**6)

    def _reported(self, report: Any) -> None:
        self.version = max(self.version, getattr(report, "version", -1))

    def _serve(self, connection: Connection, hello: Hello) -> None:
        if hello.purpose == "push":
            PushConnection(connection, self.member).serve()
        else:
            PullConnection(connection, self.member, WorkerId(hello.sender)).serve()

    def values(self, version: int) -> list[np.ndarray[Any, Any]]:
        """Copies of all partitions."""
        dtype = np.dtype(self.member.document.dtype)
        return [
            np.frombuffer(self.member.view(EPOCH, PartitionId(n), version) or b"", dtype).copy()
            for n, _, _ in self.partitions
        ]

    def close(self) -> None:
        self.member.close()
        self.listener.close()


def start_trainer(doc: JobDocument, worker: str = "job-w1", port: int = 1) -> StartTrainer:
    """What an agent is told."""
    return StartTrainer(
        job=JOB,
        document=doc,
        term=EPOCH.term,
        worker=WorkerId(worker),
        leader=Address(shard=ShardId("shard-1"), host="127.0.0.1", port=port),
        secret=SECRET,
    )


def shards_of(
    doc: JobDocument,
    places: list[tuple[int, list[tuple[int, int, int]]]],
    worker: str = "job-w1",
    epoch: Epoch = EPOCH,
    called_away: Callable[[], bool] = lambda: False,
) -> Shards:
    """A trainer's connections to shards at these ports."""
    named = [
        {"id": f"shard-{n}", "host": "127.0.0.1", "port": port, "partitions": partitions}
        for n, (port, partitions) in enumerate(places, 1)
    ]
    itemsize = np.dtype(doc.dtype).itemsize
    return Shards(start_trainer(doc, worker), epoch, named, itemsize, called_away)


def pull(trainer: Shards, version: int, ticket: int, into: np.ndarray[Any, Any]) -> Status:
    """Pull all partitions."""
    return trainer.pull(version, ticket, into).status


def push(
    trainer: Shards,
    t: int,
    lease: Interval,
    gradient: np.ndarray[Any, Any],
    *,
    staged: bool = False,
    early: Iterable[int] = (),
) -> Status:
    """Push a gradient, some of its partitions early, and wait for the answer."""
    pushing = Pushing(trainer, t, lease, gradient, staged=staged)
    for number in early:
        pushing.send_early(number)
    return pushing.finish()
