"""A store that loses its newest writes, or all, at any moment: its one client notices, and only then."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from elps.scheduler.core.recall import Recall


@dataclass
class Call:
    """On its way to the store, or back from it."""

    write: int | None  #: what it writes; None: it only asks
    least: int
    count: int | None = None  #: the store's answer


@dataclass
class World:
    """A store and its log, as long as its count. Writes are sent one by one, and claims in between."""

    rng: random.Random
    refuses: bool = True  #: a write, where it has forgotten something
    log: list[int] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    recall: Recall = field(default_factory=Recall)
    calls: list[Call] = field(default_factory=list)
    crashes: int = 0
    written: int = 0

    def step(self, what: int) -> None:
        match what:
            case 0 if not any(call.write is not None for call in self.calls):
                self.written += 1
                self.calls.append(Call(self.written, self.recall.known))
            case 1:
                self.calls.append(Call(None, self.recall.known))
            case 2 | 3 if self.calls:  # done; done again where the answer is lost
                self.do(self.rng.choice(self.calls))
            case 4 | 5 if done := [call for call in self.calls if call.count is not None]:
                call = self.rng.choice(done)
                self.calls.remove(call)
                self.answered(call)
            case 6 if self.rng.random() < 0.1:
                self.crashes += 1
                del self.log[self.rng.choice([0, self.rng.randint(0, len(self.log))]) :]

    def do(self, call: Call) -> None:
        if call.write is not None and not (self.refuses and len(self.log) < call.least):
            self.log.append(call.write)
        call.count = len(self.log)

    def answered(self, call: Call) -> None:
        assert call.count is not None
        if self.recall.told(call.count, call.least):
            self.acked |= {call.write} if call.write is not None else set()
            return
        for write in sorted(self.acked - set(self.log)):  # all that is known is written again
            self.log.append(write)
        self.recall.told(len(self.log), self.recall.known)

    def asks(self) -> None:
        """One more claim, with nothing else on its way."""
        call = Call(None, self.recall.known)
        self.do(call)
        self.answered(call)


def walked(seed: int, *, refuses: bool = True) -> World:
    world = World(random.Random(seed), refuses)
    for _ in range(100):
        world.step(world.rng.randrange(7))
    world.asks()
    return world


@given(st.integers(0, 2**32))
def test_nothing_that_was_told_to_be_written_stays_forgotten(seed: int) -> None:
    world = walked(seed)
    assert world.acked <= set(world.log)


def test_a_store_that_takes_writes_before_its_loss_is_known_is_found_out() -> None:
    worlds = [walked(seed, refuses=False) for seed in range(300)]
    assert any(world.acked - set(world.log) for world in worlds)


def test_where_nothing_is_lost_nothing_is_noticed() -> None:
    worlds = [walked(seed) for seed in range(300)]
    quiet = [world for world in worlds if not world.crashes]
    assert len(quiet) > 30
    assert not any(world.recall.losses for world in quiet)
    assert sum(world.recall.losses for world in worlds) > 100
