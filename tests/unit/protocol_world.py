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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from protocol_failures import Failures
from protocol_job import Job, draw_job
from protocol_leader import Leader
from protocol_net import Net
from protocol_shard import Shard
from protocol_trainer import Trainer

from elps.contracts.epoch import NO_EPOCH, Epoch
from elps.contracts.ids import ShardId
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Lend
from elps.psshard.core.inheriting import Stocktaking
from elps.psshard.core.moving import Moving
from elps.psshard.core.part import Part
from elps.psshard.core.replicating import Replicas
from elps.stream.interval import Interval

FOCUSES = ("all",) * 7 + ("skips", "calls", "hangs", "pauses", "terms", "moves", "moves")
MAX_EVENTS = 8_000
MAX_IDLE = 300
"""Ticks of 5 s in which nothing happens, after failures have stopped: longer than every deadline together."""
LIMITS = (0.3, 1.0, 2.0)
"""Of the norm, in jobs that clip: nearly always, often, now and then."""
VERSIONS_A_WAVE = 5
"""One or two to catch up, one to come to a boundary, and some for what else holds it up."""


class World(Failures):
    """One job in one schedule."""

    shard_type: type[Shard] = Shard
    opened_ahead = 0  #: versions that may be under way at once, beside the one that is always

    def __init__(
        self,
        seed: int,
        *,
        part: type[Part] = Part,
        clock: Callable[..., Clock] = Clock,
        moving: type[Moving] = Moving,
        taking: type[Stocktaking] = Stocktaking,
        replicas: type[Replicas] = Replicas,
        off: frozenset[str] = frozenset(),
        focus: str | None = None,
        thorough: bool = False,
        plans: bool = True,
        clips: bool = False,
        asked_first: bool = False,
    ) -> None:
        """`plans`: the scheduler shares out the batch anew at any time. `clips`: the job clips its gradients.
        `asked_first`: no trainer is a worker before it has asked and the values are there, so that the clock must look
        for those that never do.
        """
        r = self.r = random.Random(seed)
        self.off, self.thorough, self.asked_first = off, thorough, asked_first
        self._part, self.clock, self.moving, self.taking = part, clock, moving, taking
        self.replicas, self.numbers = replicas, count(1)
        drawn = r.choice(FOCUSES)
        self.focus = focus or drawn
        self.heirs = self.focus == "heirs"
        self.replicated = self.focus == "copies"
        self.kind = r.choice(("heirs", "skips", "pauses")) if self.heirs else self.focus
        if self.replicated:
            self.kind = r.choice(("all", "all", "skips", "moves"))
        self.job = self._draw_job(seed)
        if clips:
            limit = random.Random(seed).choice(LIMITS)
            self.job = replace(self.job, rules=replace(self.job.rules, clip_norm=limit))
        self.net = Net(r)
        self.now, self.healed_at, self.healed_s = 0.0, 0, 0.0
        quiet = self.focus in ("all", "moves") and r.random() < 0.15
        self.trouble = not quiet  #: whether anything ever fails
        self.failing = int(self.trouble)  #: whether anything fails now
        self.pipelined = r.random() < 0.5
        self.moves = self.focus == "moves" or (self.heirs and r.random() < 0.5)
        self.moves |= self.replicated and r.random() < 0.4
        many = (2, 3, 3, 4) if self.moves or self.replicated else (1, 2, 2, 3)
        names = [ShardId(f"s{i}") for i in range(r.choice(many))]
        self.hosts = {s: f"h{i % 2}" for i, s in enumerate(names)} if self.replicated else {}
        holders = r.sample(names, r.randint(1, len(names))) if self.moves else names
        self.sizes = {p: r.randint(1, 4) for p in self.job.partitions}
        self.wave_bytes = r.choice((1, 4, 100))
        self.shards = {s: self.shard_type(self, s) for s in names}
        self.trainers: list[Trainer] = []
        self.rebalanced = 0  #: plans of shares that counted
        self.missed = self.dismissed = self.released = self.rolled_back = 0
        self.exchanges = self.troubles = self.inherited = self.bereft = self.promoted = 0
        self.must_recover: ShardId | None = (
            None  #: it is lost, but everything that it had has a replica
        )
        self.kept = list(self.job.skips)  #: the list of skips in the store
        self.saved_skips: list[Interval] = []  #: with the checkpoints
        self.history = NO_EPOCH  #: the newest opening that the scheduler has heard of
        self.leader = Leader(self, {p: r.choice(holders) for p in self.job.partitions})
        for shard in self.shards.values():
            shard.leader = self.leader
        self.leader.open(new_term=False)
        for _ in range(r.randint(1, 4)):
            self._join()
        self._draw_actions()
        self._draw_plans(seed if plans else None)
        self.wants = r.choice((1, 1, 2, 3)) if self.moves else 0  #: changes of the plan to come
        if self.focus == "calls":
            for shard in self.shards.values():
                shard.from_leader.slow = True

    def part(self, epoch: Epoch, skips: tuple[Interval, ...]) -> Part:
        if self.job.rules.clip_norm is None:
            return self._part(epoch, self.job.geometry, skips)
        return self._part(epoch, self.job.geometry, skips, clips=True)

    def _draw_job(self, _seed: int) -> Job:
        return draw_job(self.r, self.kind, long=self.replicated)

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
            self._replan()
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
        clock = self.leader.clock
        self.healed_at, self.healed_s = clock.t if clock is not None else 0, self.now
        for trainer in self.trainers:
            if trainer.hung and self.r.random() < 0.5:
                trainer.wake()  # the others never do
            for s in self.shards:
                if not trainer.back[s].up:
                    trainer.reconnect(s)
        for shard in self.shards.values():
            if not shard.to_leader.up and shard.leader is self.leader:
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
            self._replan()
            if self.net.deliver():
                continue
            assert not self.calm or idle < 3, "nothing failed, yet it waits for a deadline"
            idle += 1
            assert idle < MAX_IDLE, f"stuck: {self._waits()}"
            self.now += 5.0
            self.leader.event(self.leader.epoch, lambda c: c.tick(self.now))
            self._man()
        raise AssertionError(f"no end: {self._waits()}")

    def _waits(self) -> str:
        clock = self.leader.clock
        return clock.waiting_for(self.now) if clock is not None else "stocks are being taken"

    def _replan(self) -> None:
        self._plan_batches()
        if self.wants and self.r.random() < 0.02:
            self.wants -= 1
            self._want()

    @property
    def calm(self) -> bool:
        return not self.trouble and not self.job.flaky and not self.job.bad

    def see_lent(self, lend: Lend, clock: Clock) -> None:
        """A worker is told what to do."""

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
        assert end == 0 or max(leader.checkpoints) == end, "the end is not saved"
        if self.calm:
            given_up = self.dismissed + self.released
            assert not given_up, "nothing failed, yet somebody was given up"
        limit = self.job.geometry.iteration(end).lo
        missing = [
            b
            for b in self.job.bad
            if b < limit and not leader.plain.skips.covers(Interval(b, b + 1))
        ]
        assert not missing, f"bad samples {missing} were counted"
        assert not self.troubles or "troubles" in self.off, (
            "a shard lacks what the map says that it has"
        )
        want = leader.plain.at(end)
        for p, name in leader.placed.items():
            s = self.shards[name]
            assert s.part is not None
            assert s.part.version(p) == end, f"partition {p} is at {s.part.version(p)} for {end}"
            got = (s.slab[p].values[end % 2], s.slab[p].momentum, s.part.steps(p))
            assert self.job.same(got, want[p]), f"partition {p} ends as {got} for {want[p]}"
        if "stalls" not in self.off:
            self._judge_moves(end)

    def _judge_moves(self, end: int) -> None:
        """Everything lies where it was wanted, if there was time for it, and nothing else is left of a wave."""
        assert self.leader.clock is not None
        leader, moving = self.leader, self.leader.clock._moving
        versions = end - max(leader.wanted_at, self.healed_at)
        enough = VERSIONS_A_WAVE * len(self.sizes) + self.opened_ahead
        if versions > enough and moving._retry_at <= self.healed_s:
            assert moving.done, f"not moved in {versions} versions: {moving.waiting_for()}"
        if leader.wanted and moving.done:
            assert set(leader.placed.values()) <= set(leader.wanted)
        wave = (leader.epoch, moving._wave.number) if moving._wave is not None else None
        for s in self.shards.values():
            key = s.following.key
            told = not s.from_leader.queue and s.from_leader.up and s.name not in leader.without
            assert key in (None, wave) or not told, f"{s.name} is left with wave {key}"


