"""Who may act, of schedulers whose messages are late, whose clocks differ, and who stand still at any moment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.epoch import NO_CHARGE, Charge
from elps.scheduler.core.tenure import MARGIN, Tenure

TTL_S = 3.0


@dataclass
class Store:
    """The lease, by the true time."""

    holder: int = 0
    number: int = 0
    until: float = 0.0

    def claim(self, holder: int, at_least: int, now: float) -> tuple[int, bool]:
        if self.until > now and self.holder != holder:
            return self.number, False
        if self.holder != holder or self.number < at_least:
            self.holder, self.number = holder, max(self.number + 1, at_least)
        self.until = now + TTL_S
        return self.number, True


@dataclass
class Member:
    """Obeys the newest scheduler that has said anything."""

    obeys: Charge = NO_CHARGE
    heard: list[Charge] = field(default_factory=list)

    def order(self, by: Charge) -> None:
        if by.succeeds(self.obeys):
            self.obeys = by
            self.heard.append(by)


class World:
    """Three schedulers, one store, two members. Time is the true one; each clock runs at its own pace."""

    def __init__(self, seed: int, *, forgets: bool = False, margin: float = MARGIN) -> None:
        self.rng = random.Random(seed)
        self.store, self.members = Store(), [Member(), Member()]
        self.now, self.forgets = 0.0, forgets
        self.paces = [1 + self.rng.uniform(-0.02, 0.02) for _ in range(3)]
        self.tenures = [self.tenure(n) for n in range(3)]
        self.asked: list[
            tuple[int, Tenure, float]
        ] = []  #: claims on their way, and when by its own clock
        self.answers: list[tuple[Tenure, int, bool, float]] = []
        self.acted = 0
        self.margin = margin

    def tenure(self, n: int, at_least: int = 0) -> Tenure:
        return Tenure(self.rng.getrandbits(32) * 4 + n, TTL_S, at_least)

    def clock(self, n: int) -> float:
        return 100 * n + self.now * self.paces[n]

    def acts(self, n: int) -> bool:
        slack = (self.margin - MARGIN) * TTL_S  # as if another margin were kept
        return self.tenures[n].acts(self.clock(n) + slack)

    def step(self) -> None:
        self.now += self.rng.choice([0, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0])
        n = self.rng.randrange(3)
        match self.rng.choice([0, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 6, 7]):
            case 0 | 1:
                self.asked.append((self.tenures[n], self.clock(n)))
            case 2 | 3 if self.asked:
                tenure, at = self.asked.pop(self.rng.randrange(len(self.asked)))
                number, ours = self.store.claim(tenure.nonce, tenure.at_least, self.now)
                self.answers.append((tenure, number, ours, at))
            case 4 if self.answers:
                tenure, number, ours, at = self.answers.pop(self.rng.randrange(len(self.answers)))
                tenure.claimed(number, ours, at)
            case 5:
                if self.acts(n):
                    self.acted += 1
                    self.rng.choice(self.members).order(self.tenures[n].charge)
            case 6:
                if (
                    self.tenures[n].lost or self.rng.random() < 0.1
                ):  # stands by again, or is another process
                    self.tenures[n] = self.tenure(n)
                else:
                    self.tenures[n].obeyed(self.rng.choice(self.members).obeys)
            case 7 if self.forgets and self.rng.random() < 0.2:
                self.store = Store()
        acting = [n for n in range(3) if self.acts(n)]
        if not self.forgets:
            assert len(acting) <= 1, f"{acting} act at once"

    def check(self) -> None:
        for member in self.members:
            numbers = [charge.number for charge in member.heard]
            assert numbers == sorted(numbers)
            assert len(set(numbers)) == len(set(member.heard)), "one number, two schedulers"
            assert len(set(member.heard)) == len({c.nonce for c in member.heard}), "one came back"


@given(st.integers(0, 2**32))
def test_one_acts_at_a_time(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()
    world.check()


def test_schedulers_do_act_in_these_worlds_and_one_after_another() -> None:
    worlds = [World(seed) for seed in range(30)]
    for world in worlds:
        for _ in range(300):
            world.step()
    assert sum(world.acted for world in worlds) > 30
    assert max(world.store.number for world in worlds) > 3


def test_without_the_margin_two_act_at_once_since_their_clocks_differ() -> None:
    def walk() -> None:
        for seed in range(3000):
            world = World(seed, margin=-MARGIN)
            for _ in range(300):
                world.step()

    with pytest.raises(AssertionError, match="act at once"):
        walk()


@given(st.integers(0, 2**32))
def test_a_member_never_obeys_an_older_one_again_even_where_the_store_forgets(seed: int) -> None:
    world = World(seed, forgets=True)
    for _ in range(300):
        world.step()
    world.check()


def test_one_that_is_not_obeyed_gives_up_and_comes_back_with_a_higher_number() -> None:
    tenure = Tenure(7, TTL_S)
    tenure.obeyed(Charge(4, 9))  # it has not given any order
    tenure.claimed(4, ours=True, asked_at=0.0)
    for other in (Charge(3, 9), Charge(4, 7)):
        tenure.obeyed(other)
        assert tenure.acts(0.1)
    tenure.obeyed(Charge(4, 9))
    assert tenure.lost
    assert tenure.at_least == 5


def test_one_whose_number_has_risen_was_followed_meanwhile() -> None:
    tenure = Tenure(7, TTL_S)
    tenure.claimed(1, ours=True, asked_at=0.0)
    tenure.claimed(1, ours=True, asked_at=9.0)
    assert tenure.acts(9.1)
    tenure.claimed(3, ours=True, asked_at=20.0)
    assert tenure.lost


def test_one_that_was_followed_never_acts_again() -> None:
    tenure = Tenure(7, TTL_S)
    tenure.claimed(1, ours=True, asked_at=0.0)
    tenure.claimed(2, ours=False, asked_at=1.0)
    tenure.claimed(1, ours=True, asked_at=0.5)  # an answer that was late
    assert tenure.lost
    assert not tenure.acts(0.6)
