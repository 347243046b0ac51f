"""The side of a leader that says how its job stands, in a word and a reason for people: what its heartbeat shows."""

from __future__ import annotations

import time
from collections.abc import Collection

from elps.contracts.ids import ShardId
from elps.contracts.messages import HostedJob, Phase
from elps.psshard.directions import Directions
from elps.psshard.resuming import Resuming
from elps.psshard.trainers import Trainers

LAGS_S = 5.0
"""A checkpoint that is not in the store after this time is shown."""
QUIET_S = 1.0
"""A wait that lasts longer is told, with whom it is for."""


class Showing(Resuming):
    """Nothing here changes the job."""

    trainers: Trainers
    _directions: Directions

    def status(self, bytes_held: int) -> HostedJob:
        """The job as the leader's beat shows it."""
        with self.lock:
            clock, said, now, awake = self.clock, self._directions, time.monotonic(), self.now()
            holders = self._holders or set(self.origin.targets)
            phase, reason = self._ended or self._live_phase(now, awake, holders)
            if clock is not None:
                self.reporter.follow(clock, awake)
            return HostedJob(
                job=self.job,
                term=self.host.term,
                leads=True,
                bytes_held=bytes_held,
                phase=phase,
                reason=reason,
                progress=self.reporter.progress,
                plan=clock.plan if clock is not None else 0,
                ready=self.trainers.admitted(),
                dismissed=dict(self.trainers.dismissed),
                gone=self.trainers.gone(),
                holders=sorted(holders),
                obeys=said.obeys,
                unreachable=self.out_of_use(now, awake),
                batches=said.batches.number,
                shares=dict(said.batches.planned),
                shares_reason=said.batches.reason,
                moving=clock.moving if clock is not None else "",
                replicas=clock.replicas if clock is not None else "",
                opened=self.origin.history.opened if self.origin.history is not None else None,
            )

    def _live_phase(
        self, now: float, awake: float, holders: Collection[ShardId]
    ) -> tuple[Phase, str]:
        """Phase and reason of a job that has not ended; without a reason training goes on as it should."""
        clock, trouble = self.clock, self.keeper.trouble
        if unreachable := self._peers.out_of_reach(now, holders):
            return "waiting", f"cannot reach {unreachable}"
        if clock is None:
            return "loading", self.beginning.waiting_for()
        if not clock.has_values:
            behind = ", ".join(s for s, v in clock.held.items() if v < clock.start)
            from_store = self.origin.manifest is not None
            refused = f"; the store refuses them: {trouble}" if from_store and trouble else ""
            return "loading", f"waiting for the first values on {behind}{refused}"
        if not clock.workers and clock.needs_workers:
            return "waiting", "no worker is ready"
        if clock.over:
            return "waiting", trouble or "going back to the newest checkpoint"
        if not clock.begun:
            return "loading", clock.waiting_for(awake)
        quiet = clock.waiting_for(awake) if clock.quiet_s(awake) > QUIET_S else ""
        lag = self.reporter.lag(now, LAGS_S, trouble)
        phase: Phase = "pausing" if self._directions.pause_wanted else "running"
        return phase, "; ".join(filter(None, (quiet, lag)))
