"""Broken frames from clients that know a job's secret, and from some that know nothing.

They are aimed at one job while another one trains on the same shards. Nothing may die: the other job ends exactly, and
threads, connections and memory come back to where they were.
"""

from __future__ import annotations

import pickle
import random
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from elps.contracts.epoch import Epoch, Term
from elps.contracts.errors import ElpsError
from elps.contracts.ids import JobId
from elps.contracts.job import Checkpoint
from elps.psshard import feeding, serving
from elps.psshard import listener as listening
from elps.stream.interval import Interval
from elps.wire.frames import MAX_META_BYTES, MAX_PART_BYTES, Flag, Header, Kind
from elps.wire.handshake import Hello, dial
from elps.worker.trainer import shards as trainer_shards

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import descriptors, eventually, resident_bytes, running
from hosted import JOB, SECRET, Stack, document, identity

VICTIM = JobId("victim")
CLIENTS = 4
KINDS = {
    "push": [Kind.PUSH, Kind.EMPTY, Kind.COMMIT, Kind.ABORT, Kind.VALUES],
    "pull": [Kind.PULL],
    "link": [k for k in Kind if Kind.ASSIGN <= k <= Kind.CHECKPOINT]
    + [Kind.BEAT, Kind.FOLLOW, Kind.UNFOLLOW, Kind.TAKE_STOCK],
    "feed": [Kind.STATE, Kind.SUM],
    "lease": [k for k in Kind if k < Kind.FAILED] + [Kind.INITIALISED],
}
"""What may come on a connection of each purpose, but for a task's failure, which ends its job as it shall."""
WORDS: list[Any] = [
    identity(),
    identity(samples=-1),
    identity(layout={"dtype": "float32", "parameters": [["w", [-5]]]}),
    identity(layout={"dtype": "object", "parameters": []}),
    identity(layout={"dtype": "float32", "parameters": [["w", [2**40, 2**40]]]}),
    {"iteration": 2**70, "lo": -1, "hi": 3, "loss": "x"},
    {"iteration": 3, "lo": 9, "hi": 3, "loss": None},
    {"push_s": -1.0},
    {"push_s": 1e300},
    {"sums": {"loss": None}},
    {"sums": []},
    {"what": 7},
    {"worker": None},
    {"reason": {"a": [1]}},
    {"partitions": [[0, 0, 2**62]], "samples": 0, "batch": 0, "granule": 0},
    {
        "partitions": [[0, 0, 10]], "samples": 8, "batch": 8, "granule": 3, "iterations": 1, "start": 0,
        "checkpoint": None, "skips": [],
    },
    {
        "partitions": [[0, 0, 10], [7, 10, 2**19]], "samples": 8, "batch": 8, "granule": 1, "iterations": 1,
        "start": 2**61, "checkpoint": "no such", "skips": [[5, 3], [0, 2**62]],
    },
    {"0": [1, {"values": 2}]},
    {"name": "values", "steps": 1, "skips": []},
    {"name": "values", "steps": True, "skips": [[0, 2**63]]},
    {"name": ["values"], "steps": -1, "skips": [[5, 3], "x"]},
    {"count": 2**62, "step": 2**62, "skips": [[0, 8]]},
    {"count": 0.5, "step": None, "skips": {}},
    {
        "number": 1, "copies": [[0, 0, 10_000, "shard-1", "shard-2"], [1, 5, 5, "x", "x"]],
        "addresses": {"shard-2": ["127.0.0.1", 1]},
    },
    {"number": 2, "copies": [[0, 0, 10_000, "shard-1", "☃"]], "addresses": {"☃": ["☃" * 100, 65_535]}},
    {"number": 2**64 - 1, "copies": [[2**40, 0, 2**50, "shard-2", "shard-1"]], "addresses": {"shard-1": ["", 7]}},
    {"x": []},
    {},
]  # fmt: skip

METAS = [
    b"{", b"null", b"[]", b"NaN", b"\xff\xfe", b'{"a":' * 900 + b"1" + b"}" * 900, b'{"a":' + b"9" * 40 + b"}",
    b'{"steps":' + b"1" * 30 + b"}", b'{"iteration":1e999}', pickle.dumps({"iteration": 1}),
]  # fmt: skip


def a_number(rng: random.Random) -> int:
    return rng.choice([0, 0, 1, 2, 3, 7, 8, 30, 2**31, 2**32 - 1, 2**62, 2**64 - 1, rng.getrandbits(64)])  # fmt: skip


def an_epoch(rng: random.Random, term: Term) -> Epoch:
    terms = [term, term, term, Term(term.number, 5), Term(a_number(rng), a_number(rng)), Term(0, 0)]
    return Epoch(rng.choice(terms), rng.choice([0, 0, 0, 1, 2**32 - 1]))


def an_interval(rng: random.Random) -> Interval:
    if rng.random() < 0.7:
        t = rng.randrange(4)
        return Interval(8 * t + rng.randrange(5), 8 * t + rng.randrange(5, 9))
    pair = sorted((a_number(rng), a_number(rng)))
    return Interval(*pair)


