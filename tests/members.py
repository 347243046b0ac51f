"""A shard's share on its own: no sockets, no leader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId, WorkerId
from elps.contracts.job import Batch, Optimizer
from elps.psshard.core.part import Verdict
from elps.psshard.member import Member
from elps.psshard.reports import Progressed, Report
from elps.stream.interval import Interval

sys.path.insert(0, str(Path(__file__).parent))

from data_plane import EPOCH, assignment, bring_zeros, cut_into, document

W = WorkerId("job-w1")
P0 = PartitionId(0)
NEXT = Epoch(EPOCH.term, 1)


def member_of(sizes: list[int], workers: int = 4, *, gates: bool = True, **fields: Any) -> Member:
    """A member at version 0, all zeros, whose iterations have `workers` samples; a step is the sum of the gradients."""
    fields = {"optimizer": Optimizer(name="sgd", lr=float(workers))} | fields
    member = Member(document(batch=Batch(global_=workers), iterations=10_000, **fields))
    partitions = cut_into(sizes)
    member.assign(EPOCH, assignment(partitions, samples=workers, batch=workers, iterations=10_000))
    if gates:
        member.report = lambda report: open_gate(member, report)
    bring_zeros(member, EPOCH, partitions)
    return member


def open_gate(member: Member, report: Report) -> None:
    if isinstance(report, Progressed):
        member.gate(report.epoch, report.version)


def values(member: Member, partition: int, version: int, epoch: Epoch = EPOCH) -> np.ndarray:
    view = member.view(epoch, PartitionId(partition), version)
    assert view is not None
    return np.frombuffer(view, np.dtype(member.document.dtype)).copy()


def push_all(
    member: Member,
    iteration: int,
    interval: Interval,
    gradient: Callable[[int], np.ndarray | None],
    order: list[int],
    epoch: Epoch = EPOCH,
) -> list[Verdict]:
    return [member.push(epoch, iteration, interval, PartitionId(p), gradient(p)) for p in order]
