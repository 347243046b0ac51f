"""The policies that can be chosen."""

from __future__ import annotations

from collections.abc import Mapping

from elps.scheduler.core.eps import Eps
from elps.scheduler.core.fair import Fair
from elps.scheduler.core.fifo import Fifo
from elps.scheduler.core.optimus import Optimus
from elps.scheduler.core.policy import Policy
from elps.scheduler.core.srtf import Srtf

POLICIES: Mapping[str, Policy] = {
    policy.name: policy for policy in (Fifo(), Fair(), Srtf(), Optimus(), Eps())
}
"""By name, as in ``ELPS_POLICY``."""
