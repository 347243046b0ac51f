"""Until when a scheduler may act: the lease as it knows it, by its own clock.

The store hands the lease out, and counts its time from when it does. The scheduler counts from when it asked, which was
before, and stops a little earlier: so it has stopped when another one may begin. What members obey is the charge, whose
number rises with each change: what one that stood still has said before it notices comes to nothing.

The store may forget who is in charge, and comes back to all at once. Only the one that was in charge has the records of
what runs; whoever else gets the lease would read an empty store, and have all jobs dropped. So

- one that knows of a charge which the store does not holds back for a while (`Tenure.awaits`);
- one that members do not obey, since they know of a charge that it has not heard of, does the same;
- one that nobody has followed takes the lease back from whoever got it meanwhile, and goes on with what it knows. That
  one has just started; its number is no higher, so no member that knows the other one has obeyed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from elps.contracts.epoch import NO_CHARGE, Charge

MARGIN = 0.1
"""Part of the time of a lease that is given up at its end: clocks do not run at quite the same speed."""
PATIENCE = 3
"""Times of a lease for which one holds back: a store that is reached again is reached by all within less."""


@dataclass
class Past:
    """What one scheduler knows of charges, its own and others', from one tenure to the next."""

    seen: int = 0  #: the highest number that anybody is known to have had
    own: int = 0  #: the highest that it had itself; 0 where it should not have
    awaited: int = (
        0  #: a store that knows of lower numbers only has forgotten somebody who may be there
    )
    lacking_since: float | None = None  #: since when it knows of lower ones only, monotonic s

    @property
    def unfollowed(self) -> bool:
        """Whether it was in charge, and nobody is known to have been after it."""
        return 0 < self.own == self.seen

    def heard(self, number: int, at: float) -> None:
        """The store's answer to a claim that it did not grant."""
        self.seen, self.awaited = max(self.seen, number), max(self.awaited, number)
        if number >= self.awaited:
            self.lacking_since = None
        elif self.lacking_since is None:
            self.lacking_since = at


class Tenure:
    """The claims of one scheduler; all times are monotonic seconds of its own clock."""

    def __init__(self, nonce: int, ttl_s: float, past: Past) -> None:
        self.nonce, self.ttl_s, self.past = nonce, ttl_s, past
        self.charge: Charge = NO_CHARGE  #: what was given to it
        self.lost = False  #: another one has followed it: it is never in charge again
        self.resumes = False  #: nobody was in charge since the same scheduler was last
        self._until = float("-inf")

    @property
    def at_least(self) -> int:
        """The least number to be given: one that members obey, where the store has forgotten others."""
        return self.charge.number or self.past.seen + 1

    @property
    def takes_back(self) -> bool:
        """Whether nobody else can rightly hold the lease: whoever does got it from a store that had forgotten."""
        return self.charge == NO_CHARGE and self.past.unfollowed

    def awaits(self, now: float) -> int:
        """The number that the store has to know of, else the lease is not to be given; 0: it may be."""
        past = self.past
        if self.charge != NO_CHARGE or self.takes_back:
            return 0
        lacking_s = 0.0 if past.lacking_since is None else now - past.lacking_since
        return past.awaited if lacking_s <= PATIENCE * self.ttl_s else 0

    def claimed(self, number: int, ours: bool, asked_at: float) -> None:
        """The store's answer to a claim that was sent at `asked_at`.

        A number that has risen means that another one was in charge in between, so what is known here is out of date.
        """
        known, past = self.charge, self.past
        if not ours:
            past.heard(number, asked_at)
        if ours and known in (NO_CHARGE, Charge(number, self.nonce)) and not self.lost:
            if known == NO_CHARGE:
                self.resumes, past.lacking_since = past.unfollowed, None
            self.charge = Charge(number, self.nonce)
            past.own, past.seen = number, max(past.seen, number)
            self._until = max(self._until, asked_at + self.ttl_s * (1 - MARGIN))
        elif known != NO_CHARGE:
            past.seen = max(past.seen, number)
            self.resigned()

    def resigned(self) -> None:
        """It is over."""
        self.lost, self._until = True, float("-inf")

    def obeyed(self, other: Charge) -> None:
        """A member tells whom it obeys: if it would not obey this one, it is over, and the next number is higher."""
        if self.charge != NO_CHARGE and not self.charge.succeeds(other):
            past = self.past
            past.seen, past.own = max(past.seen, other.number), 0
            past.awaited = max(past.awaited, other.number + 1)
            self.resigned()

    def acts(self, now: float) -> bool:
        """Whether it may do anything at this moment."""
        return not self.lost and now < self._until
