"""Terms and epochs: what gives a message of the data plane its authority; and charges, which give it to an order.

A *term* names one leader of a job: a number that only grows, and a nonce, since the store may forget its newest second
and then hand out the same number twice. Within a term, `n` counts the changes of ownership. A receiver remembers the
highest epoch it has seen: it refuses anything lower, and an equal number with another nonce.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from elps.contracts.numbers import Natural, Ownership


class Term(msgspec.Struct, frozen=True, order=True):
    """The reign of one leader of one job."""

    number: Natural = msgspec.field(default=0)
    nonce: Natural = msgspec.field(default=0)


class Charge(msgspec.Struct, frozen=True, order=True):
    """The time in which one scheduler of several is in charge of the stack; what a member obeys.

    The number grows with each change, and the nonce tells apart what the store gave the same number.
    """

    number: Natural = msgspec.field(default=0)
    nonce: Natural = msgspec.field(default=0)

    def succeeds(self, known: Charge) -> bool:
        """Whether the orders of this one count for a member that has obeyed `known` last."""
        return self == known or self.number > known.number


class Epoch(msgspec.Struct, frozen=True):
    """A term and the number of ownership changes within it."""

    term: Term
    n: Ownership = 0


class Standing(Enum):
    """How a received epoch stands to the highest one known."""

    CURRENT = "current"
    NEWER = "newer"
    STALE = "stale"


def standing(received: Epoch, known: Epoch) -> Standing:
    """Compare a received epoch with the known one; an equal term number with another nonce is stale."""
    if received == known:
        return Standing.CURRENT
    if received.term.number > known.term.number:
        return Standing.NEWER
    if received.term == known.term and received.n > known.n:
        return Standing.NEWER
    return Standing.STALE


NO_CHARGE = Charge(0, 0)
"""Of a scheduler that knows of no others."""

NO_EPOCH = Epoch(Term(0, 0), 0)
"""Lower than every epoch in use."""
