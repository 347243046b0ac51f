"""Where the iterations lie in the sample stream (DESIGN: a batch is an interval).

With *n* samples in the data and a global batch of *X*, a pass has ⌈n/X⌉ iterations; the *k*-th iteration of pass *e* is
``[e·n + k·X, min(e·n + (k+1)·X, (e+1)·n))``. No iteration spans two passes, so its last one may be short.
"""

from __future__ import annotations

from dataclasses import dataclass

from elps.stream.interval import Interval


@dataclass(frozen=True)
class Geometry:
    """The fixed cut of the stream into iterations. All counts are samples unless said otherwise."""

    samples: int
    """n, samples in one pass; at least 1."""
    batch: int
    """X, samples in a full iteration; a multiple of `granule`."""
    granule: int = 1
    """Cuts within an iteration fall on multiples of this, counted from the start of the iteration's pass."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1 or self.granule < 1 or self.batch % self.granule:
            raise ValueError(
                f"no geometry: samples {self.samples}, batch {self.batch}, granule {self.granule}"
            )

    @property
    def per_pass(self) -> int:
        """Iterations in a pass."""
        return -(-self.samples // self.batch)

    def iteration(self, t: int) -> Interval:
        """The interval of iteration `t`, counted from 0."""
        e, k = divmod(t, self.per_pass)
        lo = e * self.samples + k * self.batch
        return Interval(lo, min(lo + self.batch, (e + 1) * self.samples))

    @property
    def last_of_pass(self) -> Interval:
        """The interval of the last iteration of the first pass; it may be short."""
        return self.iteration(self.per_pass - 1)

    def iteration_of(self, position: int) -> int:
        """The iteration that holds a stream position."""
        e, i = divmod(position, self.samples)
        return e * self.per_pass + i // self.batch

    def passes(self, t: int) -> float:
        """Passes over the data when iterations 0 to t-1 are done."""
        e, k = divmod(t, self.per_pass)
        return e + min(k * self.batch, self.samples) / self.samples

    def fits(self, interval: Interval, t: int) -> bool:
        """Whether an interval is a non-empty part of iteration `t` cut at granules."""
        whole = self.iteration(t)
        return (
            interval.lo < interval.hi
            and whole.contains(interval)
            and all(cut in whole or (cut - whole.lo) % self.granule == 0 for cut in interval)
        )

    def cut(self, interval: Interval, shares: list[int]) -> list[Interval]:
        """Cut an interval into consecutive parts in proportion to `shares`, at granules; a part may be empty.

        `interval` lies within one iteration and begins at a granule. Rounding is by largest remainder, ties to the
        earlier part. Shares are non-negative and not all 0, else `ValueError`.
        """
        total = sum(shares)
        if total <= 0 or min(shares) < 0:
            raise ValueError(f"shares must be non-negative and not all 0: {shares}")
        granules = -(-interval.size // self.granule)
        whole = [granules * s // total for s in shares]
        rest = sorted(range(len(shares)), key=lambda i: (-(granules * shares[i] % total), i))
        for i in rest[: granules - sum(whole)]:
            whole[i] += 1
        parts, at = [], interval.lo
        for count in whole:
            end = min(at + count * self.granule, interval.hi)
            parts.append(Interval(at, end))
            at = end
        return parts