def a_frame(rng: random.Random, term: Term, purpose: str) -> bytes:
    """Well-formed and hostile; or that with some bits changed; or no frame at all."""
    kinds = KINDS[purpose] if rng.random() < 0.95 else list(Kind)
    meta = b""
    if rng.random() < 0.5:
        try:
            meta = orjson.dumps(rng.choice(WORDS))
        except TypeError:  # numbers of more than 64 bits
            meta = b'{"iteration": 1180591620717411303424, "lo": 0, "hi": 1, "loss": 1e999}'
        if rng.random() < 0.3:
            meta = rng.choice([*METAS, rng.randbytes(rng.randrange(40))])
    body = bytes(rng.choice([0, 0, 4, 1000, 40_000, 40_000]))  # a partition has 40,000
    header = Header(
        rng.choice(kinds),
        an_epoch(rng, term),
        Flag(rng.randrange(8)),
        rng.randrange(256),
        rng.choice([0, 1, 2, 2**32 - 1]),
        rng.choice([rng.randrange(5), a_number(rng)]),
        an_interval(rng),
        a_number(rng),
        len(meta) if rng.random() < 0.97 else rng.randrange(MAX_META_BYTES),
        len(body) if rng.random() < 0.97 else rng.randrange(MAX_PART_BYTES),
    )
    frame = bytearray(header.pack() + meta + body)
    form = rng.random()
    if form < 0.15:
        for _ in range(rng.randint(1, 4)):
            frame[rng.randrange(72)] ^= 1 << rng.randrange(8)
    elif form < 0.25:
        frame = bytearray(rng.randbytes(rng.randrange(1, 300)))
    elif form < 0.35:
        del frame[rng.randrange(1, len(frame)) :]
    return bytes(frame)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Errors that the listener did not expect of a connection: each is a fault of ours."""
    seen: list[str] = []

    class Log:
        """Stands for the listener's log."""

        def exception(self, event: str, **fields: Any) -> None:
            seen.append(f"{event} {fields} {sys.exc_info()[1]!r}")

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    monkeypatch.setattr(listening, "log", Log())
    return seen


@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [2_500, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_broken_frames_harm_nobody_else(
    faults: list[str], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(feeding, "TOLD_WAIT_S", 0.1)
    monkeypatch.setattr(serving, "PULL_WAIT_S", 0.1)
    monkeypatch.setattr(serving, "ASSIGN_WAIT_S", 0.2)
    monkeypatch.setattr(trainer_shards, "REACH_S", 2.0)
    seed, iterations = 20, max(500, count // 10)
    print(f"seed {seed}")
    stack = Stack(2)
    threads = threading.active_count()
    good = stack.host(
        document(iterations=iterations, checkpoint=Checkpoint(every=100, every_s=0)), workers=2
    )
    victim = stack.message(
        document(id=VICTIM, iterations=10_000),
        job=VICTIM,
        workers=4,
    )
    for host in stack.hosts:
        host.hosting.host(victim)
    trainers = [stack.trainer(good, n) for n in (1, 2)]
    eventually(lambda: stack.leader.hosting.status()[0].phase == "running")
    files, memory = descriptors(), resident_bytes()
    sent = [0] * CLIENTS

    def attack(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        while sent[me] < count // CLIENTS:
            host = rng.choice(stack.hosts)
            purpose: Any = rng.choice(list(KINDS))
            sender = rng.choice(["job-w1", "job-w2", "shard-1", "☃" * 300, ""])
            hello = Hello(job=VICTIM, purpose=purpose, sender=sender, term=victim.term.number)
            try:
                if rng.random() < 0.1:  # one that knows nothing
                    with socket.create_connection(("127.0.0.1", host.listener.port), 5) as stranger:
                        stranger.sendall(rng.randbytes(rng.randrange(200)))
                    continue
                connection = dial("127.0.0.1", host.listener.port, hello, SECRET, peer="victim")
            except (ElpsError, OSError):
                continue
            try:
                if (
                    purpose == "lease" and rng.random() < 0.7
                ):  # the job is opened, and the rest reaches deeper
                    connection.send(Header(Kind.READY), identity())
                for _ in range(rng.randint(1, 40)):
                    connection.send_raw([a_frame(rng, victim.term, purpose)])
                    sent[me] += 1
            except ElpsError:
                pass  # it has had enough
            finally:
                connection.close()

    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, threading.active_count())
            for host in stack.hosts:
                host.hosting.status()

    try:
        with running(watch):
            with running(*(lambda n=n: attack(n) for n in range(CLIENTS))):
                pass
            done.set()
        assert sum(sent) >= count
        assert faults == []
        for trainer in trainers:
            trainer.join(90)
            assert "all iterations are done" in trainer.ended
        first = stack.leader.hosting.status()[0]
        assert (first.job, first.phase) == (JOB, "finished")
        eventually(lambda: all(h.listener.connections <= 2 for h in stack.hosts))  # the links stay
        # a connection may live on for a moment after its client: it waits for an assignment, a version, a store
        assert most < threads + 300
        eventually(lambda: threading.active_count() <= threads + 12, 15)
        eventually(lambda: descriptors() <= files + 4)
        grown = resident_bytes() - memory
        print(f"{sum(sent)} frames, {grown >> 20} MB more")
        assert grown < 100 * 1024 * 1024
    finally:
        stack.close()
    assert first.progress is not None
    assert first.progress.checkpoint == iterations
