"""One shard's data plane in a process of its own, without a leader: what a push and a pull cost by themselves.

The listener, the connections, the decisions and the arrays are those of the product. The gate is announced by the
shard itself, as the leader of a job with one shard would. An iteration has two samples, so that two intervals fill it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe

from elps import optim
from elps.contracts.codec import parse_job
from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import Address, StartTrainer
from elps.placement import partitions
from elps.psshard.app import SWITCH_S
from elps.psshard.assignment import Assignment
from elps.psshard.listener import Listener
from elps.psshard.member import Member
from elps.psshard.reports import Progressed, Report
from elps.psshard.serving import PullConnection, PushConnection
from elps.runtime import logs
from elps.stream.interval import Interval
from elps.wire.connection import Connection
from elps.wire.handshake import Hello
from elps.worker.trainer.shards import Shards

JOB, SECRET, ITEMSIZE = "lone", "of the benchmark", 4
EPOCH = Epoch(Term(1, 1), 1)
SAMPLES = 2


def document(optimizer: str) -> JobDocument:
    """A job of float32 parameters; nothing of its task is ever run."""
    return parse_job(
        {
            "id": JOB,
            "task": "linear",
            "data": {"source": "diabetes"},
            "iterations": 1_000_000,
            "batch": {"global": SAMPLES},
            "optimizer": {"name": optimizer, "lr": 0.01},
        }
    )


def slices(elements: int) -> list[tuple[int, int, int]]:
    """The parameters cut as for a job with one shard."""
    return [(n, s.start, s.stop) for n, s in enumerate(partitions(elements, ITEMSIZE, 1))]


def halves(iteration: int) -> tuple[Interval, Interval]:
    """The two intervals of an iteration."""
    lo = iteration * SAMPLES
    return Interval(lo, lo + 1), Interval(lo + 1, lo + 2)


@contextmanager
def lone_shard(elements: int, optimizer: str = "sgd") -> Iterator[Shards]:
    """Start the process; the connections of a worker to it, made already."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(
        target=_serve, args=(theirs, elements, optimizer), daemon=True
    )
    process.start()
    try:
        if not ours.poll(60.0):
            raise TimeoutError("the shard has not started within 60 s")
        port = int(ours.recv())
        start = StartTrainer(
            job=JobId(JOB),
            document=document(optimizer),
            term=EPOCH.term,
            worker=WorkerId("lone-w1"),
            leader=Address(shard=ShardId("lone"), host="127.0.0.1", port=port),
            secret=SECRET,
        )
        at = {"id": "lone", "host": "127.0.0.1", "port": port, "partitions": slices(elements)}
        shards = Shards(start, EPOCH, [at], ITEMSIZE)
        shards.connect()
        yield shards
        shards.close()
    finally:
        ours.close()
        process.join(5.0)
        if process.is_alive():
            process.kill()


def _serve(pipe: Pipe, elements: int, optimizer: str) -> None:
    logs.configure("lone shard", "WARNING")
    sys.setswitchinterval(SWITCH_S)
    optim.warm_up("float32")
    member = Member(document(optimizer))

    def report(what: Report) -> None:
        if isinstance(what, Progressed):
            member.gate(what.epoch, what.version)

    member.report_always_to(report)
    member.assign(
        EPOCH,
        Assignment(
            partitions=slices(elements),
            samples=SAMPLES,
            batch=SAMPLES,
            granule=1,
            iterations=1_000_000,
            start=0,
            checkpoint=None,
            skips=[],
        ),
    )

    def serve(connection: Connection, hello: Hello) -> None:
        if hello.purpose == "push":
            PushConnection(connection, member).serve()
        else:
            PullConnection(connection, member, WorkerId(hello.sender)).serve()

    listener = Listener("127.0.0.1", 0, lambda _: SECRET, lambda _: None, serve)
    pipe.send(listener.port)
    try:
        pipe.recv()
    except EOFError:  # the benchmark is through
        listener.close()
        time.sleep(0.05)  # connection threads say goodbye
