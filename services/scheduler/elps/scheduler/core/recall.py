"""Whether the store has forgotten something that was written to it, found out by the count that it keeps of that.

A store that is killed comes back without its newest second, one whose disk is lost comes back empty. Then it answers as
ever, and a short absence is over before any call has failed. But the count of writes is written with each of them, and
lost with them: when it is lower than before, something is gone, whatever happened to the store meanwhile.
"""

from __future__ import annotations


class Recall:
    """The counts that the store has told one scheduler.

    Its writes come one after the other; each may be done more than once, and claims come in between. The store refuses
    a write while its count is below what was known when it was sent: so the count cannot rise again unnoticed.
    """

    def __init__(self) -> None:
        self.known = 0  #: the highest count told since something was found missing last
        self.losses = 0  #: how often something was

    def told(self, count: int, least: int) -> bool:
        """An answer of the store; `least` is what was known when it was asked. False when something is missing."""
        if count < least:
            self.losses += 1
            self.known = count
            return False
        self.known = max(self.known, count)
        return True
