"""What to expect of a worker that has not been measured yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray
from elps.contracts.ids import WorkerId

TRIAL = 0.25
"""Of an equal share: what a worker of which nothing is known begins with. Four times slower than the others it would
still be in time."""
MOST_HOSTS = 10_000


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of the job, and what it runs on. Batches are shared out in the order of the members."""

    worker: WorkerId
    host: str = ""
    kind: str = ""
    """Class of machine, as the operator names it; "" if unknown."""
    minimum: int = 1
    """Least samples, if it is used at all."""
    maximum: int | None = None
    """Most samples that fit its memory."""


class Memory:
    """Speeds of hosts and of classes of machines, of this job."""

    def __init__(self) -> None:
        self._hosts: dict[str, float] = {}
        self._kinds: dict[str, float] = {}

    def remember(self, members: Sequence[Member], cost: FloatArray, known: BoolArray) -> None:
        """Keep what was learned of present workers; `cost` is seconds per sample."""
        kinds: dict[str, list[float]] = {}
        for i in np.flatnonzero(known).tolist():
            member, value = members[i], float(cost[i])
            if member.host:
                self._hosts.pop(member.host, None)
                self._hosts[member.host] = value
            if member.kind:
                kinds.setdefault(member.kind, []).append(value)
        self._kinds |= {kind: float(np.median(values)) for kind, values in kinds.items()}
        for host in list(self._hosts)[: max(0, len(self._hosts) - MOST_HOSTS)]:
            del self._hosts[host]

    def expect(self, member: Member) -> tuple[float, bool]:
        """Seconds per sample (NaN: no idea), and whether the host or the class has been seen before."""
        for known, key in ((self._hosts, member.host), (self._kinds, member.kind)):
            if key in known:
                return known[key], True
        return float("nan"), False
