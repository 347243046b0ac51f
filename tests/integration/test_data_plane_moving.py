"""Partitions move between shards while real trainers train: nothing is lost, doubled or restarted."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import reference
from data_plane import eventually
from hosted import JOB, SECRET, Stack
from numpy.typing import NDArray

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.contracts.job import Batch, Checkpoint, Data, Evaluate, JobDocument, Optimizer, Pool
from elps.contracts.messages import Address, DropJob, StartTrainer
from elps.psshard.assignment import Assignment
from elps.psshard.core import moving
from elps.psshard.member import Member
from elps.storage.checkpoints import all_manifests, load_partition
from elps.worker.trainer import main as trainer_main

TASKS = Path(__file__).parents[1] / "e2e" / "tasks"
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def document(**fields: Any) -> JobDocument:
    """A perceptron on the digits, with Adam."""
    defaults: dict[str, Any] = {
        "id": JOB,
        "task": "mlp",
        "task_args": {"hidden": [64], "activation": "tanh"},
        "data": Data(source="digits"),
        "iterations": 300,
        "batch": Batch(global_=64),
        "optimizer": Optimizer(name="adam", lr=0.003),
        "checkpoint": Checkpoint(every_s=0.0),
        "evaluate": Evaluate(every=50, at_end=True),
        "dtype": "float64",
        "shards": Pool(min=1, max=4),
        "seed": 5,
    }
    return JobDocument(**(defaults | fields))


class Elastic:
    """A job on some of the shards of a stack, with trainers as they are, in threads."""

    def __init__(self, stack: Stack, doc: JobDocument, first: int = 1) -> None:
        self.stack, self.document = stack, doc
        self.addresses = [
            Address(shard=h.me, host="127.0.0.1", port=h.listener.port) for h in stack.hosts
        ]
        self.message = stack.host(doc, shards=self.addresses[:first])
        self.codes: dict[str, int] = {}
        self.threads: list[threading.Thread] = []

    def join(self, number: int) -> None:
        """A worker joins."""
        worker = WorkerId(f"job-w{number}")
        self.stack._named.add(worker)
        self.stack.direct(self.message)
        start = StartTrainer(
            job=JOB,
            document=self.document,
            term=self.message.term,
            worker=worker,
            leader=self.addresses[0],
            secret=SECRET,
        )
        thread = threading.Thread(target=self._train, args=(start,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _train(self, start: StartTrainer) -> None:
        self.codes[start.worker] = trainer_main.run(start, {"ELPS_TASK_PATH": str(TASKS)})

    def leave(self, rng: random.Random) -> None:
        """One of at least two workers goes, in the middle of whatever it does."""
        hosted = self.stack.leader.hosting._jobs[JOB]
        assert hosted.lead is not None
        links = [link for link in hosted.lead.trainers.all() if not link.leaving]
        if len(links) > 1:
            link = rng.choice(links)
            link.leaving = "it is sent away"
            link.connection.close()

    def want(self, *numbers: int) -> None:
        """The partitions are to lie on these shards."""
        self.stack.direct(self.message, shards=[self.addresses[n - 1] for n in numbers])

    def lies_on(self, *numbers: int) -> bool:
        """Whether they do."""
        status = self.stack.status()
        return set(status.holders) == {f"shard-{n}" for n in numbers} and not status.moving

    @property
    def iteration(self) -> int:
        """Versions complete so far."""
        progress = self.stack.status().progress
        return progress.iteration if progress is not None else 0

    def saved(self) -> dict[str, NDArray[Any]]:
        """Values and optimizer state of the newest checkpoint, whole."""
        store, wait = self.stack.store, self.stack.leader.bridge.wait
        manifest = wait(all_manifests(store, JOB), 5, "manifests")[0]
        parts = [
            wait(load_partition(store, manifest, PartitionId(p)), 5, "a partition")
            for p in range(len(manifest.partitions))
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def resume(self, term: int, shards: int) -> dict[str, NDArray[Any]]:
        """Place the job anew on so many shards; returns what they have loaded, before a worker comes."""
        self.message = self.stack.host(
            self.document, term=term, workers=0, shards=self.addresses[:shards]
        )
        hosts = self.stack.hosts[:shards]
        members = [h.hosting._jobs[JOB].member for h in hosts]
        eventually(lambda: min(m.low_version() for m in members) >= 0, what="the values")
        version = members[0].low_version()
        blocks = {p: b for m in members for p, b in m._slab.blocks().items()}  # type: ignore[union-attr]
        copies = [blocks[p].copy(version) for p in sorted(blocks)]
        return {name: np.concatenate([c[name] for c in copies]) for name in copies[0]}

    def end(self, within_s: float = 60) -> NDArray[Any]:
        """The parameters at the end, from its checkpoint."""
        eventually(lambda: self.stack.status().phase in ("finished", "failed"), within_s, "the end")
        status = self.stack.status()
        assert status.phase == "finished", status.reason
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()
        return self.saved()["values"]

    def check_rows(self) -> None:
        """One row for each iteration, in order, with all samples counted."""
        rows = self.stack.leader.rows
        eventually(lambda: len(rows) >= self.iteration, what="all rows")
        assert [row.iteration for row in rows] == list(range(self.iteration))


@pytest.fixture
def elastic_of() -> Iterator[Callable[..., Elastic]]:
    made: list[Stack] = []

    def make(doc: JobDocument, shards: int = 3, first: int = 1) -> Elastic:
        made.append(Stack(shards))
        return Elastic(made[-1], doc, first)

    yield make
    for stack in made:
        stack.close()


def test_a_job_goes_to_other_shards_and_back_while_it_trains(
    elastic_of: Callable[..., Elastic],
) -> None:
    doc = document()
    elastic = elastic_of(doc)
    elastic.join(1)
    elastic.join(2)
    for t, where in ((20, (1, 2)), (60, (2, 3)), (120, (3,)), (180, (1, 2, 3)), (240, (1,))):
        eventually(lambda t=t: elastic.iteration >= t, 30, f"iteration {t}")  # type: ignore[misc]
        elastic.want(*where)
        eventually(lambda where=where: elastic.lies_on(*where), 30, f"the move to {where}")  # type: ignore[misc]
    got = elastic.end()
    want = reference.run(doc)
    assert np.abs(got - want.flat()).max() <= TOLERANCE[doc.dtype]
    assert elastic.stack.status().progress.redone_iterations == 0  # type: ignore[union-attr]
    elastic.check_rows()
    assert len({row.term for row in elastic.stack.leader.rows}) == 1


def test_a_shard_that_lives_and_does_not_take_the_new_map_is_named_to_the_scheduler(
    elastic_of: Callable[..., Elastic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "STALLED_S", 0.5)
    doc, assign = document(iterations=100_000), Member.assign
    elastic = elastic_of(doc)
    elastic.join(1)
    eventually(lambda: elastic.iteration >= 5, 30)
    lazy = elastic.stack.hosts[1].hosting._jobs[JOB].member

    def assigned(member: Member, epoch: Epoch, assignment: Assignment) -> bool:
        if member is lazy and assignment.carried:
            return False
        return assign(member, epoch, assignment)

    monkeypatch.setattr(Member, "assign", assigned)
    elastic.want(1, 2)
    status = elastic.stack.status
    eventually(lambda: status().unreachable == [ShardId("shard-2")], 30)
    eventually(lambda: status().reason == "the new map: waiting for shard-2", 30)


@pytest.mark.timeout(240)
def test_every_sample_counts_once_a_pass_through_fifty_moves_and_fifty_joins_and_leaves(
    elastic_of: Callable[..., Elastic],
) -> None:
    samples, batch, iterations = 48, 12, 1000
    doc = document(
        task="counting:Counting",
        task_args={"samples": samples},
        data=None,
        iterations=iterations,
        batch=Batch(global_=batch),
        optimizer=Optimizer(name="sgd", lr=float(batch)),
        evaluate=Evaluate(),
        dtype="float32",
    )
    elastic, rng = elastic_of(doc), random.Random(11)
    for n in range(1, 5):
        elastic.join(n)
    moves = leaves = 0
    places = [c for k in (1, 2, 3) for c in itertools.combinations((1, 2, 3), k)]
    while elastic.iteration < iterations and elastic.stack.status().phase != "failed":
        elastic.want(*rng.choice(places))
        moves += 1
        elastic.leave(rng)
        elastic.join(5 + leaves)
        leaves += 1
        due = elastic.iteration + rng.randint(1, 12)
        eventually(
            lambda due=due: elastic.iteration >= min(due, iterations), 60, f"iteration {due}"
        )  # type: ignore[misc]
    got = elastic.end()
    assert (got == iterations * batch // samples).all(), got
    elastic.check_rows()
    assert {row.samples for row in elastic.stack.leader.rows} == {batch}
    moved = [e for e in elastic.stack.leader.events if e.what == "partitions_moved"]
    assert len(moved) >= 50, (len(moved), moves)
    assert leaves >= 50


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_thirty_resizes_leave_the_trajectory_of_the_plain_loop(
    elastic_of: Callable[..., Elastic], dtype: str
) -> None:
    doc = document(dtype=dtype)
    elastic, rng = elastic_of(doc), random.Random(dtype)
    elastic.join(1)
    elastic.join(2)
    places = [c for k in (1, 2, 3) for c in itertools.combinations((1, 2, 3), k)]
    for n, t in enumerate(sorted(rng.sample(range(5, 280), 30))):
        eventually(lambda t=t: elastic.iteration >= t, 30, f"iteration {t}")  # type: ignore[misc]
        match rng.choice(("join", "leave", "shards", "shards")):
            case "join":
                elastic.join(3 + n)
            case "leave":
                elastic.leave(rng)
            case "shards":
                elastic.want(*rng.choice(places))
    got, want = elastic.end(), reference.run(doc)
    assert np.abs(got - want.flat()).max() <= TOLERANCE[dtype]
    elastic.check_rows()
    rows = elastic.stack.leader.rows
    told = [(row.loss, want.losses[row.iteration]) for row in rows if row.loss is not None]
    assert len(told) >= len(rows) - 30  # one who goes may take its part of a loss along
    # No jump anywhere: a loss differs by as much as parameters may, while one sample more or less is in percents.
    assert np.allclose(*np.array(told).T, rtol=10 * TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_twenty_workers_join_at_once_and_nineteen_leave_at_once(
    elastic_of: Callable[..., Elastic],
) -> None:
    doc = document(iterations=400, batch=Batch(global_=128))
    elastic = elastic_of(doc)
    elastic.join(1)
    eventually(lambda: elastic.iteration >= 20, 30, "a start")
    for n in range(2, 21):
        elastic.join(n)
    eventually(lambda: len(elastic.stack.status().ready) == 20, 60, "twenty workers")
    eventually(
        lambda: len(elastic.stack.leader.rows[-1].workers) == 20, 60, "an iteration of twenty"
    )
    rng = random.Random(20)
    while len(elastic.stack.status().ready) > 1:
        elastic.leave(rng)
    got = elastic.end(120)
    assert np.abs(got - reference.run(doc).flat()).max() <= TOLERANCE[doc.dtype]
    elastic.check_rows()


def test_a_checkpoint_of_three_shards_is_taken_up_by_two_and_by_one_bit_by_bit(
    elastic_of: Callable[..., Elastic],
) -> None:
    doc = document(iterations=80, checkpoint=Checkpoint(every=20, every_s=0.0))
    elastic = elastic_of(doc, first=3)
    for n in range(1, 5):
        elastic.join(n)
    eventually(lambda: elastic.iteration >= 30, 30, "iteration 30")
    elastic.stack.direct(elastic.message, "pause")
    eventually(lambda: elastic.stack.status().phase == "paused", 30, "the pause")
    saved = elastic.saved()
    for term, shards in ((2, 2), (3, 1)):
        again = elastic.resume(term, shards)
        assert again.keys() == saved.keys()
        assert all((again[name] == saved[name]).all() for name in saved), "not bit by bit"
    elastic.join(5)
    got = elastic.end()
    assert np.abs(got - reference.run(doc).flat()).max() <= TOLERANCE[doc.dtype]


def test_a_job_opened_from_a_checkpoint_moves_although_that_checkpoint_is_gone(
    elastic_of: Callable[..., Elastic],
) -> None:
    doc = document(iterations=300, checkpoint=Checkpoint(every=20, every_s=0.0))
    elastic = elastic_of(doc)
    elastic.join(1)
    eventually(lambda: elastic.iteration >= 30, 30, "iteration 30")
    elastic.stack.direct(elastic.message, "pause")
    eventually(lambda: elastic.stack.status().phase == "paused", 30, "the pause")
    opened_at = elastic.iteration
    elastic.resume(term=2, shards=1)
    elastic.join(2)
    eventually(lambda: elastic.iteration >= opened_at + 90, 30, "newer checkpoints")
    loads: list[str] = []
    for host in elastic.stack.hosts:
        orders = host.hosting._jobs[JOB].orders if JOB in host.hosting._jobs else None
        if orders is not None:
            orders._load = lambda *_: loads.append("loaded")  # type: ignore[assignment, method-assign]
    for where in ((2,), (1, 3), (1,)):
        elastic.want(*where)
        eventually(lambda where=where: elastic.lies_on(*where), 30, f"the move to {where}")  # type: ignore[misc]
    got = elastic.end()
    assert np.abs(got - reference.run(doc).flat()).max() <= TOLERANCE[doc.dtype]
    assert not loads
    assert elastic.stack.status().progress.redone_iterations == 0  # type: ignore[union-attr]


def test_the_arrays_of_a_job_that_is_dropped_go_at_once(
    elastic_of: Callable[..., Elastic],
) -> None:
    elastic = elastic_of(document(iterations=20))
    elastic.join(1)
    elastic.end()
    hosting = elastic.stack.leader.hosting
    slab = hosting._jobs[JOB].member._slab
    assert slab is not None
    blocks = [weakref.ref(block) for block in slab.blocks().values()]
    del slab
    gc.disable()
    try:
        hosting.drop(DropJob(job=JOB, term=elastic.message.term))
        eventually(lambda: not any(block() for block in blocks), what="the end of all blocks")
    finally:
        gc.enable()
