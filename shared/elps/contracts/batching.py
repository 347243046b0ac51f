"""How the batches of a job's workers may be decided, by name. `elps.balance` has what the names stand for."""

from __future__ import annotations

PREDICTORS = ("last", "average", "median", "narx", "line", "auto")
SIZERS = ("equal-finish", "proportional", "leader-straggler")
AUTOMATIC = "lb-bsp"
FIXED = "fixed"

POLICIES = (
    FIXED,
    AUTOMATIC,
    *PREDICTORS,
    *SIZERS,
    *(f"{predictor}+{sizer}" for predictor in PREDICTORS for sizer in SIZERS),
)
"""Every name that a job document may give."""


def policy_problem(name: str) -> str | None:
    """What is wrong with the name of a policy; None if it is one."""
    if name in POLICIES:
        return None
    known = [FIXED, AUTOMATIC, *PREDICTORS, *SIZERS]
    return (
        f"batch policy {name!r} is unknown, expected one of {', '.join(known)}, or a predictor "
        f"and a sizer joined by '+'"
    )
