"""A member obeys the newest scheduler that it has heard, and no older one again."""

from __future__ import annotations

from elps.contracts.epoch import NO_CHARGE, Charge
from elps.contracts.messages import Order
from elps.runtime.obeying import Obedience


def test_the_newest_is_obeyed_and_who_came_before_it_is_not() -> None:
    obedience = Obedience()
    for by, counts in (
        (NO_CHARGE, True),
        (Charge(2, 7), True),
        (Charge(1, 9), False),
        (Charge(2, 8), False),
        (Charge(2, 7), True),
        (NO_CHARGE, False),
        (Charge(3, 1), True),
        (Charge(2, 7), False),
    ):
        assert obedience.owed_to(Order(by=by)) is counts
    assert obedience.to == Charge(3, 1)