def verdict(seed: int, world: type[World] = World, **how: Any) -> str | None:
    """What is wrong with a schedule, None if nothing is."""
    try:
        world(seed, **how).run()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return None


def bad_among(
    seeds: Iterable[int], world: type[World] = World, **how: Any
) -> Iterator[tuple[int, str]]:
    """The schedules of these that are bad, with what is wrong."""
    for seed in seeds:
        if (why := verdict(seed, world, **how)) is not None:
            yield seed, why


def tell(arguments: list[str], faults: Mapping[str, Any], world: type[World] = World) -> int:
    """SEED: its schedule message by message. SEED COUNT: which of so many are bad. Third: a rule that is left out."""
    first, count = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 1
    how = faults[arguments[2]].how if len(arguments) > 2 else {}
    if count == 1:
        shown = world(first, thorough=True, **how)
        shown.net.trace = []
        try:
            shown.run()
        finally:
            print("\n".join(shown.net.trace))
            print(shown.job, getattr(shown, "bound", ""))
        return 0
    bad = list(bad_among(range(first, first + count), world, thorough=True, **how))
    print(f"{len(bad)} bad of {count}: {bad[:5]}")
    return bool(bad)


def main(arguments: list[str]) -> int:
    from protocol_faults import FAULTS
    from protocol_moving_faults import MOVING_FAULTS

    return tell(arguments, FAULTS | MOVING_FAULTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
