"""A job of small whole numbers: one sample lost, doubled or computed on mixed versions changes the result."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

from elps.contracts.ids import PartitionId
from elps.psshard.core.clipping import clipping_factor
from elps.psshard.core.rules import Rules
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval, IntervalSet

State = tuple[int, int, int]
"""Value, momentum, optimizer steps taken."""
FINE = 1000
"""Parts of one that a clipped gradient is counted in: factors that differ a little give other whole numbers."""


def step(state: State, total: int, count: int, factor: float = 1.0) -> State:
    """One optimizer step from a summed gradient over `count` samples, multiplied by a factor of at most 1."""
    value, momentum, steps = state
    total = round(total * factor * FINE) if factor < 1 else total
    momentum = (momentum * 3 + total + count) % 97
    return (value + momentum + steps + 1) % 10_007, momentum, steps + 1


@dataclass(frozen=True)
class Job:
    """What is trained, and what is wrong with it."""

    rules: Rules
    partitions: tuple[PartitionId, ...]
    deterministic: bool
    bad: frozenset[int]  #: stream positions whose gradient is never finite
    flaky: float  #: chance that any computation is not finite
    skips: tuple[Interval, ...]  #: granted before this term
    unbarred: bool = False  #: without a barrier: gradients and losses do not depend on the values, and steps add up

    @cached_property
    def geometry(self) -> Geometry:
        return self.rules.geometry

    def blocks(self, interval: Interval) -> list[tuple[int, int]]:
        """Sum and size of each granule: the task couples the samples of a granule."""
        g, out, lo = self.geometry.granule, [], interval.lo
        while lo < interval.hi:
            hi = min(lo + g, interval.hi)
            out.append(((lo + hi - 1) * (hi - lo) // 2, hi - lo))
            lo = hi
        return out

    def gradient(self, interval: Interval, values: list[int]) -> list[int]:
        """Gradient sum over an interval for each partition; it depends on the values of all of them."""
        mixed = self._mixed(values)
        blocks = self.blocks(interval)
        return [
            sum((s * 7 + n * n + p * 13 + mixed * 3) % 11 - 5 for s, n in blocks)
            for p in range(len(values))
        ]

    def loss(self, interval: Interval, values: list[int]) -> float:
        """Loss sum over an interval: whole, so that sums are exact in any order."""
        mixed = self._mixed(values)
        return float(sum((s * 5 + mixed) % 13 for s, _ in self.blocks(interval)))

    def _mixed(self, values: list[int]) -> int:
        return 0 if self.unbarred else sum((p + 1) * v for p, v in enumerate(values))

    def step(self, state: State, total: int, count: int, factor: float = 1.0) -> State:
        """One optimizer step from a summed gradient over `count` samples."""
        if not self.unbarred:
            return step(state, total, count, factor)
        return state[0] + total, state[1] + count, state[2] + 1

    def factor(self, totals: list[int], count: int) -> float:
        """What the gradient of an iteration is multiplied by, from the sums of all partitions."""
        limit = self.rules.clip_norm
        norms = {p: abs(totals[p]) / count for p in self.partitions}
        return 1.0 if limit is None else clipping_factor(limit, norms)

    def same(self, one: State, other: State) -> bool:
        """Whether both are of the same samples: without a barrier in any number of steps."""
        return one[:2] == other[:2] if self.unbarred else one == other

    def sums(self, interval: Interval, values: list[int]) -> dict[str, float]:
        """Metric sums over held-out samples."""
        mixed = sum((p + 1) * v for p, v in enumerate(values))
        return {"m": float(sum((i * 3 + mixed) % 7 for i in range(*interval)))}

    def is_bad(self, interval: Interval) -> bool:
        """Whether the gradient over an interval is never finite."""
        return bool(self.bad) and not self.bad.isdisjoint(range(*interval))

    def start(self) -> list[State]:
        """Version 0."""
        return [(int(p) + 1, 0, 0) for p in self.partitions]


class PlainLoop:
    """The same job in a single loop, without the samples that were skipped."""

    def __init__(self, job: Job, skips: list[Interval]) -> None:
        self.job = job
        self.skips = IntervalSet(skips)
        self.states: list[list[State]] = [job.start()]  #: by version

    def gaps(self, t: int) -> list[Interval]:
        """What is counted of iteration t."""
        return list(self.skips.gaps(self.job.geometry.iteration(t)))

    def at(self, version: int) -> list[State]:
        """All partitions at a version."""
        while len(self.states) <= version:
            now, gaps = self.states[-1], self.gaps(len(self.states) - 1)
            values = [s[0] for s in now]
            totals = [self.job.gradient(gap, values) for gap in gaps]
            count = sum(gap.size for gap in gaps)
            if count:
                sums = [sum(t[p] for t in totals) for p in range(len(now))]
                factor = self.job.factor(sums, count)
                now = [self.job.step(s, sums[p], count, factor) for p, s in enumerate(now)]
            self.states.append(now)
        return self.states[version]

    def values(self, version: int) -> list[int]:
        return [s[0] for s in self.at(version)]

    def mean_loss(self, t: int) -> tuple[float | None, int]:
        """Mean loss over what is counted of iteration t, and how much that is."""
        gaps, values = self.gaps(t), self.values(t)
        count = sum(gap.size for gap in gaps)
        return (sum(self.job.loss(g, values) for g in gaps) / count if count else None), count

    def metrics(self, version: int) -> dict[str, float]:
        samples = self.job.rules.test_samples
        sums = self.job.sums(Interval(0, samples), self.values(version))
        return {name: total / samples for name, total in sums.items()}


def draw_job(r: random.Random, focus: str, *, long: bool = False) -> Job:
    """Any job: granules, short last batches, batches larger than the data, more workers than granules."""
    granule = r.choice((1, 1, 1, 2, 3))
    batch = granule * r.randint(1, max(1, 8 // granule))
    samples = r.choice((r.randint(1, 20), r.randint(batch, 3 * batch)))
    iterations = r.randint(4, 12) if focus == "moves" or long else r.randint(2, 5)
    geometry = Geometry(samples, batch, granule)
    end = geometry.iteration(iterations - 1).hi
    evaluates = r.random() < 0.5
    rules = Rules(
        geometry,
        iterations,
        test_samples=r.randint(1, 6) if evaluates else 0,
        evaluate_every=r.choice((0, 1, 1, 2)) if evaluates else 0,
        evaluate_at_end=r.random() < 0.7,
        checkpoint_every=r.choice((0, 1, 2)),
        checkpoint_every_s=r.choice((0.0, 0.0, 1.0)),
        target_metric="m" if r.random() < 0.15 else None,
        target=r.choice((2.5, 3.0, 3.5)),
        target_is_maximum=r.random() < 0.5,
        time_s=r.choice((0.5, 1.0, 4.0))
        if r.random() < (0.6 if focus == "pauses" else 0.1)
        else None,
        first_lease_s=r.choice((3.0, 10.0)),
        slack=3.0,
        floor_s=2.0,
        max_deaths=r.choice((3, 100, 100, 100)),
        max_tries=r.choice((1, 2, 3)),
        max_skipping=100,
    )
    bad: set[int] = set()
    if r.random() < 0.3:
        bad = {r.randrange(end) for _ in range(r.randint(1, 3))}
        if r.random() < 0.3:  # iterations of which nothing is left
            for t in {r.randrange(iterations) for _ in range(2)}:
                bad |= set(range(*geometry.iteration(t)))
    return Job(
        rules,
        tuple(PartitionId(p) for p in range(r.choice((1, 2, 2, 3)))),
        r.random() < 0.2,
        frozenset(bad),
        r.choice((0.0, 0.0, 0.1, 0.3)) if focus != "skips" else 0.6,
        _draw_skips(r, geometry, iterations, 0.7 if focus == "pauses" else 0.2),
    )


def _draw_skips(
    r: random.Random, geometry: Geometry, iterations: int, chance: float
) -> tuple[Interval, ...]:
    """Some parts of some iterations, some of them whole."""
    if r.random() >= chance:
        return ()
    skips = []
    for t in range(iterations):
        if r.random() < 0.4:
            whole = geometry.iteration(t)
            shares = [1, r.randint(0, 1), r.randint(0, 2)] if r.random() < 0.5 else [1]
            skips.append(geometry.cut(whole, shares)[0])
    return tuple(i for i in skips if i.size)
