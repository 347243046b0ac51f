"""How far the clocks of the members' hosts are from ours, as far as heartbeats tell.

A beat says when it was sent by the clock of its host, and comes later than that by as long as it was under way. So of
several beats that one tells most for which *sent - received* is the greatest. A clock that seems to be ahead is so, by
at least as much; of one that seems to be behind it may be that all its beats come late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

BEATS = 8
"""The newest ones of a host count: what came late once, since the broker or we stood still, is soon of no account."""
ENOUGH = 3
"""Before so many have come nothing is said."""
MAX_HOSTS = 10_000


@dataclass
class _Host:
    heard_s: float  #: when the newest beat came, on our monotonic clock
    off_s: deque[float] = field(default_factory=lambda: deque(maxlen=BEATS))  #: sent - received


class Clocks:
    """Of all hosts that were heard within `lost_s`."""

    def __init__(self, lost_s: float) -> None:
        self._lost_s = lost_s
        self._hosts: dict[str, _Host] = {}  #: the one that was heard last is the last

    def take(self, host: str, sent_at: float, received_at: float, now_s: float) -> None:
        """Take a beat; both times are Unix times, by the clock of its host and by ours. 0: it does not say."""
        off_s = sent_at - received_at
        if not sent_at or not math.isfinite(off_s):
            return
        known = self._hosts.pop(host, None)
        if known is None or now_s - known.heard_s > self._lost_s:
            known = _Host(now_s)
        known.heard_s = now_s
        known.off_s.append(off_s)
        self._hosts[host] = known
        if len(self._hosts) > MAX_HOSTS:
            del self._hosts[next(iter(self._hosts))]

    def listed(self, now_s: float) -> Iterator[tuple[str, float]]:
        """Hosts by name, and by how many seconds their clocks are ahead of ours (below 0: behind)."""
        for name in sorted(self._hosts):
            host = self._hosts[name]
            if now_s - host.heard_s <= self._lost_s and len(host.off_s) >= ENOUGH:
                yield name, max(host.off_s)
