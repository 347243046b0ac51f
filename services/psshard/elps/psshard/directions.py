"""The scheduler's word to a leader: go on or pause, who may join, where partitions are to lie, how a batch is shared.

It is repeated until the leader's heartbeat shows that it was heard, and its newest word counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Protocol

import structlog

from elps.contracts.epoch import Epoch
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.messages import Address, BatchPlan, DirectJob, Phase
from elps.psshard.beginning import Beginning
from elps.psshard.core.batches import Batches, Tail
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.origin import Origin
from elps.psshard.reporting import Reporter
from elps.psshard.trainers import Trainers

REBALANCED_S = 1.0
"""A new plan of batches is told as an event at most this often; the heartbeat and the rows show each."""

log = structlog.get_logger()


class Leader(Protocol):
    """What directions need of the leader: the state that its lock guards, and what can be asked of it."""

    job: JobId
    lock: threading.Lock
    clock: Clock | None
    origin: Origin
    trainers: Trainers
    beginning: Beginning
    reporter: Reporter

    def now(self) -> float:
        """The time that deadlines go by; asked under the lock."""

    def lose(self, gone: Collection[ShardId]) -> None:
        """Shards are gone with what they had."""

    def event(
        self, ask: Callable[[Clock, float], list[Command]], epoch: Epoch | None = None
    ) -> None:
        """Give the clock an event and execute what it commands."""


def _exit_seen(
    worker: WorkerId, text: str, spared: bool, clock: Clock, now: float
) -> list[Command]:
    return clock.exit_seen(worker, text, now, spared=spared)


class Directions:
    """What the scheduler said last. Carried out by one thread, the leader's ticker."""

    def __init__(
        self,
        lead: Leader,
        know: Callable[[Iterable[Address]], None],
        end: Callable[[Phase, str], None],
    ) -> None:
        """`know` dials shards that are new, `end` has the job end or pause."""
        self._lead, self._know, self._end = lead, know, end
        self.pause_wanted = False
        self.obeys = 0  #: highest number of a plan that says where the partitions are to lie
        self.batches = Batches()
        self._rebalanced_at = -REBALANCED_S

    def direct(self, message: DirectJob) -> None:
        """Go on or pause, who may join, how some ended, where the partitions are to lie."""
        lead, pause, workers = self._lead, message.goal == "pause", message.workers
        with lead.lock:
            unwanted = lead.trainers.plan(workers, message.exits, lead.now())
            self.pause_wanted = pause
            not_begun = lead.clock is None and lead.origin.history is None
            not_begun &= not lead.beginning.holders
        for worker, text in sorted(message.exits.items()):
            spared = worker in message.spared
            lead.event(partial(_exit_seen, worker, text, spared))
        for link, why in unwanted:
            log.info("trainer_unwanted", job=lead.job, worker=link.worker, reason=why)
            link.stop(why)
        lead.event(lambda clock, now: clock.expect(workers, now))
        if message.shards and message.plan >= self.obeys:
            if message.lost:  # before others come, who have nothing to say of what is there
                lead.lose(message.lost)
            self._know(message.shards)
            with lead.lock:
                lead.origin.want(message.shards)
            lead.event(lambda clock, now: clock.want(lead.origin.targets, now))
            self.obeys = message.plan
        lead.event(lambda clock, now: clock.pause(now) if pause else clock.resume(now))
        if pause and not_begun:
            self._end("paused", "paused before it began")

    def plan_batches(self, message: BatchPlan) -> None:
        """The workers' shares of the batch."""
        lead, now = self._lead, time.monotonic()
        tail = Tail(message.tail, message.least, message.trial)
        with lead.lock:
            if message.number <= self.batches.number:
                return
            tell = self.batches.rebalances(message.shares, tail)
            tell &= now - self._rebalanced_at >= REBALANCED_S
            if lead.clock is None:  # the first cut goes by it
                self.batches.plan(message.number, message.shares, message.reason, tail)
            self._rebalanced_at = now if tell else self._rebalanced_at
        lead.event(
            lambda clock, _: clock.plan_batches(
                message.number, message.shares, message.reason, tail
            )
        )
        if tell:
            lead.reporter.event("rebalanced", message.reason)
