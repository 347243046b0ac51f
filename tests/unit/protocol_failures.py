"""What may fail, and what else may happen, in the world of `protocol_world`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from protocol_following import Feed
from protocol_leader import Leader
from protocol_net import Link, Net
from protocol_shard import Shard
from protocol_trainer import Trainer

from elps.contracts.ids import ShardId, WorkerId
from elps.psshard.core.batches import Tail


class Failures:
    """The failures of one schedule. Each has some kinds only, so that the rest of it goes far enough to meet them."""

    r: random.Random
    net: Net
    focus: str
    kind: str  #: of job, and of trouble
    trouble: bool
    moves: bool
    heirs: bool
    replicated: bool
    must_recover: ShardId | None
    now: float
    leader: Leader
    shards: dict[ShardId, Shard]
    trainers: list[Trainer]
    plans: random.Random
    rebalanced: int

    def _draw_actions(self) -> None:
        self._missed: set[ShardId] = set()  #: lost, and the scheduler does not know yet
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
            self._retire: 0.7,
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
            self._want: 1.0,
            self._break_feed: 1.0,
        }
        if self.heirs:
            kinds[self._succeed] = 1.0
        if self.replicated:
            kinds |= {self._die: 1.0, self._cut_off: 0.7, self._succeed: 0.3}
        chosen = {
            kind: weight * (6 if kind in favoured else r.choice((0.3, 1, 1, 4)))
            for kind, weight in kinds.items()
            if kind in favoured or r.random() < (0.2 if favoured else 0.6)
        }
        self.actions = list(chosen) if self.trouble else []
        self.weights = list(chosen.values())
        self.rate = r.choice((0.02, 0.05, 0.1, 0.2)) if self.actions else 0.0
        self.net.stall = r.choice((0.0, 0.0, 0.05, 0.15)) if self.trouble else 0.0

    def _draw_plans(self, seed: int | None) -> None:
        """Plans of the workers' shares come at any time; drawn apart, so that the rest of a schedule is as without."""
        self.plans = random.Random(seed)
        self.plan_rate = self.plans.choice((0.0, 0.02, 0.1, 0.3)) if seed is not None else 0.0

    def _plan_batches(self) -> None:
        """A plan arrives: the newest, or one that is late or comes again; it may name others than there are."""
        r, leader = self.plans, self.leader
        if r.random() >= self.plan_rate:
            return
        batches = leader.batches
        before, planned = batches.number, dict(batches.planned)
        number = max(1, before + r.choice((-2, -1, 0, 1, 1, 1, 1, 3)))
        named = [t.name for t in self.trainers if r.random() < 0.8] + [WorkerId("nobody")]
        shares = {WorkerId(w): r.choice((0, 0, 1, 2, 3, 8)) for w in named}
        tail = Tail((0.0, 0.2, 0.4)[number % 3], (0.0, 0.3)[number % 2])
        if leader.clock is None:
            batches.plan(number, shares, tail=tail)
        else:
            leader.event(leader.epoch, lambda c: c.plan_batches(number, shares, tail=tail))
        if number <= before:
            assert (batches.number, batches.planned) == (before, planned), "a late plan counted"
        self.rebalanced += batches.number > before

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
            case "moves":
                return (self._want, self._flap_link, self._tick)
            case "copies" if self.kind == "skips":
                return (self._die, self._cut_off, self._cut_in_push, self._join)
            case "copies":
                return (self._die, self._cut_off, self._break_feed)
            case "heirs" if self.kind == "pauses":
                return (self._succeed, self._pause, self._resume)
            case "heirs":
                return (self._succeed, self._flap_link, self._cut_in_push, self._join)
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
            self.net.later(trainer.leader.exited, trainer)

    def _cut_some_lease(self) -> None:
        """A worker is believed dead and goes on: a zombie."""
        living = self._living()
        if len(living) > (self.focus == "calls"):
            self.cut_lease(self._any(living))

    def _leave(self) -> None:
        """It has done what it was lent, or gives it back, and goes."""
        if trainer := self._any([t for t in self._living() if not t.unacked and not t.hung]):
            trainer.dead = True
            trainer.tell(trainer.leader.left)

    def _retire(self) -> None:
        """It is to go once it has done what it was lent."""
        if trainer := self._any([t for t in self._living() if not t.retiring and not t.hung]):
            trainer.retire()

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
        self.net.later(trainer.leader.lost, trainer, "its connection ended")

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
        if shard := self._any([s for s in self._led() if not s.to_leader.up]):
            self.leader.link_restored(shard)

    def _led(self) -> list[Shard]:
        """Those that have heard of the newest leader."""
        lost = self.leader.without
        here = [s for s in self.shards.values() if s.leader is self.leader]
        return [s for s in here if s.name not in lost and not s.dead]

    def _flap_link(self) -> None:
        """It breaks and is restored at once: what was on it is lost."""
        shards = [s for s in self._led() if s.to_leader.up]
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
        links += [feed.link for feed in self._feeds()]
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
        if (
            self.leader.clock is not None
            and self.leader.finished is None
            and self.leader.failed is None
        ):
            self.leader.open(new_term=True)

    def _succeed(self) -> None:
        """The scheduler names another leader, since the one before goes, is gone, or is taken for gone."""
        before = self.leader
        if before.finished is not None or before.failed is not None or before.taking is not None:
            return
        self.leader = Leader(self, before.placed, before)
        if self.r.random() < 0.5:
            before.stopped = True
        else:
            self.net.later(self._stop, before)
        for _ in range(self.r.randint(1, 3)):
            self._join()

    def _stop(self, leader: Leader) -> None:
        """A leader notices that its term is over."""
        leader.stopped = True

    # --- shards -------------------------------------------------------------------------------------------------------

    def _die(self) -> None:
        """A shard's process ends, with all that it has."""
        if (shard := self._lose()) is None:
            return
        shard.dead = True
        for trainer in self.trainers:
            self.break_data(trainer, shard.name)
        shard.waiting = []
        for feed in self._feeds():
            if shard in (feed.source, feed.target):
                self.net.cut(feed.link)
                if feed.source is shard:
                    feed.closed = True
                else:
                    self.net.later(feed.source.copies(feed.standing).broke, feed)

    def _cut_off(self) -> None:
        """The leader cannot reach a shard, which lives on and is reached by others."""
        self._lose()

    def _lose(self) -> Shard | None:
        """A shard that the scheduler is about to take for dead, if another one is left."""
        leader = self.leader
        out = leader.without | self._missed | {s.name for s in self.shards.values() if s.dead}
        there = [s for s in self._led() if s.to_leader.up and s.name not in self._missed]
        if len(out) + 2 > len(self.shards) or not there:
            return None
        ahead = [s for s in there if any(feed.link.queue for feed in s.standing.feeds)]
        if not ahead and self.r.random() < 0.7:
            return None
        shard = self._any(ahead or there)  # likes to be one with something that nobody else has
        clock, alone = leader.clock, leader.taking is None and not self._missed
        counts = clock is not None and clock._replicas.counts
        if not counts and self.r.random() < 0.9:
            return None
        self.must_recover = shard.name if alone and counts else None
        self._missed.add(shard.name)
        told, said = leader.links[shard.name]
        self.net.cut(told)
        self.net.cut(said, len(said.queue) if self.r.random() < 0.5 else 0)
        self.net.inside.append((self._noticed, shard))
        return shard

    def _noticed(self, shard: Shard) -> None:
        """Some time after it was lost."""
        if self.failing and self.r.random() < 0.97:
            self.net.inside.append((self._noticed, shard))
            return
        self._missed.discard(shard.name)
        self.leader.recover(shard)

    # --- moves ----------------------------------------------------------------------------------------------------

    def _want(self) -> None:
        """The partitions are to lie elsewhere, or where they are, or on all shards."""
        names = sorted(s for s in self.shards if s not in self.leader.without)
        least = min(len(names), 1 + (self.replicated and self.r.random() < 0.8))
        self.leader.want(sorted(self.r.sample(names, self.r.randint(least, len(names)))))

    def _feeds(self) -> list[Feed]:
        feeds = [f for s in self.shards.values() for f in s.following.feeds + s.standing.feeds]
        return [f for f in feeds if not f.closed]

    def _break_feed(self) -> None:
        """The connection between an owner and a follower breaks; what has arrived is still read."""
        if feed := self._any(self._feeds()):
            self.net.cut(feed.link, self.r.randint(0, len(feed.link.queue)))
            self.net.later(feed.source.copies(feed.standing).broke, feed)
