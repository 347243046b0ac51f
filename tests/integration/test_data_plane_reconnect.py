"""Connections that break in the middle of a push or a pull, and shards that stop reading: exact, bounded, and named."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elps.contracts.job import Batch, Optimizer
from elps.psshard.listener import Listener
from elps.stream.interval import Interval
from elps.wire import connection as wire
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import HEADER_BYTES, Header, Kind, Status
from elps.wire.handshake import Hello, dial
from elps.worker.trainer import shards as module
from elps.worker.trainer.reaching import CalledAway, ShardUnreachable
from elps.worker.trainer.shards import Shards

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import (
    EPOCH,
    JOB,
    SECRET,
    Proxy,
    Shard,
    cut_into,
    document,
    eventually,
    pull,
    push,
    resident_bytes,
    running,
    shards_of,
)

SIZES = [5000, 700, 90_000, 1]
HANDSHAKE_UP = 22 + 2 + 64 + 32
"""About what a client says before its first frame."""
PUSH_UP = HANDSHAKE_UP + sum(4 * size + HEADER_BYTES for size in SIZES)
PULL_DOWN = 22 + 34 + sum(4 * size + HEADER_BYTES for size in SIZES) + HEADER_BYTES


@pytest.fixture
def shard() -> Iterator[Shard]:
    doc = document(
        batch=Batch(global_=4), optimizer=Optimizer(name="sgd", lr=4.0), iterations=10**6
    )
    shard = Shard(doc, cut_into(SIZES), samples=4, batch=4, iterations=10**6)
    shard.begin()
    yield shard
    shard.close()


@pytest.fixture
def proxy(shard: Shard) -> Iterator[Proxy]:
    proxy = Proxy(shard.listener.port)
    yield proxy
    proxy.close()


def trainer_at(shard: Shard, port: int, worker: str = "job-w1") -> Shards:
    return shards_of(shard.member.document, [(port, shard.partitions)], worker)


def ones(shard: Shard, fill: float = 1.0) -> np.ndarray:
    return np.full(sum(SIZES), fill, np.float32)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_pushes_cut_at_random_bytes_are_made_good_and_counted_once(
    shard: Shard, proxy: Proxy, seed: int, staged: bool
) -> None:
    """Towards the shard a part is lost, from the shard its answer: what was counted must not be counted again."""
    rng = random.Random(f"{seed} {staged}")
    iterations = 12

    def work(me: int) -> None:
        trainer, got = trainer_at(shard, proxy.port, f"job-w{me}"), ones(shard)
        for t in range(iterations):
            while True:
                try:
                    assert pull(trainer, t, t + 1, got) is Status.OK
                    assert (got == -4.0 * t).all()
                    assert push_some(trainer, t, me) is Status.OK
                    break
                except ShardUnreachable:  # cut too often: another trainer takes the lease over
                    trainer.close()
                    trainer = trainer_at(shard, proxy.port, f"job-w{me}")
        trainer.close()

    def push_some(trainer: Shards, t: int, me: int) -> Status:
        lease = Interval(4 * t + 2 * me, 4 * t + 2 * me + 2)
        early = rng.sample(range(len(SIZES)), rng.randint(0, len(SIZES))) if staged else []
        return push(trainer, t, lease, ones(shard, 2.0), staged=staged, early=early)

    def cut() -> None:
        """Some of the connections to come end after so many bytes, in one direction or the other."""
        while shard.version < iterations:
            if len(proxy.cut_up) < 2:
                proxy.cut_up.append(rng.randint(0, PUSH_UP) if rng.random() < 0.6 else 10**9)
            if len(proxy.cut_down) < 2:
                proxy.cut_down.append(rng.randint(0, PULL_DOWN) if rng.random() < 0.3 else 10**9)
            if rng.random() < 0.3:
                proxy.cut()
            threading.Event().wait(rng.random() * 0.02)
        proxy.cut_up.clear()
        proxy.cut_down.clear()

    with running(lambda: work(0), lambda: work(1), cut):
        pass
    for part in shard.values(iterations):
        assert (part == -4.0 * iterations).all()
    assert proxy.connections > 4


@pytest.mark.parametrize("at", range(0, PULL_DOWN, PULL_DOWN // 12))
def test_a_pull_cut_at_any_byte_is_asked_again_and_whole(
    shard: Shard, proxy: Proxy, at: int
) -> None:
    first = np.arange(sum(SIZES), dtype=np.float32)
    setup = trainer_at(shard, shard.listener.port)
    setup.push_values(first)  # a repeat: zeros are there
    assert push(setup, 0, Interval(0, 4), first) is Status.OK
    proxy.cut_up.append(10**9)
    proxy.cut_down.append(at)
    trainer, got = trainer_at(shard, proxy.port), ones(shard, np.nan)
    assert pull(trainer, 1, 1, got) is Status.OK
    assert (got == -first).all()
    trainer.close()
    setup.close()


def test_an_answer_that_was_lost_after_the_push_was_counted_does_not_count_it_twice(
    shard: Shard, proxy: Proxy
) -> None:
    trainer = trainer_at(shard, proxy.port)
    proxy.cut_up.append(10**9)
    proxy.cut_down.append(22 + 34)  # the handshake, and then nothing
    assert push(trainer, 0, Interval(0, 4), ones(shard, 4.0)) is Status.OK
    assert proxy.connections == 2
    assert shard.version == 1
    for part in shard.values(1):
        assert (part == -4.0).all()
    trainer.close()


def test_a_shard_that_is_lost_again_and_again_ends_the_push_with_its_name(
    shard: Shard, proxy: Proxy
) -> None:
    trainer = trainer_at(shard, proxy.port)
    proxy.cut_up.extend([HANDSHAKE_UP + 5000] * 20)
    with pytest.raises(ShardUnreachable, match=r"connections in a row were lost.*shard-1"):
        push(trainer, 0, Interval(0, 4), ones(shard))
    assert shard.version == 0
    trainer.close()


def test_a_shard_that_stops_reading_holds_up_its_trainer_for_a_bounded_time_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "PROGRESS_S", 0.4)
    monkeypatch.setattr(module, "SILENT_S", 0.4)
    stop = threading.Event()

    def serve(connection: Connection, hello: Hello) -> None:
        stop.wait(30)

    listener = Listener("127.0.0.1", 0, lambda _: SECRET, lambda _: None, serve)
    size = 16 * 1024 * 1024
    slices = cut_into([262_144] * 64)
    doc = document()
    trainer = shards_of(doc, [(listener.port, slices)])
    gradient = np.ones(size, np.float32)
    before, began = resident_bytes(), time.monotonic()
    try:
        with pytest.raises(ShardUnreachable, match="shard-1"):
            push(trainer, 0, Interval(0, 4), gradient)
        assert time.monotonic() - began < 20
        assert resident_bytes() - before < 24 * 1024 * 1024
        with pytest.raises(ShardUnreachable, match="shard-1"):
            pull(trainer, 0, 1, gradient)
    finally:
        stop.set()
        trainer.close()
        listener.close()


def test_a_shard_that_stops_answering_is_named_within_a_bounded_time(
    shard: Shard, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine takes bytes, but nothing comes back: as when a process is stopped."""
    monkeypatch.setattr(module, "SILENT_S", 0.3)
    monkeypatch.setattr(module, "REACH_S", 0.5)
    monkeypatch.setattr("elps.wire.handshake.HANDSHAKE_S", 0.3)
    trainer = trainer_at(shard, proxy.port)
    trainer.connect()
    proxy.flowing.clear()
    began = time.monotonic()
    with pytest.raises(ShardUnreachable, match="shard-1"):
        pull(trainer, 0, 1, ones(shard))
    assert time.monotonic() - began < 15
    proxy.flowing.set()
    trainer.close()


