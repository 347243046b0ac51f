"""What the tests of a leader share: short pauses, stacks that end with the test, and what they wait for and look at."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from elps.contracts.epoch import Epoch
from elps.contracts.job import Checkpoint, JobDocument
from elps.contracts.messages import DropJob, HostJob
from elps.psshard import keeping, link, orders, peers, reporting, showing
from elps.psshard.core import throttle
from elps.psshard.core.part import Part
from elps.psshard.member import Member
from elps.storage.checkpoints import Manifest, all_manifests, load_vector
from elps.storage.memory import MemoryStore
from elps.wire.frames import Header, Kind
from elps.worker.trainer import shards as trainer_shards

sys.path.insert(0, str(Path(__file__).parent))

from data_plane import eventually
from hosted import JOB, FakeTrainer, Host, Stack, document

T = TypeVar("T")
WITHIN_S = 25.0
EVERY_10 = document(checkpoint=Checkpoint(every=10, every_s=0))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are short, so that the tests are; who writes a checkpoint does not rest."""
    monkeypatch.setattr(throttle, "SHARE", 1.0)
    monkeypatch.setattr(reporting, "MOST_S", 0.0)
    monkeypatch.setattr(orders, "RETRY_S", 0.05)
    monkeypatch.setattr(keeping, "RETRY_S", 0.05)
    monkeypatch.setattr(link, "LAST_RETRY_S", 0.05)
    monkeypatch.setattr(trainer_shards, "REACH_S", 1.0)
    monkeypatch.setattr(showing, "LAGS_S", 0.2)
    monkeypatch.setattr(peers, "UNREACHABLE_S", 0.2)


@pytest.fixture(name="stack_of")
def stacks() -> Iterator[Callable[..., Stack]]:
    stacks: list[Stack] = []

    def make(*args: Any, **fields: Any) -> Stack:
        stacks.append(Stack(*args, **fields))
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.close()


def ask(stack: Stack, call: Callable[[MemoryStore], Coroutine[Any, Any, T]]) -> T:
    """What the store holds; it has no loop of its own."""
    return asyncio.run(call(stack.store))


def manifests(stack: Stack) -> list[Manifest]:
    return ask(stack, lambda store: all_manifests(store, JOB))


def final(stack: Stack) -> np.ndarray:
    """The parameters of the newest checkpoint."""
    return ask(stack, lambda store: load_vector(store, manifests(stack)[0]))


def comes_to(stack: Stack, phase: str, within_s: float = WITHIN_S) -> str:
    """Wait for a phase; returns its reason."""
    deadline = time.monotonic() + within_s
    while (status := stack.status()).phase != phase:
        assert time.monotonic() < deadline, (status, [t.ended for t in stack.trainers])
        if status.phase in ("failed", "finished", "paused"):
            raise AssertionError(f"it came to {status.phase}: {status.reason}")
        time.sleep(0.01)
    return status.reason


def at_least(stack: Stack, iteration: int) -> None:
    def there() -> bool:
        progress = stack.status().progress
        return progress is not None and progress.iteration >= iteration

    eventually(there, WITHIN_S, f"iteration {iteration}")


def two_checkpoints(stack: Stack, doc: JobDocument) -> HostJob:
    """Train until two checkpoints are in the store, at versions 10 and 20, then end the term."""

    def stop_at_25(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration in (11, 21):  # one is written at a time
            eventually(lambda: header.iteration - 1 in [m.iteration for m in manifests(stack)])
        return not (header.kind is Kind.TRAIN and header.iteration == 25)

    message = stack.host(doc)
    stack.trainer(message, 1, before=stop_at_25).join(WITHIN_S)
    eventually(lambda: [m.iteration for m in manifests(stack)] == [20, 10])
    for host in stack.hosts:
        host.hosting.drop(DropJob(job=JOB, term=message.term))
    return message


def member_of(host: Host) -> Member:
    return host.hosting._jobs[JOB].member


def part_of(host: Host) -> Part:
    part = member_of(host)._part
    assert part is not None
    return part


def epoch_of(host: Host) -> Epoch:
    return part_of(host).epoch
