"""How batches are decided, as a user names it."""

from __future__ import annotations

from dataclasses import dataclass

from elps.balance.choosing import PREDICTORS

SIZERS = ("equal-finish", "proportional", "leader-straggler")
AUTOMATIC = "lb-bsp"
FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Policy:
    """A predictor and a sizer by name, and what else is decided by."""

    predictor: str = "auto"
    """One of `PREDICTORS`, or "" for batches that never change."""
    sizer: str = "equal-finish"
    """One of `SIZERS`."""
    may_idle: bool = True
    """A worker that would make iterations longer gets nothing."""
    may_tail: bool = True
    """Part of the batch may be held back when that pays (not with ``deterministic``, nor under ``ssp`` and ``asp``)."""
    change_cost_s: float = 0.0
    """What a change of the plan costs the job."""
    seed: int = 0
    """Of the hidden weights of NARX."""

    @classmethod
    def named(cls, name: str) -> Policy:
        """Read ``fixed``, ``lb-bsp``, ``<predictor>``, ``<sizer>`` or ``<predictor>+<sizer>``. `ValueError` for others.

        A sizer alone goes with the automatic predictor, a predictor alone with equal finish.
        """
        if name == FIXED:
            return cls(predictor="", may_idle=False, may_tail=False)
        if name == AUTOMATIC:
            return cls()
        first, _, second = name.partition("+")
        if first in SIZERS and not second:
            return cls(sizer=first)
        if first in PREDICTORS and (second or SIZERS[0]) in SIZERS:
            return cls(predictor=first, sizer=second or SIZERS[0])
        known = [FIXED, AUTOMATIC, *PREDICTORS, *SIZERS]
        raise ValueError(
            f"batch policy {name!r} is unknown, expected one of {', '.join(known)}, or a predictor "
            f"and a sizer joined by '+'"
        )

    @property
    def fixed(self) -> bool:
        """Batches never change while the workers stay the same."""
        return not self.predictor