@pytest.mark.parametrize("owes", ["a pull", "a push"])
def test_what_the_leader_says_meanwhile_counts_before_the_silence_of_a_shard_has_lasted(
    shard: Shard, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, owes: str
) -> None:
    """Its process stands still, and the leader has given its partitions to others long before its connection ends."""
    monkeypatch.setattr(wire, "SLICE_S", 0.1)
    looks, says = iter(range(10**6)), 3

    def called_away() -> bool:
        return next(looks) >= says

    trainer = shards_of(
        shard.member.document, [(proxy.port, shard.partitions)], called_away=called_away
    )
    trainer.connect()
    assert pull(trainer, 0, 1, ones(shard)) is Status.OK
    eventually(lambda: all(d.done.is_set() for d in trainer._ahead._dialled.values()))  # to push on
    proxy.flowing.clear()
    began = time.monotonic()
    asks = {
        "a pull": lambda: pull(trainer, 0, 2, ones(shard)),
        "a push": lambda: push(trainer, 0, Interval(0, 4), ones(shard)),
    }
    with pytest.raises(CalledAway, match="shard-1 has not answered"):
        asks[owes]()
    assert time.monotonic() - began < module.SILENT_S / 2
    assert next(looks) == says + 1, "it was asked between, and at once followed"
    proxy.flowing.set()
    trainer.close()


def test_a_trainer_that_waits_for_a_shard_while_its_leader_is_gone_waits_no_longer(
    shard: Shard, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SLICE_S", 0.1)

    def gone() -> bool:
        raise ConnectionEnded("the leader has closed the connection")

    trainer = shards_of(shard.member.document, [(proxy.port, shard.partitions)], called_away=gone)
    trainer.connect()
    proxy.flowing.clear()
    began = time.monotonic()
    with pytest.raises(CalledAway):
        pull(trainer, 0, 1, ones(shard))
    assert time.monotonic() - began < module.SILENT_S / 2
    proxy.flowing.set()
    trainer.close()


def test_a_trainer_that_stops_reading_costs_the_shard_one_connection_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "PROGRESS_S", 0.5)
    doc = document(batch=Batch(global_=4), optimizer=Optimizer(name="sgd", lr=4.0))
    slices = cut_into([262_144] * 16)
    shard = Shard(doc, slices)
    shard.begin()
    threads = threading.active_count()
    try:
        stuck = []
        for n in range(4):
            hello = Hello(job=JOB, purpose="pull", sender=f"job-w{n}", term=1)
            connection = dial("127.0.0.1", shard.listener.port, hello, SECRET, peer="shard-1")
            # How much a system takes in for somebody who does not read differs; so much less than 16 MB it always is.
            connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
            connection.send(Header(Kind.PULL, EPOCH, iteration=0, ticket=1))
            stuck.append(connection)
        eventually(lambda: all(c.pending() for c in stuck), what="the first parts")
        good = shards_of(doc, [(shard.listener.port, slices)], "job-w9")
        got = np.empty(16 * 262_144, np.float32)
        for t in range(5):
            assert pull(good, t, t + 1, got) is Status.OK
            assert (got == -4.0 * t).all()
            gradient = np.full(got.size, 4.0, np.float32)
            lease = Interval(4 * t, 4 * t + 4)
            assert push(good, t, lease, gradient) is Status.OK
        good.close()
        eventually(lambda: shard.listener.connections == 0, what="the end of the stuck connections")
        eventually(lambda: threading.active_count() <= threads)
        for connection in stuck:
            connection.close()
    finally:
        shard.close()
