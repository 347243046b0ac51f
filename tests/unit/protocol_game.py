"""A leader's clock in play, with what it commands: for tests that move it step by step."""

from __future__ import annotations

from typing import Any

from elps.contracts.ids import ShardId, WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command, Timing
from elps.psshard.core.deadlines import Seen
from elps.psshard.core.rules import Rules
from elps.stream.geometry import Geometry

S, V = ShardId("s1"), ShardId("s2")
A, B, C, D = (WorkerId(f"w{i}") for i in range(1, 5))


class Game:
    """A clock, and what it commanded."""

    def __init__(
        self,
        *workers: WorkerId,
        start: int = 0,
        skips: Any = (),
        seen: Seen | None = None,
        **rules: Any,
    ) -> None:
        terms = {"iterations": 10, "first_lease_s": 20.0, "floor_s": 5.0} | rules
        geometry = terms.pop("geometry", Geometry(samples=100, batch=4))
        self.now = 0.0
        fixed = Rules(geometry, **terms)
        self.clock = Clock(fixed, [S, V], start, 0.0, skips=skips, seen=seen)
        self.said: list[Command] = []  #: by the newest event
        self.all: list[Command] = []
        self.held(start)
        self("expect", workers)
        for w in workers:
            self("worker_ready", w)
            self("asked", w)

    def __call__(self, event: str, *facts: Any, **more: Any) -> list[Command]:
        timed = () if event == "pushed" else (self.now,)
        self.said = getattr(self.clock, event)(*facts, *timed, **more)
        self.all += self.said
        return self.said

    def of(self, kind: type[Any]) -> list[Any]:
        return [c for c in self.said if isinstance(c, kind)]

    def lease(self, worker: WorkerId) -> do.Lend:
        return next(c for c in reversed(self.all) if isinstance(c, do.Lend) and c.worker == worker)

    def held(self, version: int) -> None:
        """All shards come to a version."""
        said = self("progressed", S, version) + self("progressed", V, version)
        self.said = said

    def compute(self, worker: WorkerId) -> None:
        """A worker computes what it was lent, asks, and has pushed."""
        lease = self.lease(worker)
        self("computed", worker, lease.version, lease.interval, 1.0, Timing())
        said = self("asked", worker)
        self.said = said + self("pushed", worker, lease.version, 0.1)

    def evaluate(self, worker: WorkerId) -> None:
        lease = self.lease(worker)
        assert lease.kind == "evaluate"
        sums = {"m": float(lease.interval.size)}
        said = self("evaluated", worker, lease.version, lease.interval, sums)
        self.said = said + self("asked", worker)

    def bad(self, worker: WorkerId) -> do.Freeze:
        lease = self.lease(worker)
        said = self("bad_gradient", worker, lease.version, lease.interval, "nan")
        return next(c for c in said if isinstance(c, do.Freeze))

    def answer(self, freeze: do.Freeze, *clean: bool) -> list[Command]:
        said = []
        for shard, answer in zip((S, V), clean, strict=True):
            said += self("freeze_answered", shard, freeze.interval, freeze.attempt, answer)
        return said
