"""The leader of a job: everything that happens turned into events of its clock, and the clock's commands carried out.

Threads: one for each trainer's lease connection (`conversation`), one for each link to another shard, the threads of
this shard's own data connections, and a ticker. All of them enter by `event`, which asks the clock under the lock and
executes the commands outside of it, one thread at a time and in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count

import structlog

from elps.contracts.epoch import Epoch
from elps.contracts.errors import TaskError
from elps.contracts.ids import JobId, PartitionId, ShardId, WorkerId
from elps.contracts.messages import BatchPlan, DirectJob, HostJob, Phase
from elps.contracts.texts import LOGGED_CHARACTERS, REASON_CHARACTERS, shortened
from elps.psshard.answers import Answers
from elps.psshard.assignment import Assignment
from elps.psshard.beginning import Beginning
from elps.psshard.bridge import Bridge
from elps.psshard.checkpointing import Checkpointing
from elps.psshard.conversation import Conversation
from elps.psshard.core import commands as do
from elps.psshard.core.awake import Awake
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.core.deadlines import nothing_seen
from elps.psshard.core.inheriting import Inheritance
from elps.psshard.core.unbarred import UnbarredClock, clock_for
from elps.psshard.directions import Directions
from elps.psshard.inorder import InOrder
from elps.psshard.keeping import Keeper
from elps.psshard.link import BEAT_S
from elps.psshard.orders import Order, Orders
from elps.psshard.origin import Origin, Source
from elps.psshard.peers import Peers
from elps.psshard.reporting import Reporter
from elps.psshard.showing import Showing
from elps.psshard.ticker import Ticker
from elps.psshard.trainers import TrainerLink, Trainers
from elps.psshard.wave import Wave
from elps.stream.interval import Interval
from elps.wire.connection import Connection
from elps.wire.handshake import Refused

log = structlog.get_logger()


class Lead(Showing):
    """Leads one job under one term, on the shard whose own share is `orders`."""

    def __init__(self, host: HostJob, me: ShardId, orders: Orders, bridge: Bridge) -> None:
        self.host = host
        self.job: JobId = host.job
        self.lock = threading.Lock()
        self.reporter = Reporter(host, bridge)
        self.origin = Origin(host)
        self.trainers = Trainers(host.workers)
        self.clock: Clock | None = None  #: None until the job is opened
        self.epoch = Epoch(host.term, 0)  #: n counts openings and exchanges of the map
        self.opened = self.epoch  #: what is said under an epoch since then counts
        self._awake, self._seen = Awake(time.monotonic()), nothing_seen()  #: over all openings
        self._me, self._bridge = me, bridge
        self._commands = InOrder(
            host.job, self._execute, lambda what: self.fail(f"the leader failed: {what}")
        )
        self.keeper = Keeper(host.job, bridge, self.fail, host.first_term)
        self.checkpointing = Checkpointing(host, self.origin)
        self.beginning = Beginning(host, self)
        self._ended: tuple[Phase, str] | None = None  #: finished, failed or paused, with the reason
        self._reopening: Epoch | None = None  #: the one that is being left for a checkpoint
        self._conversation = Conversation(self)
        self._ticker, self._beat_at = Ticker(self._tick), 0.0
        self._peers = Peers(
            host, me, orders, Answers(self).reported, self._restored, bridge.beat, self.fail
        )
        self._directions = Directions(self, self._peers.know, self._end)

    def start(self) -> None:
        """Begin: dial the other shards, and find out where the job starts from."""
        self._peers.start()
        if self.beginning.asks:
            self._peers.tell(self._me, self.epoch, do.TakeStock())
        self.keeper.in_background("lead", self.beginning.ask_store)
        self.keeper.in_background("tick", lambda: self._ticker.run(self.keeper.closed))

    def close(self, reason: str) -> None:
        """Stop leading: trainers are told, links end."""
        self.keeper.closed.set()
        self._ticker.wake()
        self._send_home(reason)
        self._peers.close()

    # --- opening ------------------------------------------------------------------------------------------------------

    def open(self, source: Source) -> None:
        """Begin, or begin again, under the next epoch."""
        try:
            with self.lock:
                now = self.now()
                epoch = Epoch(self.host.term, self.epoch.n + 1)
                rules = self.origin.lay_out(source, epoch)
                self.epoch = self.opened = epoch
                self.checkpointing.forget()
                self.reporter.opened(rules, source)
                numbers = count(1)
                clock = self.clock = clock_for(rules)(
                    rules,
                    self.origin.holders,
                    self.origin.start,
                    now,
                    skips=self.origin.skips_in_force(rules.geometry),
                    checkpoint=self.reporter.progress.checkpoint,
                    evaluated=self.reporter.evaluated_at(source),
                    trained_s=self.reporter.progress.training_s,
                    moving=self.origin.moving(numbers),
                    replicas=self.origin.replicas(numbers),
                    ahead=isinstance(source, Inheritance) and source.ahead,
                    factor=source.factor if isinstance(source, Inheritance) else 1.0,
                    batches=self._directions.batches,
                    trend=self.reporter.trend,
                    seen=self._seen,
                )
                if isinstance(source, Inheritance):
                    if isinstance(clock, UnbarredClock) and source.applied is not None:
                        clock.take_over(source.applied)
                    clock.go_on(self.reporter.progress.metrics)
                elif source is not None:
                    clock.judge(source.metrics)
                clock.expect(self.trainers.allowed, now)
                self.trainers.forget_epoch()
                told = self._assignments(clock, self._peers)
        except TaskError as error:
            self.fail(str(error))
            return
        self._assign(epoch, told)
        self._conversation.greet_all()
        self.event(lambda clock, now: clock.want(self.origin.targets, now))
        if self._directions.pause_wanted:
            self.event(lambda clock, now: clock.pause(now))

    def _assignments(self, clock: Clock, to: Iterable[ShardId]) -> dict[ShardId, Assignment]:
        """What shards are to hold; one that is known later is told once its link is up."""
        # The skips in force: one that is kept for the next epoch is refused where a part of it was accepted.
        rules, skips = clock.rules, list(clock.skips)
        return {s: self.origin.assignment(s, rules.iterations, skips) for s in to}

    def _assign(self, epoch: Epoch, told: dict[ShardId, Assignment]) -> None:
        for shard, assignment in told.items():
            self._peers.tell(shard, epoch, assignment)

    def look_again(self) -> None:
        """Trainers that were ready before it was known where to begin are looked at now."""
        self._conversation.look_again()

    def admit_all(self, epoch: Epoch) -> None:
        """Admit the trainers that waited for the first values, if they are there."""
        self._conversation.admit_all(epoch)

    # --- trainers -----------------------------------------------------------------------------------------------------

    def check(self, worker: WorkerId) -> None:
        """Raise `Refused` when a trainer may not connect."""
        with self.lock:
            self._may_join(worker)

    def _may_join(self, worker: WorkerId) -> None:
        if self.keeper.closed.is_set() or self._ended is not None:
            why = f": {self._ended[1]}" if self._ended is not None else ""
            raise Refused(f"the job has ended here{why}", "over")
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

    def _restored(self, shard: ShardId) -> None:
        """A link is up: say again all that may have been lost with the one before."""
        with self.lock:
            epoch, asks = self.epoch, self.beginning.asks
            told = self._assignments(self.clock, [shard]) if self.clock is not None else {}
        if asks:
            self._peers.tell(shard, epoch, do.TakeStock())
        if not told:
            return
        self._assign(epoch, told)
        self._conversation.initialise_again()
        self.event(lambda clock, now: clock.link_restored(shard, now), epoch)

    # --- events and commands ------------------------------------------------------------------------------------------

    def event(
        self, ask: Callable[[Clock, float], list[Command]], epoch: Epoch | None = None
    ) -> None:
        """Give the clock an event, if it is of the history in force, and execute what it commands."""
        with self.lock:
            if self.clock is None or self._ended is not None:
                return
            if epoch is not None and not self._counts(epoch):
                return
            self._commands.put((self.epoch, c) for c in ask(self.clock, self.now()))
        self._commands.work()

    def _counts(self, epoch: Epoch) -> bool:
        """Whether an epoch is of the history in force, which an opening began and exchanges of the map go on with."""
        return epoch.term == self.epoch.term and self.opened.n <= epoch.n <= self.epoch.n

    def _execute(self, what: tuple[Epoch, Command]) -> None:
        since, command = what
        with self.lock:
            if not self._counts(since):
                return
            epoch = self.epoch
            wave = self.origin.wave(command) if isinstance(command, do.Follow) else None
        match command:
            case do.Lend():
                self._conversation.lend(epoch, command)
            case do.IterationDone() | do.Evaluated() | do.Remark():
                plan = self.clock.plan if self.clock else 0
                self.reporter.news(command, plan, since.n)
            case do.Dismiss(worker, reason):
                self.dismiss(worker, reason)
            case do.Fail(reason):
                self.fail(reason)
            case do.Finish() | do.Rest():
                self._end(*_end_of(command))
            case do.RollBack(interval, reason):
                self._skip(interval)
                self.reopen(reason, must_restore=self.reporter.progress.checkpoint is not None)
            case do.FindCheckpoint(version):
                self.keeper.find(version, partial(self._found, epoch, version))
            case do.Follow():
                assert wave is not None
                self._follow(epoch, wave)
            case do.Exchange(_, placed, version):
                self._exchange(epoch, placed, version)
            case do.Exchanged():
                self._conversation.tell_map()
            case _:
                self._to_shards(epoch, command)

    def _exchange(self, since: Epoch, placed: dict[PartitionId, ShardId], version: int) -> None:
        """Give every shard the new map under the next epoch."""
        with self.lock:
            if self.clock is None or since != self.epoch:
                return
            epoch = self.epoch = Epoch(self.host.term, since.n + 1)
            self.origin.carry(placed, version)
            told = self._assignments(self.clock, self._peers)
        self._assign(epoch, told)

    def _follow(self, epoch: Epoch, wave: Wave) -> None:
        self._peers.tell_all(epoch, wave)
        if not wave.standing:
            self._conversation.tell_ahead(epoch, wave.addresses)

    def _to_shards(self, epoch: Epoch, order: Order) -> None:
        """Say it to every shard, the others first: their way is longer."""
        match order:
            case do.Grant(interval, _):
                self._skip(interval)
            case do.WriteCheckpoint(version, hurry):
                self.reporter.saving(version, time.monotonic(), hurry=hurry)
                with self.lock:
                    if epoch != self.epoch:
                        return
                    self.checkpointing.begin(epoch, version)
        self._peers.tell_all(epoch, order)

    def _found(self, epoch: Epoch, version: int, there: bool) -> None:
        self.event(lambda clock, now: clock.checkpoint_found(version, there, now), epoch)

    def _skip(self, interval: Interval) -> None:
        with self.lock:
            self.origin.add_skips([interval])
            skips = self.origin.skips
        self.reporter.skipped(interval)
        self.keeper.keep_skips(skips)

    # --- goals and reports --------------------------------------------------------------------------------------------

    def direct(self, message: DirectJob) -> None:
        """Take the scheduler's word; it is given in the event loop, which must not wait for sockets and arrays."""
        self._ticker.hand(lambda: self._directions.direct(message))

    def plan_batches(self, message: BatchPlan) -> None:
        """Take its word on the workers' shares of the batch."""
        self._ticker.hand(lambda: self._directions.plan_batches(message))

    @property
    def at_work(self) -> bool:
        """Whether something may still be written to the store."""
        return self.keeper.at_work

    @property
    def ended(self) -> bool:
        """Whether the job is finished, failed or paused here."""
        with self.lock:
            return self._ended is not None

    def fail(self, reason: str) -> None:
        """The job cannot go on."""
        log.error("job_failed", job=self.job, reason=shortened(reason, LOGGED_CHARACTERS))
        self._end("failed", shortened(reason, REASON_CHARACTERS))

    def _end(self, phase: Phase, reason: str) -> None:
        """The job ends or pauses here: nothing is lent any more, trainers go home."""
        with self.lock:
            if self._ended is not None:
                return
            self._ended = (phase, reason)
        self._send_home(reason)
        self._bridge.beat()

    def _send_home(self, reason: str) -> None:
        """Tell all trainers to stop, also those that wait at a shard for a version that will not come."""
        with self.lock:
            links, epoch = self.trainers.all(), self.epoch
            calls = self.clock.close(self.now()) if self.clock is not None else []
        for link in links:
            link.stop(reason)
        for call in calls:
            self._peers.tell_all(epoch, call)

    def _tick(self) -> None:
        self.event(lambda clock, at: clock.tick(at))
        with self.lock:  # those that hold something, or are to
            needed = self._holders | set(self.origin.targets)
        self._peers.keep(needed)
        self.beginning.tick()
        if (now := time.monotonic()) - self._beat_at >= BEAT_S:
            self._beat_at = now
            self._peers.beat()
            self._conversation.beat()

    @property
    def _holders(self) -> set[ShardId]:
        """Shards that have, or may have, something of the job; call it under the lock."""
        return self.clock.holders if self.clock is not None else self.beginning.holders


def _end_of(command: do.Finish | do.Rest) -> tuple[Phase, str]:
    """Phase and reason of a job that has come to its end, or rests."""
    if isinstance(command, do.Finish):
        return "finished", f"{command.reason}, at iteration {command.version}"
    return "paused", f"paused at iteration {command.version}"
