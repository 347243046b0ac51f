"""Who may act, of schedulers whose messages are late, whose clocks differ, and who stand still at any moment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.epoch import NO_CHARGE, Charge
from elps.scheduler.core.tenure import MARGIN, PATIENCE, Past, Tenure

TTL_S = 3.0


@dataclass
class Store:
    """The lease, by the true time."""

    holder: int = 0
    number: int = 0
    until: float = 0.0

    def claim(
        self, holder: int, at_least: int, known: int, now: float, over: int = 0
    ) -> tuple[int, int]:
        """The number, and who holds it; 0: nobody."""
        held = self.until > now
        if held and self.holder not in (holder, over):
            return self.number, self.holder
        if self.number < known:
            return self.number, self.holder if held else 0
        if self.holder != holder or self.number < at_least:
            self.holder, self.number = holder, max(self.number + 1, at_least)
        self.until = now + TTL_S
        return self.number, holder


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
        self.pasts = [Past() for _ in range(3)]
        self.others = [0, 0, 0]  #: whom each knows to hold the lease
        self.paces = [1 + self.rng.uniform(-0.02, 0.02) for _ in range(3)]
        self.tenures = [self.tenure(n) for n in range(3)]
        self.asked: list[
            tuple[int, Tenure, int, int, int, float]
        ] = []  #: claims on their way, and when by its own clock
        self.answers: list[tuple[int, Tenure, int, int, float]] = []
        self.acted = 0
        self.margin = margin

    def tenure(self, n: int) -> Tenure:
        self.others[n] = 0
        return Tenure(self.rng.getrandbits(32) * 4 + n + 4, TTL_S, self.pasts[n])

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
                tenure, now = self.tenures[n], self.clock(n)
                over = self.others[n] if self.tenures[n].takes_back else 0
                asked = (n, tenure, tenure.at_least, tenure.awaits(now), over, now)
                self.asked.append(asked)
            case 2 | 3 if self.asked:
                m, tenure, at_least, known, over, at = self.asked.pop(
                    self.rng.randrange(len(self.asked))
                )
                number, holder = self.store.claim(tenure.nonce, at_least, known, self.now, over)
                self.answers.append((m, tenure, number, holder, at))
            case 4 if self.answers:
                m, tenure, number, holder, at = self.answers.pop(
                    self.rng.randrange(len(self.answers))
                )
                tenure.claimed(number, holder == tenure.nonce, at)
                if tenure is self.tenures[m] and holder != tenure.nonce:
                    self.others[m] = holder or self.others[m]
            case 5:
                if self.acts(n):
                    self.acted += 1
                    self.rng.choice(self.members).order(self.tenures[n].charge)
            case 6:
                if self.rng.random() < 0.1:  # is another process
                    self.pasts[n] = Past()
                    self.tenures[n] = self.tenure(n)
                elif self.tenures[n].lost:  # stands by again
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
    tenure = Tenure(7, TTL_S, Past())
    tenure.obeyed(Charge(4, 9))  # it has not given any order
    tenure.claimed(4, ours=True, asked_at=0.0)
    for other in (Charge(3, 9), Charge(4, 7)):
        tenure.obeyed(other)
        assert tenure.acts(0.1)
    tenure.obeyed(Charge(4, 9))
    assert tenure.lost
    assert Tenure(8, TTL_S, tenure.past).at_least == 5


def test_one_whose_number_has_risen_was_followed_meanwhile() -> None:
    tenure = Tenure(7, TTL_S, Past())
    tenure.claimed(1, ours=True, asked_at=0.0)
    tenure.claimed(1, ours=True, asked_at=9.0)
    assert tenure.acts(9.1)
    tenure.claimed(3, ours=True, asked_at=20.0)
    assert tenure.lost


def test_one_that_was_followed_never_acts_again() -> None:
    tenure = Tenure(7, TTL_S, Past())
    tenure.claimed(1, ours=True, asked_at=0.0)
    tenure.claimed(2, ours=False, asked_at=1.0)
    tenure.claimed(1, ours=True, asked_at=0.5)  # an answer that was late
    assert tenure.lost
    assert not tenure.acts(0.6)


class Emptied:
    """Three schedulers that claim all the time, one of them in charge, and a store that is emptied again and again.

    The third is started anew now and then, and knows of nothing.
    """

    CLAIM_S = 0.5

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store, self.now, self.away_until = Store(), 0.0, 0.0
        self.pasts = [Past() for _ in range(3)]
        self.tenures = [Tenure(1, TTL_S, past) for past in self.pasts]
        self.others, self.due = [0, 0, 0], [0.0, 0.1, 0.1]
        self.serial, self.member, self.emptied, self.usurped = 1, Member(), 0, 0
        for n in range(3):
            self.anew(n)

    def anew(self, n: int) -> None:
        self.serial += 1
        self.tenures[n], self.others[n] = Tenure(3 * self.serial + n, TTL_S, self.pasts[n]), 0

    def claim(self, n: int) -> None:
        tenure, before = self.tenures[n], self.tenures[n].charge
        over = self.others[n] if self.tenures[n].takes_back else 0
        number, holder = self.store.claim(
            tenure.nonce, tenure.at_least, tenure.awaits(self.now), self.now, over
        )
        tenure.claimed(number, holder == tenure.nonce, self.now)
        self.others[n] = self.others[n] if holder in (0, tenure.nonce) else holder
        if n == 0 and before == NO_CHARGE != tenure.charge and number > 1:
            self.usurped += 1
            assert tenure.resumes, "the first one has been followed"
        if tenure.lost:
            self.anew(n)

    def step(self) -> None:
        self.now += self.rng.random() * 0.1
        for n in self.rng.sample(range(3), 3):
            if self.now >= max(self.due[n], self.away_until):
                self.claim(n)
                self.due[n] = self.now + self.rng.choice([0.1, self.CLAIM_S, 2 * self.CLAIM_S])
            if self.tenures[n].acts(self.now) and self.rng.random() < 0.3:
                self.tenures[n].obeyed(self.member.obeys)
                if self.tenures[n].lost:
                    self.anew(n)
                else:
                    self.member.order(self.tenures[n].charge)
        if self.rng.random() < 0.005:
            self.store, self.emptied = Store(), self.emptied + 1
            self.away_until = self.now + self.rng.choice([0.0, 1.0, 2 * TTL_S])
            if self.rng.random() < 0.5:
                self.pasts[2] = Past()
                self.anew(2)


@given(st.integers(0, 2**32))
def test_who_was_in_charge_of_a_store_that_is_emptied_is_obeyed_and_knows_what_it_knew(
    seed: int,
) -> None:
    world = Emptied(seed)
    world.claim(0)
    for _ in range(400):
        world.step()
    assert {charge.nonce % 3 for charge in world.member.heard} <= {0}


def test_in_these_worlds_others_do_get_the_lease_and_it_is_taken_back() -> None:
    worlds = [Emptied(seed) for seed in range(100)]
    for world in worlds:
        world.claim(0)
        for _ in range(400):
            world.step()
    assert sum(world.emptied for world in worlds) > 100
    assert sum(world.usurped for world in worlds) > 10
    assert all(world.member.heard for world in worlds)


def test_one_that_waits_for_another_in_vain_takes_over_above_it() -> None:
    past = Past()
    standby = Tenure(7, TTL_S, past)
    standby.claimed(4, ours=False, asked_at=0.0)
    assert standby.awaits(1.0) == 4
    standby.claimed(0, ours=False, asked_at=2.0)  # the store has forgotten
    assert standby.awaits(2.0 + PATIENCE * TTL_S - 0.1) == 4
    assert standby.awaits(2.0 + PATIENCE * TTL_S + 0.1) == 0
    assert standby.at_least == 5
    standby.claimed(4, ours=False, asked_at=12.0)  # there it is, after all
    assert standby.awaits(60.0) == 4


def test_one_that_is_not_obeyed_holds_back_for_the_one_that_is() -> None:
    past = Past()
    Tenure(6, TTL_S, past).claimed(1, ours=True, asked_at=0.0)
    tenure = Tenure(7, TTL_S, past)
    tenure.claimed(2, ours=True, asked_at=0.0)
    tenure.obeyed(Charge(2, 9))
    again = Tenure(8, TTL_S, past)
    assert not past.unfollowed
    assert again.awaits(0.0) == again.at_least == 3
    again.claimed(2, ours=False, asked_at=1.0)
    assert again.awaits(1.1 + PATIENCE * TTL_S) == 0
