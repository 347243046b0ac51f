"""Until when a scheduler may act: the lease as it knows it, by its own clock.

The store hands the lease out, and counts its time from when it does. The scheduler counts from when it asked, which was
before, and stops a little earlier: so it has stopped when another one may begin. What members obey is the charge, whose
number rises with each change: what one that stood still has said before it notices comes to nothing.
"""

from __future__ import annotations

from elps.contracts.epoch import NO_CHARGE, Charge

MARGIN = 0.1
"""Part of the time of a lease that is given up at its end: clocks do not run at quite the same speed."""


class Tenure:
    """The claims of one scheduler; all times are monotonic seconds of its own clock."""

    def __init__(self, nonce: int, ttl_s: float, at_least: int = 0) -> None:
        """`at_least` is the least number that members would obey, where the store has forgotten that."""
        self.nonce, self.ttl_s = nonce, ttl_s
        self.charge: Charge = NO_CHARGE  #: what was given to it
        self.lost = False  #: another one has followed it: it is never in charge again
        self.at_least = at_least  #: of all its claims
        self._until = float("-inf")

    def claimed(self, number: int, ours: bool, asked_at: float) -> None:
        """The store's answer to a claim that was sent at `asked_at`.

        A number that has risen means that another one was in charge in between, so what is known here is out of date.
        """
        known = self.charge
        if ours and known in (NO_CHARGE, Charge(number, self.nonce)) and not self.lost:
            self.charge = Charge(number, self.nonce)
            self.at_least = number
            self._until = max(self._until, asked_at + self.ttl_s * (1 - MARGIN))
        elif known != NO_CHARGE:
            self.resigned()

    def resigned(self) -> None:
        """It is over."""
        self.lost, self._until = True, float("-inf")

    def obeyed(self, other: Charge) -> None:
        """A member tells whom it obeys: if it would not obey this one, it is over, and the next number is higher."""
        if self.charge != NO_CHARGE and not self.charge.succeeds(other):
            self.at_least = max(self.at_least, other.number + 1)
            self.resigned()

    def acts(self, now: float) -> bool:
        """Whether it may do anything at this moment."""
        return not self.lost and now < self._until
