"""The leader of a job: everything that happens turned into events of its clock, and the clock's commands carried out.

Threads: one for each trainer's lease connection (`conversation`), one for each link to another shard, the threads of
this shard's own data connections, and a ticker. All of them enter by `event`, which asks the clock under the lock and
executes the commands outside of it, one thread at a time and in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from elps.contracts.epoch import Epoch
from elps.contracts.errors import TaskError
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.messages import HostedJob, HostJob, Phase
from elps.psshard.bridge import Bridge
from elps.psshard.checkpointing import Checkpointing
from elps.psshard.conversation import Conversation
from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.inorder import InOrder
from elps.psshard.keeping import Keeper
from elps.psshard.link import BEAT_S
from elps.psshard.orders import Order, Orders
from elps.psshard.origin import Origin
from elps.psshard.peers import Peers
from elps.psshard.phases import live_phase
from elps.psshard.reporting import Reporter
from elps.psshard.reports import Frozen, Missed, Progressed, Report, Trouble, Written
from elps.psshard.ticker import Ticker
from elps.psshard.trainers import TrainerLink, Trainers
from elps.storage.checkpoints import Manifest
from elps.stream.interval import Interval
from elps.wire.connection import Connection
from elps.wire.handshake import Refused

LAGS_S = 5.0
"""A checkpoint that is not in the store after this time is shown."""

log = structlog.get_logger()


class Lead:
    """Leads one job under one term, on the shard whose own share is `orders`."""

    def __init__(self, host: HostJob, me: ShardId, orders: Orders, bridge: Bridge) -> None:
        self.host = host
        self.job: JobId = host.job
        self.lock = threading.Lock()
        self.reporter = Reporter(host, bridge)
        self.origin = Origin(host)
        self.trainers = Trainers(host.workers)
        self.clock: Clock | None = None  #: None until the job is opened
        self.epoch = Epoch(host.term, 0)  #: n counts openings; 0: not opened yet
        self._me, self._bridge = me, bridge
        self._commands = InOrder(host.job, self._execute, self._broken)
        self._keeper = Keeper(host.job, bridge, self.fail)
        self._checkpointing = Checkpointing(host, self.origin)
        self._ended: tuple[Phase, str] | None = None  #: finished, failed or paused, with the reason
        self._pause_wanted = False
        self._conversation = Conversation(self)
        self._ticker, self._beat_at = Ticker(self._tick), 0.0
        self._peers = Peers(host, me, orders, self.reported, self._restored, self.fail)

    def start(self) -> None:
        """Begin: dial the other shards, and find out where the job starts from."""
        self._peers.start()
        self._keeper.in_background("lead", self._resolve)
        self._keeper.in_background("tick", lambda: self._ticker.run(self._keeper.closed))

    def close(self, reason: str) -> None:
        """Stop leading: trainers are told, links end."""
        self._keeper.closed.set()
        self._ticker.wake()
        with self.lock:
            links = self.trainers.all()
        for link in links:
            link.stop(reason)
        self._peers.close()

    # --- opening ------------------------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Find the newest checkpoint and the skips; without one the first ready trainer says what the job is."""
        skips, manifests = self._keeper.skips(), self._keeper.manifests()
        try:
            with self.lock:
                manifest = self.origin.remember(skips, manifests)
        except TaskError as error:
            self.fail(str(error))
            return
        if manifest is not None:
            self.open(manifest)
        self._conversation.look_again()

    def open(self, manifest: Manifest | None) -> None:
        """Begin, or begin again, under the next epoch: from a checkpoint, or from version 0."""
        now = time.monotonic()
        try:
            with self.lock:
                rules = self.origin.lay_out(manifest)
                epoch = self.epoch = Epoch(self.host.term, self.epoch.n + 1)
                self._checkpointing.forget()
                metrics_at = manifest.metrics_iteration if manifest is not None else None
                clock = self.clock = Clock(
                    rules,
                    self._peers,
                    self.origin.start,
                    now,
                    skips=self.origin.skips,
                    checkpoint=self.origin.start if manifest is not None else None,
                    evaluated=metrics_at if metrics_at is not None else -1,
                    trained_s=self.reporter.progress.training_s,
                )
                clock.expect(self.trainers.allowed, now)
                self.reporter.opened(rules, manifest)
                self.trainers.forget_epoch()
                assignments = {
                    shard: self.origin.assignment(shard, rules.iterations) for shard in self._peers
                }
        except TaskError as error:
            self.fail(str(error))
            return
        for shard in self._peers:
            self._peers.tell(shard, epoch, assignments[shard])
        self._conversation.greet_all()
        if self._pause_wanted:
            self.event(lambda clock, now: clock.pause(now))

    def _reopen(self, reason: str, *, must_restore: bool) -> None:
        """Go back to the newest checkpoint that can be loaded."""

        def run() -> None:
            manifests = self._keeper.manifests()
            with self.lock:
                manifest = self.origin.usable(manifests)
            if manifest is None and must_restore:
                self.fail(f"{reason}; no older checkpoint is left to go back to")
                return
            self.reporter.event("rolled_back", reason)
            self.open(manifest)

        self._keeper.in_background("back", run)

    # --- trainers -----------------------------------------------------------------------------------------------------

    def check(self, worker: WorkerId) -> None:
        """Raise `Refused` when a trainer may not connect."""
        with self.lock:
            self._may_join(worker)

    def _may_join(self, worker: WorkerId) -> None:
        if self._keeper.closed.is_set() or self._ended is not None:
            raise Refused("the job has ended here", "over")
        self.trainers.check(worker)

    def join(self, link: TrainerLink) -> None:
        """Take a trainer in that has shaken hands; raise `Refused` when it may not any more."""
        with self.lock:
            self._may_join(link.worker)
            self.trainers.add(link)

    def serve_trainer(self, connection: Connection, worker: WorkerId) -> None:
        """Serve a trainer's lease connection until it ends."""
        self._conversation.serve(connection, worker)

    def dismiss(self, worker: WorkerId, reason: str) -> None:
        """Give up on a trainer; the scheduler sees to its end and to another one."""
        with self.lock:
            self.trainers.dismissed[worker] = reason
            link = self.trainers.get(worker)
        log.warning("trainer_dismissed", job=self.job, worker=worker, reason=reason)
        if link is not None:
            link.stop(reason)
        self._bridge.beat()

    # --- shards -------------------------------------------------------------------------------------------------------

    def reported(self, shard: ShardId, report: Report) -> None:
        """A shard's answer or progress."""
        epoch = report.epoch
        match report:
            case Progressed(_, version):
                self.event(lambda clock, now: clock.progressed(shard, version, now), epoch)
                self._conversation.admit_all(epoch)
            case Frozen(_, interval, attempt, clean):
                self.event(
                    lambda clock, now: clock.freeze_answered(shard, interval, attempt, clean, now),
                    epoch,
                )
            case Written():
                self._collect(shard, report)
            case Missed(_, version):
                self.reporter.saving(None, time.monotonic())
                self.event(lambda clock, now: clock.checkpoint_abandoned(version, now), epoch)
            case Trouble(_, reason, damaged):
                self._trouble(shard, epoch, reason, damaged)

    def _trouble(self, shard: ShardId, epoch: Epoch, reason: str, damaged: bool) -> None:
        with self.lock:
            if epoch != self.epoch:
                return
            condemned = self.origin.condemn() if damaged else None
        if condemned is not None:
            what = f"checkpoint {condemned} cannot be loaded by {shard}: {reason}"
            self._reopen(what, must_restore=True)
        elif not damaged:
            self.fail(f"{shard}: {reason}")

    def _restored(self, shard: ShardId) -> None:
        """A link is up: say again all that may have been lost with the one before."""
        with self.lock:
            if self.clock is None:
                return
            epoch = self.epoch
            # The skips in force: one that is kept for the next epoch is refused where a part of it was accepted.
            rules, skips = self.clock.rules, list(self.clock.skips)
            assignment = self.origin.assignment(shard, rules.iterations, skips)
        self._peers.tell(shard, epoch, assignment)
        self._conversation.initialise_again()
        self.event(lambda clock, now: clock.link_restored(shard, now), epoch)

    def _collect(self, shard: ShardId, report: Written) -> None:
        with self.lock:
            if report.epoch != self.epoch:
                return
            progress = self.reporter.progress
            manifest = self._checkpointing.take(shard, report, progress, time.time())

        def valid() -> None:
            self.reporter.checkpointed(report.version)
            self.event(
                lambda clock, now: clock.checkpoint_written(report.version, now), report.epoch
            )

        if manifest is not None:
            self._keeper.publish(manifest, lambda: self.epoch == report.epoch, valid)

    # --- events and commands ------------------------------------------------------------------------------------------

    def event(
        self, ask: Callable[[Clock, float], list[Command]], epoch: Epoch | None = None
    ) -> None:
        """Give the clock an event, if it is of the epoch in force, and execute what it commands."""
        with self.lock:
            if self.clock is None or self._ended is not None:
                return
            if epoch is not None and epoch != self.epoch:
                return
            self._commands.put((self.epoch, c) for c in ask(self.clock, time.monotonic()))
        self._commands.work()

    def _execute(self, what: tuple[Epoch, Command]) -> None:
        epoch, command = what
        if epoch != self.epoch:
            return
        match command:
            case do.Lend():
                self._conversation.lend(epoch, command)
            case (
                do.AnnounceGate()
                | do.Freeze()
                | do.Thaw()
                | do.Grant()
                | do.CallBack()
                | do.WriteCheckpoint()
            ):
                self._to_shards(epoch, command)
            case do.Dismiss(worker, reason):
                self.dismiss(worker, reason)
            case do.RollBack(interval, reason):
                self._skip(interval)
                self._reopen(reason, must_restore=self.reporter.progress.checkpoint is not None)
            case do.Fail(reason):
                self.fail(reason)
            case do.Finish(version, reason):
                self._end("finished", f"{reason}, at iteration {version}")
            case do.Rest(version):
                self._end("paused", f"paused at iteration {version}")
            case do.Evaluated(version, metrics):
                self.reporter.evaluated(version, metrics)
            case do.IterationDone():
                self.reporter.iteration_done(command, self.clock.plan if self.clock else 0)
            case do.Remark(happened, reason, about, iteration):
                self.reporter.event(happened, reason, worker=about, iteration=iteration)

    def _to_shards(self, epoch: Epoch, order: Order) -> None:
        """Say it to every shard, the others first: their way is longer."""
        match order:
            case do.Grant(interval, _):
                self._skip(interval)
            case do.WriteCheckpoint(version):
                self.reporter.saving(version, time.monotonic())
                with self.lock:
                    if epoch != self.epoch:
                        return
                    self._checkpointing.begin(epoch, version)
        self._peers.tell_all(epoch, order)

    def _skip(self, interval: Interval) -> None:
        with self.lock:
            self.origin.add_skips([interval])
            skips = self.origin.skips
        self.reporter.skipped(interval)
        self._keeper.keep_skips(skips)

    # --- goals and reports --------------------------------------------------------------------------------------------

    def direct(self, goal: str, workers: list[WorkerId], exits: dict[WorkerId, str]) -> None:
        """The scheduler's word: go on or pause, who may join, how some ended.

        Carried out by the ticker: it is given in the event loop, which must not wait for sockets and arrays.
        """
        self._ticker.hand(lambda: self._direct(goal, workers, exits))

    def _direct(self, goal: str, workers: list[WorkerId], exits: dict[WorkerId, str]) -> None:
        pause = goal == "pause"
        with self.lock:
            self.trainers.allowed = set(workers)
            self._pause_wanted = pause
            not_begun = self.clock is None
        for worker, text in sorted(exits.items()):
            self._exited(worker, text)
        self.event(lambda clock, now: clock.expect(workers, now))
        self.event(lambda clock, now: clock.pause(now) if pause else clock.resume(now))
        if pause and not_begun:
            self._end("paused", "paused before it began")

    def _exited(self, worker: WorkerId, text: str) -> None:
        self.event(lambda clock, now: clock.exit_seen(worker, text, now))

    @property
    def at_work(self) -> bool:
        """Whether something may still be written to the store."""
        return self._keeper.at_work

    @property
    def ended(self) -> bool:
        """Whether the job is finished, failed or paused here."""
        with self.lock:
            return self._ended is not None

    def fail(self, reason: str) -> None:
        """The job cannot go on."""
        log.error("job_failed", job=self.job, reason=reason)
        self._end("failed", reason)

    def _broken(self, what: str) -> None:
        self.fail(f"the leader failed: {what}")

    def _end(self, phase: Phase, reason: str) -> None:
        """The job ends or pauses here: nothing is lent any more, trainers go home."""
        with self.lock:
            if self._ended is not None:
                return
            self._ended = (phase, reason)
            links, epoch = self.trainers.all(), self.epoch
            calls = self.clock.close(time.monotonic()) if self.clock is not None else []
        for link in links:
            link.stop(reason)
        for call in calls:
            self._to_shards(epoch, call)
        self._bridge.beat()

    def _tick(self) -> None:
        self.event(lambda clock, at: clock.tick(at))
        if (now := time.monotonic()) - self._beat_at >= BEAT_S:
            self._beat_at = now
            self._peers.beat()
            self._conversation.beat()

    def status(self, bytes_held: int) -> HostedJob:
        """The job as the leader's beat shows it."""
        with self.lock:
            clock, now = self.clock, time.monotonic()
            phase, reason = self._ended or live_phase(
                clock,
                now,
                unreachable=self._peers.out_of_reach(now),
                store_asked=self.origin.known,
                store_trouble=self._keeper.trouble,
                lag=self.reporter.lag(now, LAGS_S, self._keeper.trouble),
                pausing=self._pause_wanted,
            )
            if clock is not None:
                self.reporter.follow(clock, now)
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
            )
