"""The policies that can be chosen."""

from __future__ import annotations

from collections.abc import Mapping

from elps.scheduler.core.eps import Eps
from elps.scheduler.core.fifo import Fifo
from elps.scheduler.core.policy import Policy

POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (Fifo(), Eps())}
"""By name, as in ``ELPS_POLICY``."""
