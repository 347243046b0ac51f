"""How batches are decided, as a user names it."""

from __future__ import annotations

from dataclasses import dataclass

from elps.contracts.batching import AUTOMATIC, FIXED, SIZERS, policy_problem


@dataclass(frozen=True, slots=True)
class Policy:
    """A predictor and a sizer by name, and what else is decided by."""

    predictor: str = "auto"
    """One of `elps.balance.PREDICTORS`, or "" for batches that never change."""
    sizer: str = "equal-finish"
    """One of `SIZERS`."""
    may_idle: bool = True
    """A worker that would make iterations longer gets nothing."""
    may_tail: bool = True
    """Part of the batch may be held back when that pays (not with ``deterministic``, nor under ``ssp`` and ``asp``)."""
    seed: int = 0
    """Of the hidden weights of NARX."""

    @classmethod
    def named(cls, name: str) -> Policy:
        """Read ``fixed``, ``lb-bsp``, ``<predictor>``, ``<sizer>`` or ``<predictor>+<sizer>``. `ValueError` for others.

        A sizer alone goes with the automatic predictor, a predictor alone with equal finish. Only ``lb-bsp`` may hold
        back a tail: who names how batches are decided gets that and nothing else.
        """
        if problem := policy_problem(name):
            raise ValueError(problem)
        if name == FIXED:
            return cls(predictor="", may_idle=False, may_tail=False)
        if name == AUTOMATIC:
            return cls()
        first, _, second = name.partition("+")
        if first in SIZERS:
            return cls(sizer=first, may_tail=False)
        return cls(predictor=first, sizer=second or SIZERS[0], may_tail=False)

    @property
    def fixed(self) -> bool:
        """Batches never change while the workers stay the same."""
        return not self.predictor
