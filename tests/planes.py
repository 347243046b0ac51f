"""Some shards without a leader, and trainers connected to them: the data plane as one thing to test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elps.contracts.epoch import Epoch
from elps.contracts.job import Batch, JobDocument, Optimizer
from elps.wire.connection import Connection
from elps.wire.handshake import Hello, dial
from elps.worker.trainer.shards import Shards

sys.path.insert(0, str(Path(__file__).parent))

from data_plane import EPOCH, JOB, SECRET, Shard, document, shards_of

Partitions = list[tuple[int, int, int]]


class Plane:
    """Some shards, the partitions dealt out to them in turn, and trainers to connect."""

    def __init__(
        self, doc: JobDocument, slices: Partitions, shards: int = 1, batch: int = 4, **fields: Any
    ) -> None:
        self.document, self.slices = doc, slices
        self.size = slices[-1][2] if slices else 0
        fields = {"samples": batch, "batch": batch, "iterations": 10**6} | fields
        self.shards = [Shard(doc, slices[n::shards], **fields) for n in range(shards)]
        self._trainers: list[Shards] = []

    def begin(self) -> Plane:
        for shard in self.shards:
            shard.begin()
        return self

    def trainer(self, worker: str = "job-w1", epoch: Epoch = EPOCH) -> Shards:
        places = [(s.listener.port, s.partitions) for s in self.shards]
        self._trainers.append(shards_of(self.document, places, worker, epoch))
        return self._trainers[-1]

    def vector(self, fill: float = 0.0) -> np.ndarray:
        return np.full(self.size, fill, self.document.dtype)

    def close(self) -> None:
        for trainer in self._trainers:
            trainer.close()
        for shard in self.shards:
            shard.close()


@pytest.fixture(name="plane_of")
def planes() -> Iterator[Callable[..., Plane]]:
    planes: list[Plane] = []

    def make(*args: Any, **fields: Any) -> Plane:
        planes.append(Plane(*args, **fields))
        return planes[-1]

    yield make
    for plane in planes:
        plane.close()


def sums_of(**fields: Any) -> JobDocument:
    """A step is the sum of the gradients of 4 samples."""
    fields = {"batch": Batch(global_=4), "optimizer": Optimizer(name="sgd", lr=4.0)} | fields
    return document(iterations=10**6, **fields)


def by_hand(shard: Shard, purpose: str = "push") -> Connection:
    hello = Hello(job=JOB, purpose=purpose, sender="job-w1", term=1)  # type: ignore[arg-type]
    return dial("127.0.0.1", shard.listener.port, hello, SECRET, peer="shard-1")
