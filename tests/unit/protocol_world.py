"""The real `Part` and `Clock` in a world of unreliable connections and processes, under a random schedule.

    python tests/unit/protocol_world.py 4711              # one schedule, told message by message
    python tests/unit/protocol_world.py 0 10000           # many
    python tests/unit/protocol_world.py 0 4000 no-gate    # a rule left out: it must be found

A schedule is bad when the end differs from the plain loop's in any partition, when a row, an evaluation or a checkpoint
is not exact, when a state comes about that cannot be, or when it does not end although nothing fails any more.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from protocol_job import draw_job
from protocol_leader import Leader
from protocol_net import Link, Net
from protocol_shard import Shard
from protocol_trainer import Trainer

from elps.contracts.epoch import Epoch
from elps.contracts.ids import ShardId, WorkerId
from elps.psshard.core.clock import Clock
from elps.psshard.core.part import Part
from elps.stream.interval import Interval

FOCUSES = ("all",) * 7 + ("skips", "calls", "hangs", "pauses", "terms")
MAX_EVENTS = 8_000
MAX_IDLE = 300
"""Ticks of 5 s in which nothing happens, after failures have stopped: longer than every deadline together."""


class World:
    """One job in one schedule."""

    def __init__(
        self,
        seed: int,
        *,
        part: type[Part] = Part,
        clock: Callable[..., Clock] = Clock,
        off: frozenset[str] = frozenset(),
        focus: str | None = None,
        thorough: bool = False,
    ) -> None:
        r = self.r = random.Random(seed)
        self.off, self.thorough = off, thorough
        self._part, self.clock = part, clock
        drawn = r.choice(FOCUSES)
        self.focus = focus or drawn
        self.job = draw_job(r, self.focus)
        self.net = Net(r)
        self.now = 0.0
        self.trouble = self.focus != "all" or r.random() < 0.85  #: whether anything ever fails
        self.failing = int(self.trouble)  #: whether anything fails now
        self.pipelined = r.random() < 0.5
        names = [ShardId(f"s{i}") for i in range(r.choice((1, 2, 2, 3)))]
        self.owner = {p: r.choice(names) for p in self.job.partitions}
        self.shards: dict[ShardId, Shard] = {}
        for s in names:
            self.shards[s] = Shard(self, s, [p for p in self.job.partitions if self.owner[p] == s])
        self.trainers: list[Trainer] = []
        self.missed = self.dismissed = self.released = self.rolled_back = 0
        self.leader = Leader(self)
        self.leader.open(new_term=False)
        for _ in range(r.randint(1, 4)):
            self._join()
        self._draw_actions()
        if self.focus == "calls":
            for shard in self.shards.values():
                shard.from_leader.slow = True

    def part(self, epoch: Epoch, skips: tuple[Interval, ...]) -> Part:
        return self._part(epoch, self.job.geometry, skips)

    # --- failures -------------------------------------------------------------------------------------------------

    def _draw_actions(self) -> None:
        """Each schedule has some kinds of failures only, so that the rest of it goes far enough to meet them."""
        r, favoured = self.r, self._favoured()
        kinds: dict[Callable[[], None], float] = {
            self._kill: 1.0,
            self._cut_some_lease: 1.0,
            self._cut_in_push: 2.0,
            self._hang: 1.0,
            self._hang_in_push: 0.5,
            self._wake: 2.0,
            self._join: 2.0,
            self._leave: 0.7,
            self._break_data: 2.0,
            self._restore_data: 3.0,
            self._break_link: 1.5,
            self._restore_link: 3.0,
            self._flap_link: 1.5,
            self._tick: 3.0,
            self._slow: 1.5,
            self._pause: 0.6,
            self._resume: 0.8,
            self._new_term: 0.3,
        }
        chosen = {
            kind: weight * (6 if kind in favoured else r.choice((0.3, 1, 1, 4)))
            for kind, weight in kinds.items()
            if kind in favoured or r.random() < (0.2 if favoured else 0.6)
        }
        self.actions = list(chosen) if self.trouble else []
        self.weights = list(chosen.values())
        self.rate = r.choice((0.02, 0.05, 0.1, 0.2)) if self.actions else 0.0
        self.net.stall = r.choice((0.0, 0.0, 0.05, 0.15)) if self.trouble else 0.0

    def _favoured(self) -> tuple[Callable[[], None], ...]:
        """What a schedule with a focus is full of."""
        match self.focus:
            case "skips":
                return (self._cut_in_push, self._flap_link, self._join)
            case "calls":
                return (self._cut_some_lease, self._flap_link, self._hang)
            case "hangs":
                return (self._hang_in_push, self._hang, self._tick)
            case "pauses":
                return (self._pause, self._resume)
            case "terms":
                return (self._new_term, self._cut_in_push, self._join)
        return ()

    def _living(self) -> list[Trainer]:
        return [t for t in self.trainers if t.name in self.leader.trainers]

    def _join(self) -> None:
        if len(self._living()) < 6:
            trainer = Trainer(self, WorkerId(f"w{len(self.trainers)}"))
            self.trainers.append(trainer)
            self.leader.connect(trainer)

    def _any(self, among: list[Any]) -> Any:
        return among[int(self.r.random() * len(among))] if among else None

    def _kill(self) -> None:
        """A process ends; some of what it had sent still arrives."""
        if trainer := self._any(self._living()):
            trainer.dead = True
            for link in trainer.out.values():
                self.net.cut(link, self.r.randint(0, len(link.queue)))
            self.cut_lease(trainer)
            self.net.later(self.leader.exited, trainer)

    def _cut_some_lease(self) -> None:
        """A worker is believed dead and goes on: a zombie."""
        living = self._living()
        if len(living) > (self.focus == "calls"):
            self.cut_lease(self._any(living))

    def _leave(self) -> None:
        """It has done what it was lent, or gives it back, and goes."""
        if trainer := self._any([t for t in self._living() if not t.unacked and not t.hung]):
            trainer.dead = True
            trainer.tell(self.leader.left)

    def _cut_in_push(self) -> None:
        """A zombie whose gradient has reached some partitions."""
        if trainer := self._any([t for t in self._living() if t.unacked]):
            for link in [*trainer.out.values(), *(s.from_leader for s in self.shards.values())]:
                link.slow = self.r.random() < 0.5
            self.cut_lease(trainer)

    def _hang_in_push(self) -> None:
        """It hangs when its gradient has left, and the connection to a shard breaks."""
        if trainer := self._any([t for t in self._living() if t.unacked and not t.hung]):
            self.break_data(trainer, self._any(list(self.shards)))
            trainer.hang()

    def cut_lease(self, trainer: Trainer) -> None:
        """The lease connection ends; both sides may still read what has arrived."""
        for link in (trainer.to_leader, trainer.from_leader):
            self.net.cut(link, self.r.randint(0, len(link.queue)))
        self.net.later(self.leader.lost, trainer, "its connection ended")

    def _hang(self) -> None:
        if (trainer := self._any(self._living())) and not trainer.hung:
            trainer.hang()

    def _wake(self) -> None:
        if trainer := self._any([t for t in self.trainers if t.hung]):
            trainer.wake()

    def _break_data(self) -> None:
        if trainer := self._any([t for t in self.trainers if not t.dead]):
            self.break_data(trainer, self._any(list(self.shards)))

    def break_data(self, trainer: Trainer, s: ShardId) -> None:
        """A connection to a shard breaks, perhaps in the middle of a push."""
        lost = self.net.cut(trainer.out[s])
        if lost and lost[0][0] == self.shards[s].push:
            self.shards[s].half_push(*lost[0][2:])
        self.net.cut(trainer.back[s])
        self.shards[s].forget_pulls(trainer)

    def _restore_data(self) -> None:
        able = [t for t in self.trainers if not t.hung]
        broken = [(t, s) for t in able for s in self.shards if not t.back[s].up]
        if found := self._any(broken):
            found[0].reconnect(found[1])

    def _break_link(self) -> None:
        """The connection between the leader and a shard breaks."""
        shard = self._any(list(self.shards.values()))
        self.net.cut(shard.from_leader)
        self.net.cut(shard.to_leader)

    def _restore_link(self) -> None:
        if shard := self._any([s for s in self.shards.values() if not s.to_leader.up]):
            self.leader.link_restored(shard)

    def _flap_link(self) -> None:
        """It breaks and is restored at once: what was on it is lost."""
        shards = [s for s in self.shards.values() if s.to_leader.up]
        usual = ("assign", "gate")  # it likes to break when something is said that is said once
        told = [s for s in shards if any(m[0].__name__ not in usual for m in s.from_leader.queue)]
        if (shard := self._any(told or shards)) is not None:
            for link in (shard.from_leader, shard.to_leader):
                self.net.cut(
                    link, self.r.randint(0, len(link.queue)) if self.r.random() < 0.5 else 0
                )
            self.leader.link_restored(shard)

    def _tick(self) -> None:
        self.now += self.r.choice((0.1, 0.5, 1.5))
        self.leader.event(self.leader.epoch, lambda c: c.tick(self.now))

    def _links(self) -> list[Link]:
        links = [x for s in self.shards.values() for x in (s.from_leader, s.to_leader)]
        for t in self.trainers[-8:]:
            links += [*t.out.values(), *t.back.values(), t.to_leader, t.from_leader]
        return links

    def _slow(self) -> None:
        link = self._any(self._links())
        link.slow = not link.slow

    def _pause(self) -> None:
        self.leader.event(self.leader.epoch, lambda c: c.pause(self.now))

    def _resume(self) -> None:
        """Go on, in place or from the checkpoint under a new term."""
        if self.leader.resting and self.r.random() < 0.5:
            self.leader.open(new_term=True)
        else:
            self.leader.resting = False
            self.leader.event(self.leader.epoch, lambda c: c.resume(self.now))

    def _new_term(self) -> None:
        """The scheduler places the job anew."""
        if not self.ended:
            self.leader.open(new_term=True)

    # --- the schedule ---------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.leader.finished is not None or self.leader.failed is not None

    def run(self) -> None:
        """The whole schedule; `AssertionError` or `IllegalEvent` if it is bad."""
        self._stir(self.r.choice((60, 150, 300)) if self.actions else 0)
        if not self.ended:
            self._heal()
            self._finish()
        self._judge()

    def _stir(self, events: int) -> None:
        random_, deliver = self.r.random, self.net.deliver
        for _ in range(events):
            if self.ended:
                return
            if random_() < self.rate:
                self.r.choices(self.actions, self.weights)[0]()
            elif not deliver():
                if random_() < 0.2:
                    return  # failures stop just when everybody waits
                self.r.choices(self.actions, self.weights)[0]()

    def _heal(self) -> None:
        """Nothing fails any more."""
        self.net.stall = 0.0
        self.net.go_on()
        for trainer in self.trainers:
            if trainer.hung and self.r.random() < 0.5:
                trainer.wake()  # the others never do
            for s in self.shards:
                if not trainer.back[s].up:
                    trainer.reconnect(s)
        for shard in self.shards.values():
            if not shard.to_leader.up:
                self.leader.link_restored(shard)
        for link in self._links():
            link.slow = False
        self._resume()
        self.failing = 0
        self._man()

    def _man(self) -> None:
        """The scheduler starts another worker for one that is lost, not for one that hangs."""
        if not self._living():
            self._join()

    def _finish(self) -> None:
        idle = 0
        for _ in range(MAX_EVENTS):
            if self.ended:
                return
            if self.net.deliver():
                continue
            assert not self._calm or idle < 3, "nothing failed, yet it waits for a deadline"
            idle += 1
            assert idle < MAX_IDLE, f"stuck: {self.leader.clock.waiting_for(self.now)}"
            self.now += 5.0
            self.leader.event(self.leader.epoch, lambda c: c.tick(self.now))
            self._man()
        raise AssertionError(f"no end: {self.leader.clock.waiting_for(self.now)}")

    @property
    def _calm(self) -> bool:
        return not self.trouble and not self.job.flaky and not self.job.bad

    def see_computed(self, values: list[int]) -> None:
        """A gradient is about to be pushed."""

    def _judge(self) -> None:
        leader = self.leader
        if leader.failed is not None:
            deaths = sum(t.name not in leader.trainers for t in self.trainers)
            assert "workers died on" in leader.failed, leader.failed
            assert deaths >= self.job.rules.max_deaths == 3, leader.failed
            return
        end = leader.finished
        assert end is not None
        assert end <= self.job.rules.iterations
        assert leader.row == end, f"{leader.row} rows for {end} iterations"
        assert end == leader.start or max(leader.checkpoints) == end, "the end is not saved"
        if self._calm:
            given_up = self.dismissed + self.released
            assert not given_up, "nothing failed, yet somebody was given up"
        limit = self.job.geometry.iteration(end).lo
        missing = [
            b
            for b in self.job.bad
            if b < limit and not leader.plain.skips.covers(Interval(b, b + 1))
        ]
        assert not missing, f"bad samples {missing} were counted"
        want = leader.plain.at(end)
        for s in self.shards.values():
            for p in s.partitions:
                assert s.part is not None
                assert s.part.version(p) == end, (
                    f"partition {p} is at {s.part.version(p)} for {end}"
                )
                got = (s.slab.values[p][end % 2], s.slab.momentum[p], s.part.steps(p))
                assert got == want[p], f"partition {p} ends as {got} for {want[p]}"


def verdict(seed: int, **how: Any) -> str | None:
    """What is wrong with a schedule, None if nothing is."""
    try:
        World(seed, **how).run()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return None


def main(arguments: list[str]) -> int:
    from protocol_faults import FAULTS

    first, count = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 1
    how = FAULTS[arguments[2]].how if len(arguments) > 2 else {}
    if count == 1:
        world = World(first, thorough=True, **how)
        world.net.trace = []
        try:
            world.run()
        finally:
            print("\n".join(world.net.trace))
            print(world.job)
        return 0
    bad = [
        (s, why) for s in range(first, first + count) if (why := verdict(s, thorough=True, **how))
    ]
    print(f"{len(bad)} bad of {count}: {bad[:5]}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
