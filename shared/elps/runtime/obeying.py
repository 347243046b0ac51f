"""Whose orders a member obeys: the newest scheduler's that has given any."""

from __future__ import annotations

import structlog

from elps.contracts.epoch import NO_CHARGE, Charge
from elps.contracts.messages import Order

log = structlog.get_logger(__name__)


class Obedience:
    """What one member remembers of its schedulers."""

    def __init__(self) -> None:
        self.to: Charge = NO_CHARGE

    def owed_to(self, order: Order) -> bool:
        """Whether an order counts; one of a scheduler that another has followed does not, and is logged."""
        if not order.by.succeeds(self.to):
            log.warning("order_of_an_old_scheduler", by=order.by.number, obeys=self.to.number)
            return False
        self.to = order.by
        return True
