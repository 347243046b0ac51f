"""The leader as its shell would be: it gives the clock its events and carries out what the clock commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol_job import PlainLoop, State
from protocol_shard import Shard
from protocol_trainer import Trainer

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import ShardId
from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command, Timing
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_world import World


class Failed(Exception):
    """The job failed, with a reason that the world must judge."""


class Leader:
    """Keeps the job's clock, its skips and its checkpoints."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trainers: dict[str, Trainer] = {}  #: connected
        self.skips = list(world.job.skips)
        self.checkpoints: dict[int, list[State]] = {}
        self.epoch = Epoch(Term(1, 7), -1)
        self.finished: int | None = None
        self.failed: str | None = None
        self.rolling_back = False
        self.evaluated = -1
        self._plain = PlainLoop(world.job, self.skips)

    # --- epochs ---------------------------------------------------------------------------------------------------

    def open(self, *, new_term: bool) -> None:
        """Begin the next epoch from the newest checkpoint."""
        term, world = self.epoch.term, self.world
        self.epoch = (
            Epoch(Term(term.number + 1, 9), 0) if new_term else Epoch(term, self.epoch.n + 1)
        )
        self.rolling_back = self.resting = False
        self.start = max(self.checkpoints, default=0)
        self.lent: dict[int, set[Interval]] = {}
        self.ticket, self.row = 0, self.start
        self.collecting: dict[ShardId, dict[int, State]] = {}
        self.writing = -1
        newest = self.start if self.checkpoints else None
        self.clock: Clock = world.clock(
            world.job.rules,
            [s for s, shard in world.shards.items() if shard.partitions],
            self.start,
            world.now,
            skips=self.skips,
            checkpoint=newest,
            evaluated=self.evaluated,
        )
        for shard in world.shards.values():
            self._assign(shard)
        self.event(self.epoch, lambda c: c.expect(sorted(self.trainers), world.now))
        for trainer in sorted(self.trainers.values(), key=lambda t: t.name):
            self.greet(trainer)

    def _assign(self, shard: Shard) -> None:
        states = self.checkpoints.get(self.start, self.world.job.start())
        # Not those of the job's list: it may hold one that comes into force with the next epoch only.
        send, skips = self.world.net.send, tuple(self.clock.skips)
        send(shard.from_leader, shard.assign, self.epoch, self.start, states, skips)

    def greet(self, trainer: Trainer) -> None:
        """A trainer is connected and ready."""
        self.world.net.send(trainer.from_leader, trainer.begin, self.epoch)
        self.event(self.epoch, lambda c: c.worker_ready(trainer.name, self.world.now))

    def connect(self, trainer: Trainer) -> None:
        self.trainers[trainer.name] = trainer
        self.greet(trainer)

    def lost(self, trainer: Trainer, cause: str) -> None:
        """Its lease connection ended."""
        if self.trainers.pop(trainer.name, None) is not None:
            self.event(self.epoch, lambda c: c.worker_lost(trainer.name, cause, self.world.now))

    def left(self, trainer: Trainer, _: Epoch) -> None:
        """It says that it goes."""
        if self.trainers.pop(trainer.name, None) is not None:
            now = self.world.now
            self.event(self.epoch, lambda c: c.worker_left(trainer.name, "leaves", now))

    def exited(self, trainer: Trainer) -> None:
        """Its agent saw its process end."""
        self.trainers.pop(trainer.name, None)
        self.event(self.epoch, lambda c: c.exit_seen(trainer.name, "signal 9", self.world.now))

    def link_restored(self, shard: Shard) -> None:
        shard.from_leader.up = shard.to_leader.up = True
        self._assign(shard)
        self.event(self.epoch, lambda c: c.link_restored(shard.name, self.world.now))

    # --- what trainers say ----------------------------------------------------------------------------------------

    def event(self, epoch: Epoch | None, call: Callable[[Clock], list[Command]]) -> None:
        """Give the clock an event of the epoch in force, and do what it commands, in order."""
        if epoch != self.epoch or self.finished is not None or self.failed is not None:
            return
        for command in call(self.clock):
            self._execute(command)
        if self.world.thorough and epoch == self.epoch:
            self.clock.check_invariants(lambda t: self.lent.get(t, ()))

    def _from(self, trainer: Trainer, epoch: Epoch, call: Callable[[Clock], list[Command]]) -> None:
        if trainer.name in self.trainers:
            self.event(epoch, call)

    def asked(self, trainer: Trainer, epoch: Epoch) -> None:
        self._from(trainer, epoch, lambda c: c.asked(trainer.name, self.world.now))

    def computed(
        self, w: Trainer, epoch: Epoch, t: int, interval: Interval, loss: float, timing: Timing
    ) -> None:
        now = self.world.now
        self._from(w, epoch, lambda c: c.computed(w.name, t, interval, loss, timing, now))
        self.asked(w, epoch)

    def evaluation(
        self, w: Trainer, epoch: Epoch, version: int, interval: Interval, sums: dict[str, float]
    ) -> None:
        now = self.world.now
        self._from(w, epoch, lambda c: c.evaluated(w.name, version, interval, sums, now))
        self.asked(w, epoch)

    def bad(self, w: Trainer, epoch: Epoch, t: int, interval: Interval) -> None:
        now = self.world.now
        self._from(w, epoch, lambda c: c.bad_gradient(w.name, t, interval, "nan", now))

    def pushed(self, w: Trainer, epoch: Epoch, t: int) -> None:
        self._from(w, epoch, lambda c: c.pushed(w.name, t, 0.1))

    # --- what shards say ------------------------------------------------------------------------------------------

    def progressed(self, s: ShardId, epoch: Epoch, version: int) -> None:
        self.event(epoch, lambda c: c.progressed(s, version, self.world.now))

    def froze(self, s: ShardId, epoch: Epoch, i: Interval, attempt: int, clean: bool) -> None:
        self.event(epoch, lambda c: c.freeze_answered(s, i, attempt, clean, self.world.now))

    def missed(self, _: ShardId, epoch: Epoch, version: int) -> None:
        self.event(epoch, lambda c: c.checkpoint_abandoned(version, self.world.now))

    def saved(self, s: ShardId, epoch: Epoch, version: int, copies: dict[int, State]) -> None:
        if epoch != self.epoch or version != self.writing:
            return
        self.collecting[s] = copies
        if len(self.collecting) == len(self.world.shards):  # those without partitions say so
            states = {p: state for c in self.collecting.values() for p, state in c.items()}
            self.writing = -1
            self.world.net.later(self._publish, epoch, version, [states[p] for p in sorted(states)])

    def _publish(self, epoch: Epoch, version: int, states: list[State]) -> None:
        """The manifest is written, unless a rollback came before."""
        if epoch == self.epoch:
            want = self.plain.at(version)
            assert states == want, f"checkpoint of {version}: {states} is not {want}"
            self.checkpoints[version] = states
            self.event(epoch, lambda c: c.checkpoint_written(version, self.world.now))

    # --- commands -------------------------------------------------------------------------------------------------

    @property
    def plain(self) -> PlainLoop:
        """The plain loop with the skips of now."""
        if len(self._plain.skips) != len(self.skips):
            self._plain = PlainLoop(self.world.job, self.skips)
        return self._plain

    def _to_all(self, name: str, *arguments: object) -> None:
        for shard in self.world.shards.values():
            self.world.net.send(shard.from_leader, getattr(shard, name), self.epoch, *arguments)

    def _execute(self, command: Command) -> None:
        world = self.world
        match command:
            case do.Lend(worker, kind, version, interval, ticket):
                assert ticket > self.ticket, "tickets grow"
                assert worker in self.clock.workers, "only those who live are lent to"
                assert not self.resting, "nothing is lent while the job rests"
                self.ticket = ticket
                if kind == "train":
                    fits = world.job.geometry.fits(interval, version)
                    assert fits or "no-granules" in world.off, command
                    self.lent.setdefault(version, set()).add(interval)
                if worker in self.trainers:
                    trainer = self.trainers[worker]
                    world.net.send(trainer.from_leader, trainer.lend, self.epoch, command)
            case do.CallBack(worker, ticket):
                self._to_all("call_back", worker, ticket)
            case do.AnnounceGate(version):
                self._to_all("gate", version)
            case do.WriteCheckpoint(version):
                if version != self.writing:
                    self.collecting, self.writing = {}, version
                self._to_all("checkpoint", version)
            case do.Freeze(interval, attempt):
                self._to_all("freeze", interval, attempt)
            case do.Thaw(interval):
                self._to_all("thaw", interval)
            case do.Grant(interval, _):
                self._skip(interval)
                self._to_all("grant", interval)
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
                saved = version == self.start or version in self.checkpoints
                assert saved, f"rests at {version}, which is not saved"
            case do.Evaluated(version, metrics):
                self.evaluated = max(version, self.evaluated)
                want = self.plain.metrics(version)
                assert metrics == want, f"evaluation of {version}: {metrics} is not {want}"
            case do.IterationDone():
                self._row(command)
            case do.Remark(what):
                world.released += what == "released"

    def reopen(self, epoch: Epoch) -> None:
        if epoch == self.epoch:
            self.open(new_term=False)

    def _skip(self, interval: Interval) -> None:
        self.skips = sorted([*self.skips, interval])

    def _row(self, row: do.IterationDone) -> None:
        t = row.iteration
        assert t == self.row, f"row {t} came for {self.row}"
        self.row += 1
        loss, count = self.plain.mean_loss(t)
        assert row.count == count, f"row {t} counts {row.count} for {count}"
        assert row.skipped == self.world.job.geometry.iteration(t).size - count
        assert row.loss in (None, loss), f"row {t} has loss {row.loss} for {loss}"
        assert row.loss is not None or loss is None or self.world.trouble, f"row {t} lost its loss"
