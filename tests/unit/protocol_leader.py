"""The leader as its shell would be: it gives the clock its events and carries out what the clock commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from protocol_hearing import Hearing
from protocol_job import PlainLoop, State
from protocol_shard import Shard
from protocol_trainer import Trainer

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import PartitionId, ShardId
from elps.placement import place
from elps.psshard.core import commands as do
from elps.psshard.core.batches import Batches
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.core.deadlines import nothing_seen
from elps.psshard.core.holes import Applied
from elps.psshard.core.inheriting import Inheritance, Stocktaking
from elps.psshard.core.unbarred import UnbarredClock
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_world import World


class Failed(Exception):
    """The job failed, with a reason that the world must judge."""


class Leader(Hearing):
    """Keeps the job's clock, its skips and its checkpoints."""

    def __init__(
        self, world: World, placed: dict[PartitionId, ShardId], before: Leader | None = None
    ) -> None:
        """`before` led under the term before; this one goes on from what the shards have."""
        self.world = world
        self.placed = placed  #: the map in force
        self.carried: int | None = None  #: version of its exchange; None: it came with an opening
        self.wanted: list[ShardId] = []  #: empty: where everything is, is right
        self.wanted_at = 0  #: version at which that was said last
        self.commands: deque[tuple[Epoch, Command]] = deque()
        self.trainers: dict[str, Trainer] = {}  #: connected
        self._waiting: dict[str, Trainer] = {}  #: have asked, and are no workers yet
        self.skips = list(world.job.skips)
        self.checkpoints: dict[int, list[State]] = {}
        self.epoch = self.opened = Epoch(Term(1, 7), -1)
        self.history = self.opened  #: the opening that all values come from
        self.finished: int | None = None
        self.failed: str | None = None
        self.rolling_back = self.resting = False
        self.without: set[ShardId] = set()
        self.must_recover = False
        self.stopped = False  #: it is gone
        self.clock: Clock | None = None  #: None until it has opened the job
        self.taking: Stocktaking | None = None
        self.heir: Inheritance | None = None  #: what it began with
        self.evaluated = -1
        self.metrics: dict[str, float] = {}  #: of that version
        self.batches = Batches()  #: of its term
        self.seen = nothing_seen()
        self.links = {s.name: (s.from_leader, s.to_leader) for s in world.shards.values()}
        if before is not None:
            self._succeed(before)
        self._plain = PlainLoop(world.job, self.skips)

    # --- epochs ---------------------------------------------------------------------------------------------------

    def open(self, *, new_term: bool) -> None:
        """Begin the next epoch from the newest checkpoint."""
        term, world = self.epoch.term, self.world
        self.epoch = self.opened = (
            Epoch(Term(term.number + 1, 9), 0) if new_term else Epoch(term, self.epoch.n + 1)
        )
        self.history, self.heir = self.epoch, None
        if self.checkpoints:  # each says what was skipped up to it
            self.skips = sorted({*self.skips, *world.saved_skips})
        if self.without & set(self.placed.values()):
            self.placed = place(world.sizes, self.wanted or self._left, current=self.placed)
        elif self.wanted and world.r.random() < 0.5:
            self.placed = place(world.sizes, self.wanted, current=self.placed)
        self._begin(max(self.checkpoints, default=0))

    def _begin(
        self,
        start: int,
        *,
        ahead: bool = False,
        applied: Sequence[Applied] | None = None,
        factor: float = 1.0,
    ) -> None:
        world = self.world
        self.rolling_back = self.resting = False
        self.start = self.wanted_at = start
        self.lent: dict[int, set[Interval]] = {}
        self._waiting = {}
        self.ticket, self.row = 0, self.start
        self.collecting: dict[ShardId, dict[int, State]] = {}
        self.writing, self.carried = -1, None
        moving = world.moving(world.sizes, self.placed, world.wave_bytes, world.numbers)
        self.clock = world.clock(
            world.job.rules,
            sorted(set(self.placed.values())),
            self.start,
            world.now,
            skips=self.skips,
            checkpoint=max(self.checkpoints, default=None),
            evaluated=self.evaluated,
            moving=moving,
            replicas=world.replicas(
                world.sizes if world.replicated else {}, world.hosts, world.numbers
            ),
            ahead=ahead and "rests-ahead" not in world.off,
            factor=factor,
            batches=self.batches,
            seen=self.seen if world.asked_first else None,
        )
        if isinstance(self.clock, UnbarredClock) and applied is not None:
            self.clock.take_over(applied)
        if self.heir is not None:
            self.clock.go_on(self.metrics)
        world.history = self.history  # the scheduler hears of it
        # Others bring events before the shards are told of the epoch.
        self.event(self.epoch, lambda c: c.expect(sorted(self.trainers), world.now))
        for s in self._left:
            self._assign(world.shards[s])
        for trainer in sorted(self.trainers.values(), key=lambda t: t.name):
            self.greet(trainer)
        self.event(self.epoch, lambda c: c.want(self._targets, world.now))

    @property
    def _targets(self) -> list[ShardId]:
        return self.wanted or (self._left if self.world.replicated else [])

    def _assign(self, shard: Shard) -> None:
        # Not the skips of the job's list: it may hold one that comes into force with the next epoch only.
        assert self.clock is not None
        skips, start, states = tuple(self.clock.skips), self.carried, None
        inherits = start is None and self.heir is not None
        if start is None:
            start = self.start
            states = None if inherits else self.checkpoints.get(start, self.world.job.start())
        link, _ = self.links[shard.name]
        what = (self.epoch, start, states, self.placed, skips, self.history, inherits)
        self.world.net.send(link, shard.assign, *what)

    def greet(self, trainer: Trainer) -> None:
        """A trainer is connected and ready."""
        if self.clock is None:
            return
        now = self.world.now
        if self.world.asked_first:
            self.event(self.epoch, lambda c: c.greeted(trainer.name, now))
            self._tell_map(trainer)
            return
        self._tell_map(trainer)
        self.event(self.epoch, lambda c: c.worker_ready(trainer.name, now))

    def _admit(self) -> None:
        """Trainers that have asked are workers once the values are there."""
        clock = self.clock
        if clock is None or min(clock.held.values()) < clock.start:
            return
        while self._waiting:
            name, trainer = self._waiting.popitem()
            if name not in clock.workers and name in self.trainers:
                self.event(self.epoch, lambda c, w=trainer.name: c.worker_ready(w, self.world.now))  # type: ignore[misc]
                self.event(self.epoch, lambda c, w=trainer.name: c.asked(w, self.world.now))  # type: ignore[misc]

    def _tell_map(self, trainer: Trainer) -> None:
        link, since = trainer.from_leader, self.opened.n
        self.world.net.send(link, trainer.begin, self.epoch, since, self.placed)

    def connect(self, trainer: Trainer) -> None:
        self.trainers[trainer.name] = trainer
        self.greet(trainer)

    def want(self, shards: list[ShardId]) -> None:
        """The scheduler's plan says where the partitions are to lie."""
        if shards != self.wanted:
            self.wanted = shards
            self.wanted_at = self.clock.t if self.clock is not None else 0
        self.event(self.epoch, lambda c: c.want(shards, self.world.now))

    def link_restored(self, shard: Shard) -> None:
        if shard.name in self.without or shard.dead:
            return
        for link in self.links[shard.name]:
            link.up = True
        if self.taking is not None:
            link, _ = self.links[shard.name]
            self.world.net.send(link, shard.take_stock, self.epoch)
        if self.clock is None:
            return
        self._assign(shard)
        self.event(self.epoch, lambda c: c.link_restored(shard.name, self.world.now))

    # --- events ---------------------------------------------------------------------------------------------------

    def event(self, epoch: Epoch | None, call: Callable[[Clock], list[Command]]) -> None:
        """Give the clock an event of the history in force, and do what it commands, in order."""
        if not self._counts(epoch) or self.finished is not None or self.failed is not None:
            return
        if self.clock is None or self.stopped:
            return
        at = self.epoch
        commands = call(self.clock)
        self.commands.extend((at, command) for command in commands)
        self._work(waits=True)
        if self.world.thorough and commands and self._counts(at):
            self.clock.check_invariants(lambda t: self.lent.get(t, ()))

    def _counts(self, epoch: Epoch | None) -> bool:
        """Whether what is said under an epoch counts: since the opening, only the map has changed."""
        if epoch is None or epoch.term != self.epoch.term:
            return False
        return self.opened.n <= epoch.n <= self.epoch.n

    def _work(self, *, waits: bool) -> None:
        """Carry out what is commanded. The thread that does may wait before an exchange, and others bring events."""
        while self.commands:
            since, command = self.commands[0]
            if isinstance(command, do.Exchange) and waits and self.world.r.random() < 0.5:
                self.world.net.later(self._work_on)
                return
            self.commands.popleft()
            if self.stopped:
                return
            if self._counts(since):
                self._execute(command)

    def _work_on(self) -> None:
        if self.world.r.random() < 0.5:
            self.world.net.later(self._work_on)
        else:
            self._work(waits=False)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def saved(self, s: ShardId, epoch: Epoch, version: int, copies: dict[int, State]) -> None:
        if epoch != self.epoch or version != self.writing:
            return
        self.collecting[s] = copies
        if self.collecting.keys() >= set(self.placed.values()):
            states = {p: state for c in self.collecting.values() for p, state in c.items()}
            self.writing = -1
            self.world.net.later(self._publish, epoch, version, [states[p] for p in sorted(states)])

    def _publish(self, epoch: Epoch, version: int, states: list[State]) -> None:
        """The manifest is written, unless a rollback came before."""
        if epoch == self.epoch and not self.stopped:
            want = self.plain.at(version)
            same = all(map(self.world.job.same, states, want))
            assert same, f"checkpoint of {version}: {states} is not {want}"
            self.checkpoints[version] = states
            world = self.world
            world.saved_skips = sorted({*world.saved_skips, *self.skips})
            self.event(epoch, lambda c: c.checkpoint_written(version, self.world.now))

    def _find(self, epoch: Epoch, version: int) -> None:
        """It is looked for; now and then the store has lost it."""
        there = version in self.checkpoints
        self.event(epoch, lambda c: c.checkpoint_found(version, there, self.world.now))

    # --- commands -------------------------------------------------------------------------------------------------

    @property
    def plain(self) -> PlainLoop:
        """The plain loop with the skips of now."""
        if len(self._plain.skips) != len(self.skips):
            self._plain = PlainLoop(self.world.job, self.skips)
        return self._plain

    def _to_all(self, name: str, *arguments: object) -> None:
        for s in self._left:
            shard = self.world.shards[s]
            link, _ = self.links[s]
            self.world.net.send(link, getattr(shard, name), self.epoch, *arguments)

    def _execute(self, command: Command) -> None:
        world = self.world
        match command:
            case do.Lend(worker, kind, version, interval, ticket):
                assert ticket > self.ticket, "tickets grow"
                assert worker in self.clock.workers, "only those who live are lent to"
                assert not self.resting, "nothing is lent while the job rests"
                self.ticket = ticket
                self.world.see_lent(command, self.clock)
                if kind == "train":
                    fits = world.job.geometry.fits(interval, version)
                    assert fits or "no-granules" in world.off, command
                    lent = self.lent.setdefault(version, set())
                    assert not world.calm or interval not in lent, "nothing failed, yet lent twice"
                    lent.add(interval)
                if worker in self.trainers:
                    trainer = self.trainers[worker]
                    world.net.send(trainer.from_leader, trainer.lend, self.epoch, command)
            case do.CallBack(worker, ticket):
                self._to_all("call_back", worker, ticket)
            case do.AnnounceGate(version):
                self._to_all("gate", version)
            case do.Clip(t, factor):
                self._to_all("clip", t, factor)
            case do.WriteCheckpoint(version):
                if version != self.writing:
                    self.collecting, self.writing = {}, version
                self._to_all("checkpoint", version)
            case do.FindCheckpoint(version):
                self.world.net.later(self._find, self.epoch, version)
            case do.Freeze(interval, attempt):
                self._to_all("freeze", interval, attempt)
            case do.Thaw(interval):
                self._to_all("thaw", interval)
            case do.Grant(interval, _):
                self._skip(interval)
                self._to_all("grant", interval)
            case do.Follow(wave, moves, standing):
                self._to_all("follow", wave, moves, standing)
            case do.Unfollow(wave, standing):
                self._to_all("unfollow", wave, standing)
            case do.Exchange(_, placed, version):
                world.exchanges += 1
                self.epoch = Epoch(self.epoch.term, self.epoch.n + 1)
                self._exchanging = {*self.placed.values(), *placed.values()}
                self.placed, self.carried = placed, version
                for s in self._left:
                    self._assign(world.shards[s])
            case do.Exchanged():
                shards = [world.shards[s] for s in self._exchanging]
                taken = all(s.epoch == self.epoch or s.leader is not self for s in shards)
                assert taken or "half-map" in world.off, "not every shard has taken the map"
                for trainer in sorted(self.trainers.values(), key=lambda t: t.name):
                    self._tell_map(trainer)
            case do.Dismiss(worker, reason):
                world.dismissed += 1
                if worker in self.trainers:
                    hung = self.trainers[worker].hung
                    assert hung or world.failing, f"{worker} does all that it can, yet: {reason}"
                    world.cut_lease(self.trainers.pop(worker))
            case do.RollBack(interval, _):
                self._skip(interval)
                self.rolling_back = True
                world.rolled_back += 1
                world.net.later(self.reopen, self.epoch)
            case do.Fail(reason):
                self.failed = reason
            case do.Finish(version):
                self.finished = version
            case do.Rest(version):
                self.resting = True
                saved = version == 0 or version in self.checkpoints
                assert saved, f"rests at {version}, which is not saved"
            case do.Evaluated(version, metrics):
                if version > self.evaluated:
                    self.evaluated, self.metrics = version, metrics
                want = self.plain.metrics(version)
                assert metrics == want, f"evaluation of {version}: {metrics} is not {want}"
            case do.IterationDone():
                self._row(command)
            case do.Remark(what, reason):
                world.released += what == "released"
                stalls = what == "move_given_up" and "no progress" in reason
                said = not stalls or "stalls" in world.off
                assert said or world.failing, f"all is said again, yet: {reason}"

    def reopen(self, epoch: Epoch) -> None:
        if epoch == self.epoch and not self.stopped:
            self.open(new_term=False)

    def _skip(self, interval: Interval) -> None:
        self.skips = sorted([*self.skips, interval])
        if self.world.heirs or self.world.replicated:
            self.world.net.later(self._keep, list(self.skips))

    def _keep(self, skips: list[Interval]) -> None:
        """The list of skips comes to the store."""
        if not self.stopped and len(skips) > len(self.world.kept):
            self.world.kept = skips

    def _row(self, row: do.IterationDone) -> None:
        t = row.iteration
        assert t == self.row, f"row {t} came for {self.row}"
        self.row += 1
        loss, count = self.plain.mean_loss(t)
        assert row.count == count, f"row {t} counts {row.count} for {count}"
        assert row.skipped == self.world.job.geometry.iteration(t).size - count
        assert row.loss in (None, loss), f"row {t} has loss {row.loss} for {loss}"
        assert row.loss is not None or loss is None or self.world.trouble, f"row {t} lost its loss"
