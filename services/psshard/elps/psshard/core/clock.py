"""The leader's clock: who computes which interval, when a version is announced, when the job rests or ends.

Events come in with the time; commands go out, to be executed in order. The clock never waits and never sends: lost
messages show as deadlines that pass, or are said again when a link comes back (docs/protocol.md has the whole of it).

Its parts decide one thing each: `Lending` who computes what, `Deadlines` who takes too long, `Deaths` what kills
workers, `Skipping` what is skipped, `Saving` when to write a checkpoint, `Goal` how far to go, `Rows` what is reported.
What is left here is the order between them:

* A version is checkpointed before its gate is announced: after that a partition may leave it, and its optimizer state,
  of which there is one copy, is overwritten.
* The gate of *t* is announced once all partitions hold *t*, but not while an evaluation of an older version is open: so
  nobody leaves *t*, and *t-1* can still be pulled by whoever must redo a piece of it. Nor where the job rests or ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elps.contracts.ids import ShardId, WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.arriving import Arrivals
from elps.psshard.core.batches import Batches, Tail
from elps.psshard.core.clipping import Clipping, Norms
from elps.psshard.core.commands import Command, Timing
from elps.psshard.core.cut import Cut, Hold
from elps.psshard.core.deadlines import Deadlines, Seen, nothing_seen
from elps.psshard.core.deaths import Deaths
from elps.psshard.core.goal import Goal
from elps.psshard.core.lending import Lending
from elps.psshard.core.moving import Moving
from elps.psshard.core.relocating import Relocating
from elps.psshard.core.replicating import Replicas
from elps.psshard.core.rows import Rows
from elps.psshard.core.rules import Rules
from elps.psshard.core.saving import Saving
from elps.psshard.core.skipping import Skipping
from elps.psshard.core.stopping import Stopping, Trend
from elps.stream.interval import Interval, IntervalSet


class Clock(Relocating):
    """The clock of one job under one epoch. `now` is always monotonic seconds.

    `shards` are those that hold partitions: one without any would never progress, and what it says is ignored.
    """

    def __init__(
        self,
        rules: Rules,
        shards: Iterable[ShardId],
        start: int,
        now: float,
        *,
        skips: Iterable[Interval] = (),
        checkpoint: int | None = None,
        evaluated: int = -1,
        trained_s: float = 0.0,
        moving: Moving | None = None,
        replicas: Replicas | None = None,
        ahead: bool = False,
        factor: float = 1.0,
        batches: Batches | None = None,
        trend: Trend | None = None,
        seen: Seen | None = None,
    ) -> None:
        """`checkpoint` is the newest version in the store; `ahead`: some partition holds the version after `start`, and
        its gradient was multiplied by `factor`;
        `batches` are those of the term, which may have heard plans before; `trend` is that of what was evaluated;
        `seen` is how long leases took before this clock began.
        """
        self.rules = rules
        self.start = start
        self.held = dict.fromkeys(sorted(shards), start - 1)  #: version that a whole shard holds
        self.t = start  #: oldest iteration not complete on every partition
        self.gate = start - 1  #: highest version announced
        self.skips = IntervalSet(skips)  #: granted
        self.expected: set[WorkerId] = set()  #: those the plan speaks of
        self.plan = 0
        self.over = False  #: finished, failed or rolled back: nothing is decided any more
        self._goal, self._stopping = Goal(rules.iterations), Stopping(rules, trend)
        self._evaluated = evaluated  #: newest version known to be, at the beginning
        self._batches = batches or Batches()
        self._lending = Lending(rules, self._goal, self.skips, evaluated, self._batches)
        self.workers = self._lending.workers  #: ready ones; to be read only
        self._deadlines = Deadlines(rules, now, nothing_seen() if seen is None else seen)
        self._arrivals = Arrivals(rules, self._deadlines)
        self._skipping = Skipping(rules, self._lending, self.skips, self.held)
        self._clipping = Clipping(rules.clip_norm, self.held, {start: factor} if ahead else {})
        self._least = start + ahead  #: versions before it have been left, somewhere
        self._saving = Saving(rules, checkpoint, now)
        self._rows = Rows(now)
        self._moving = moving or Moving({}, {})
        self._replicas = replicas or Replicas()
        self._trained_before = trained_s
        self._begun: float | None = None  #: when lending began
        self._ready_since: float | None = None
        self._deaths = Deaths(rules.max_deaths)
        self._out: list[Command] = []

    # --- workers ------------------------------------------------------------------------------------------------------

    def expect(self, workers: Iterable[WorkerId], now: float) -> list[Command]:
        """The plan names these workers; training begins when all are ready or patience ends."""
        self.expected = set(workers)
        return self._serve(now)

    def greeted(self, worker: WorkerId, now: float) -> list[Command]:
        """A ready trainer is about to be told the map: it has to ask."""
        self._arrivals.greeted(worker, now)
        return self._take()

    def brings(self, worker: WorkerId, now: float) -> list[Command]:
        """A ready trainer is about to be told to bring version 0."""
        self._arrivals.brings(worker, now)
        return self._take()

    def worker_ready(self, worker: WorkerId, now: float) -> list[Command]:
        """A worker's process is connected, its task and data agree with the job's."""
        if worker not in self._lending.workers and not self.over:
            self._lending.join(worker, now)
            self._arrivals.joined()
            self.plan += 1
            self._ready_since = now if self._ready_since is None else self._ready_since
            self._out.append(do.Remark("worker_joined", "ready", worker, self.t))
        return self._serve(now)

    def worker_lost(self, worker: WorkerId, cause: str, now: float) -> list[Command]:
        """A worker's connection ended, or it was given up; its pieces are lent again."""
        self._lose(worker, cause, now)
        return self._serve(now)

    def worker_left(self, worker: WorkerId, why: str, now: float) -> list[Command]:
        """A worker went of its own accord, between two leases: nobody is to blame for it."""
        self._lose(worker, why, now, died=False)
        return self._serve(now)

    def worker_retires(self, worker: WorkerId, now: float) -> list[Command]:
        """A worker ends what it has in hand, then it goes."""
        if worker in self._lending.workers:
            self._lending.retire(worker, now)
        return self._serve(now)

    def _lose(self, worker: WorkerId, cause: str, now: float, *, died: bool = True) -> None:
        self._arrivals.gone(worker)
        if worker not in self._lending.workers:
            return
        self.plan += 1
        pushed = self._rows.acknowledged(worker)
        self._rows.lost(worker)
        what = "worker_lost" if died else "worker_left"
        self._out.append(do.Remark(what, cause, worker, self.t))
        lease = self._lending.hands.get(worker)
        begun = lease is not None and lease.version <= self.t + self.rules.ahead
        if died and lease is not None and begun and self._complete_everywhere:
            self._deaths.died(worker, lease, cause, now)
        self._out += self._lending.leave(worker, f"{worker} is lost: {cause}", pushed)

    def exit_seen(
        self, worker: WorkerId, text: str, now: float, *, spared: bool = False
    ) -> list[Command]:
        """An agent told how a worker's process ended, whose connection may look alive for a while yet.

        `spared`: the network, or its machine, has let it down.
        """
        self._lose(worker, text, now, died=not spared)
        if (lease := self._deaths.exited(worker, spared=spared)) is not None:
            self._lending.forgive(lease)
        if (verdict := self._deaths.verdict(now, worker, text)) is not None:
            self._fail(verdict)
        return self._serve(now)

    def plan_batches(
        self,
        number: int,
        shares: Mapping[WorkerId, int],
        reason: str = "",
        tail: Tail = Tail(),  # noqa: B008 (it never changes)
    ) -> list[Command]:
        """The scheduler shares out the batch anew: from the next fresh cut on, if this is its newest word."""
        if self._batches.plan(number, shares, reason, tail):
            self.plan += 1
        return self._take()

    # --- leases -------------------------------------------------------------------------------------------------------

    def asked(self, worker: WorkerId, now: float) -> list[Command]:
        """A worker has nothing in hand and wants to be lent something; or a trainer that is not admitted yet does."""
        self._arrivals.asked(worker)
        if worker in self._lending.workers:
            self._lending.ask(worker, now)
        return self._serve(now)

    def computed(
        self,
        worker: WorkerId,
        iteration: int,
        interval: Interval,
        loss_sum: float,
        timing: Timing,
        now: float,
    ) -> list[Command]:
        """A worker has the gradient of a lease and is about to push it."""
        self._lending.answered(worker, iteration, interval, now)
        piece = self._lending.lent(worker, iteration, interval)
        if piece is not None:
            if (
                not piece.tail
            ):  # these are small: they say nothing of what a share of the batch takes
                self._deadlines.took("train", piece.lent_at, now)
        else:  # complete already: others did it, or the news of it overtook this
            piece = self._rows.lent(worker, iteration, interval)
        if piece is not None:
            piece.hold, piece.loss = Hold.COMPUTED, loss_sum
            self._rows.computed(iteration, worker, timing)
        return self._take()

    def pushed(self, worker: WorkerId, iteration: int, push_s: float) -> list[Command]:
        """Every shard has acknowledged a worker's push."""
        self._rows.pushed(iteration, worker, push_s)
        return self._take()

    def evaluated(
        self, worker: WorkerId, version: int, interval: Interval, sums: dict[str, float], now: float
    ) -> list[Command]:
        """A worker has evaluated its part of the held-out samples."""
        self._lending.answered(worker, version, interval, now)
        current = self._lending.round
        if current is None or current.version != version or self.over:
            return self._take()
        piece = current.cut.find(interval, worker)
        if piece is not None and current.report(worker, interval, sums):
            self._deadlines.took("evaluate", piece.lent_at, now)
        if current.finished:
            self._lending.round, self._lending.evaluated = None, version
            if enough := self._stopping.evaluated(version, metrics := current.means()):
                self._goal.stop(self._next_boundary(), enough)
            self._out.append(do.Evaluated(version, metrics, self._stopping.trend))
        return self._serve(now)

    # --- skips --------------------------------------------------------------------------------------------------------

    def bad_gradient(
        self, worker: WorkerId, iteration: int, interval: Interval, what: str, now: float
    ) -> list[Command]:
        """A worker's gradient of a lease is not finite: freeze the interval and ask whether it may be skipped."""
        self._lending.answered(worker, iteration, interval, now)
        if not self.over:
            self._out += self._skipping.bad(worker, iteration, interval, what)
        return self._serve(now)

    def freeze_answered(
        self, shard: ShardId, interval: Interval, attempt: int, clean: bool, now: float
    ) -> list[Command]:
        """A shard has frozen an interval and said whether nothing of it was accepted."""
        if not self.over:
            self._out += self._skipping.answered(shard, interval, attempt, clean)
            self.over = any(isinstance(c, do.RollBack) for c in self._out)
        return self._serve(now)

    def link_restored(self, _shard: ShardId, now: float) -> list[Command]:
        """A shard is reachable again: say again, to all, what may have been lost on the way. Repeats do no harm."""
        self._out += [*self._skipping.again(), *self._saving.again()]
        self._out += [*self._moving.again(), *self._replicas.again()]
        self._out += [do.AnnounceGate(self.gate)] if self.gate >= self.start else []
        self._out += self._lending.called_back()
        return self._serve(now)

    # --- versions -----------------------------------------------------------------------------------------------------

    def progressed(
        self, shard: ShardId, version: int, now: float, exchange: int = 0
    ) -> list[Command]:
        """All partitions of a shard hold `version`, under the map of this exchange.

        Under an earlier map a shard may have held no partitions, and such a one holds every version.
        """
        if exchange != self._moving.exchanges:
            return self._take()
        self._out += (exchanged := self._moving.took_map(shard, exchange))
        if self.over or version <= self.held.get(shard, version):
            return self._serve(now) if exchanged else self._take()
        before = min(self.held.values())
        self.held[shard] = version
        if min(self.held.values()) > before:
            while self.t < min(self.held.values()):
                self._complete(now)
            self._deadlines.moved(now)
            self._save()
        return self._serve(now)

    def measured(self, shard: ShardId, iteration: int, norms: Norms) -> list[Command]:
        """A shard has measured what its partitions have of the gradient of an iteration."""
        if not self.over and iteration >= self.t:
            self._out += self._clipping.measured(shard, iteration, norms)
            self.over = any(isinstance(c, do.Fail) for c in self._out)
        return self._take()

    def _save(self) -> None:
        """A version is complete everywhere, and its gate is not announced: checkpoint it if it is time."""
        if self._goal.halt is None:
            self._out += self._saving.begin(self.t)

    def _complete(self, now: float) -> None:
        self._deaths.progressed()
        self._clipping.completed(self.t)
        cut, whole = self._lending.cuts.pop(self.t, None), self.rules.geometry.iteration(self.t)
        skipped = self._skipping.complete(self.t)
        self._rows.complete(self.t, whole.size - skipped, skipped, cut or Cut([]), now)
        if why := self._skipping.hopeless:
            self._fail(why)
        self.t += 1
        if reason := self.rules.time_is_up(self.trained_s(now)):
            self._goal.stop(self._next_boundary(), reason)
        self._out += self._saving.reached(self.t)

    def _announce(self) -> None:
        """Announce the gate of t, unless something has to keep t, or the version before it, where it is."""
        current = self._lending.round
        if (
            self.gate < self.t
            and self._complete_everywhere
            and (self._goal.passes(self.t) or (self.t == self.start and self._goal.halt is None))
            and (current is None or current.version >= self.t)
            and not self._lending.due(self.t)
            and self._replicas.hold(self.t)
        ):
            self.gate = self.t
            self._out.append(do.AnnounceGate(self.t))

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        """Time passed: look at every deadline."""
        if self.over:
            return self._take()
        if (verdict := self._deaths.verdict(now)) is not None:
            self._fail(verdict)
            return self._take()
        if self._begun is not None:
            self._out += self._saving.look(now)
        for worker, reason in self._arrivals.overdue(now):
            self._out.append(do.Dismiss(worker, reason))
            self._arrivals.gone(worker)
        if self._complete_everywhere:
            for worker, reason in self._deadlines.overdue(self._lending, self.t, now):
                self._out.append(do.Dismiss(worker, reason))
                self._lose(worker, reason, now)
        cut = self._lending.cuts.get(self.t) if self.gate >= self.t else None
        if cut is not None and self._deadlines.stuck(cut, now):
            for piece in list(cut.pieces):
                why = "computed, but not complete on every partition in time"
                self._out += self._lending.free(self.t, piece, 1, why)
        return self._serve(now)

    def close(self, now: float) -> list[do.CallBack | do.Unfollow]:
        """The job ends or rests here: those who wait for a version that will not come are called back."""
        self.over = True
        calls: list[do.CallBack | do.Unfollow] = [*self._lending.call_all_back(now)]
        return [*calls, *self._moving.close(), *self._replicas.close()]

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _serve(self, now: float) -> list[Command]:
        """Lend what can be lent, announce what can be announced, rest or end when it is time."""
        if self.over or self._deaths.doomed:
            return self._take()
        if self._begun is not None and self._complete_everywhere:
            self._move(now)
        if self._may_begin(now) and not self._goal.resting and not self._moving.exchanging:
            self._out += self._lending.serve(self.t, now)
        self._announce()
        if not self._goal.passes(self.t):
            self._settle(now)
        return self._take()

    def _may_begin(self, now: float) -> bool:
        if self._begun is None and self._ready_since is not None and self.workers:
            patient = now - self._ready_since < self.rules.patience_s
            if not patient or self.expected <= self.workers:
                self._begun = now
                self._deadlines.moved(now)
        return self._begun is not None

    def _fail(self, reason: str) -> None:
        if not self.over:
            self.over = True
            self._out.append(do.Fail(reason))

    def _take(self) -> list[Command]:
        out, self._out = [*self._out, *self._rows.take()], []
        return sorted(out, key=lambda c: isinstance(c, do.Follow))  # nothing waits for copies
