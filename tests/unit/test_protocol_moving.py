"""Partitions that move: their rules left out one at a time; `Moving` alone under reports that get lost or repeat."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

sys.path.append(str(Path(__file__).parent))

from protocol_marks import rare
from protocol_moving_faults import MOVING_FAULTS, MOVING_SPARE
from protocol_world import bad_among

from elps.contracts.ids import PartitionId, ShardId
from elps.placement import place
from elps.psshard.core import commands as do
from elps.psshard.core.commands import Command, Move
from elps.psshard.core.moving import LAST_RETRY_S, STALLED_S, Moving

SHARDS = [ShardId(s) for s in "abcd"]
A, B, C, _ = SHARDS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", rare(MOVING_FAULTS, "half-map", "never-ask", "double-ask"))
def test_a_rule_of_moving_that_is_left_out_is_found(name: str) -> None:
    fault = MOVING_FAULTS[name]
    found = any(bad_among(fault.seeds, **fault.how))
    assert found, f"{fault.what}: nothing was wrong in {fault.within} schedules"


@pytest.mark.timeout(300)
@pytest.mark.thorough
@pytest.mark.parametrize("name", MOVING_SPARE)
def test_what_another_rule_of_moving_makes_good_changes_no_result(name: str) -> None:
    fault = MOVING_SPARE[name]
    bad = [seed for seed, _ in bad_among(fault.seeds, **fault.how)]
    assert not bad, f"{fault.what}: it is not made good, see schedules {bad[:5]}"


# --- Moving alone -----------------------------------------------------------------------------------------------------


class Copies(RuleBasedStateMachine):
    """`Moving` between a clock and shards whose reports are lost, repeated and reordered."""

    shards_of = st.sets(st.sampled_from(SHARDS), min_size=1).map(sorted)

    @initialize(
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
        wave_bytes=st.integers(1, 12),
        data=st.data(),
    )
    def begin(self, sizes: list[int], wave_bytes: int, data: st.DataObject) -> None:
        self.sizes = {PartitionId(i): size for i, size in enumerate(sizes)}
        placed = {p: data.draw(st.sampled_from(SHARDS)) for p in self.sizes}
        self.wave_bytes = wave_bytes
        self.moving = Moving(self.sizes, placed, wave_bytes)
        self.placed = placed
        self.wanted: list[ShardId] | None = None
        self.version, self.now = 0, 0.0
        self.wave: do.Follow | None = None
        self.newest = 0  #: number of the newest wave
        self.exchange: set[ShardId] | None = None  #: have not taken the map that is being exchanged
        self.copies: dict[PartitionId, int] = {}  #: of the wave: version that is there
        self.reports: list[tuple[str, tuple[object, ...]]] = []

    # --- what the machine commands ---------------------------------------------------------------------------------

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case do.Follow(number, moves):
                    assert self.wave is None, "two waves at a time"
                    assert number > self.newest
                    self._check(moves)
                    self.wave, self.newest = command, number
                    self.copies = {m.partition: -1 for m in moves}
                case do.Unfollow():
                    assert self.exchange is None, "given up while some have the new map"
                    self.wave = None
                case do.Exchange(number, placed, version):
                    assert self.wave is not None
                    assert number == self.wave.wave
                    assert version == self.version
                    assert all(held == version for held in self.copies.values()), self.copies
                    moved = {m.partition: m.target for m in self.wave.moves}
                    assert placed == self.placed | moved
                    self.exchange = {*self.placed.values(), *placed.values()}
                    self.placed = placed
                case do.Exchanged():
                    assert self.exchange == set(), "not every shard has taken the map"
                    self.exchange = self.wave = None
                case _:
                    assert isinstance(command, do.Remark)

    def _check(self, moves: tuple[Move, ...]) -> None:
        assert self.wanted is not None
        size = sum(self.sizes[m.partition] for m in moves)
        assert len(moves) == 1 or size <= self.wave_bytes
        assert len({m.partition for m in moves}) == len(moves)
        for m in moves:
            assert self.placed[m.partition] == m.source != m.target
            assert m.target in self.wanted

    # --- what happens ----------------------------------------------------------------------------------------------

    @rule(shards=shards_of)
    def want(self, shards: list[ShardId]) -> None:
        self.wanted = shards
        self.obey(self.moving.want(shards))

    @rule(seconds=st.sampled_from((0.1, 1.0, STALLED_S + 1.0)))
    def look(self, seconds: float) -> None:
        self.now += seconds
        self.obey(self.moving.look(self.version, self.now))

    @precondition(lambda self: self.exchange is None)
    @rule()
    def a_version_becomes_complete(self) -> None:
        self.version += 1
        self.obey(self.moving.look(self.version, self.now))

    @precondition(lambda self: self.wave is not None and self.exchange is None)
    @rule(data=st.data())
    def a_copy_goes_on(self, data: st.DataObject) -> None:
        assert self.wave is not None
        behind = [m for m in self.wave.moves if self.copies[m.partition] < self.version]
        if behind:
            self._advance(data.draw(st.sampled_from(behind)))

    def _advance(self, move: Move) -> None:
        assert self.wave is not None
        held = self.copies[move.partition]
        self.copies[move.partition] = self.version if held < 0 else held + 1
        here = [self.copies[m.partition] for m in self.wave.moves if m.target == move.target]
        have = sum(v >= 0 for v in here)
        self.reports.append(("followed", (move.target, self.wave.wave, have, min(here))))

    @precondition(lambda self: self.wave is not None)
    @rule()
    def a_feed_breaks(self) -> None:
        assert self.wave is not None
        self.reports.append(("failed", (self.wave.wave, "it broke")))

    @precondition(lambda self: self.exchange)
    @rule(data=st.data())
    def a_shard_takes_the_map(self, data: st.DataObject) -> None:
        assert self.exchange
        self._take(data.draw(st.sampled_from(sorted(self.exchange))))

    def _take(self, shard: ShardId) -> None:
        assert self.exchange
        self.exchange.discard(shard)
        self.reports.append(("took_map", (shard, self.moving.exchanges)))

    @precondition(lambda self: self.reports)
    @rule(data=st.data(), again=st.booleans())
    def a_report_arrives(self, data: st.DataObject, again: bool) -> None:
        at = data.draw(st.integers(0, len(self.reports) - 1))
        self._hear(self.reports[at])
        if not again:
            del self.reports[at]

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def a_report_is_lost(self, data: st.DataObject) -> None:
        del self.reports[data.draw(st.integers(0, len(self.reports) - 1))]

    def _hear(self, report: tuple[str, tuple[object, ...]]) -> None:
        what, facts = report
        now = () if what == "took_map" else (self.now,)
        self.obey(getattr(self.moving, what)(*facts, *now) or [])

    @rule()
    def the_clock_stands_still(self) -> None:
        self.obey(self.moving.still(self.version))

    @rule()
    def a_link_comes_back(self) -> None:
        for command in self.moving.again():
            if isinstance(command, do.Follow):
                assert command == self.wave
            else:
                assert command == do.Unfollow(self.newest)
                assert self.wave is None

    # --- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def every_partition_has_its_place(self) -> None:
        if hasattr(self, "moving"):
            assert self.moving.placed == self.placed
            assert self.placed.keys() == self.sizes.keys()
            assert self.moving.exchanging == (self.exchange is not None)
            assert set(self.placed.values()) <= self.moving.holders

    def teardown(self) -> None:
        """Nothing is lost any more: it ends where the last wish puts it."""
        if not hasattr(self, "moving"):
            return
        self.reports.clear()
        for _ in range(200):
            if self.wave is None and self.exchange is None and self.moving.done:
                break
            self.now += LAST_RETRY_S + 1.0
            self.obey(self.moving.look(self.version, self.now))
            if self.exchange is None and self.wave is not None:
                for move in self.wave.moves:
                    self.copies[move.partition] = self.version
                    self._advance_told(move)
                self.obey(self.moving.look(self.version, self.now))
                self.obey(self.moving.still(self.version))
            taken = {*self.placed.values(), *SHARDS} if self.exchange is not None else set()
            for shard in sorted(taken):
                assert self.exchange is not None
                self.exchange.discard(shard)
                last = not self.exchange
                self.obey(self.moving.took_map(shard, self.moving.exchanges))
                if last and self.exchange is None:
                    break
        assert self.moving.done, self.moving.waiting_for()
        if self.wanted is not None:
            assert set(self.placed.values()) <= set(self.wanted)
            assert place(self.sizes, self.wanted, current=self.placed) == self.placed

    def _advance_told(self, move: Move) -> None:
        assert self.wave is not None
        have = sum(m.target == move.target for m in self.wave.moves)
        self.moving.followed(move.target, self.wave.wave, have, self.version, self.now)


TestCopies = Copies.TestCase
TestCopies.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# --- one thing at a time ----------------------------------------------------------------------------------------------

P0, P1 = PartitionId(0), PartitionId(1)


def moving_from_a() -> tuple[Moving, do.Follow]:
    """Both partitions are to go from a to b."""
    moving = Moving({P0: 1, P1: 1}, {P0: A, P1: A})
    assert moving.want([B]) == []
    (follow,) = moving.look(0, 0.0)
    assert isinstance(follow, do.Follow)
    return moving, follow


def test_nothing_waits_for_copies_that_have_not_come() -> None:
    moving, follow = moving_from_a()
    moving.followed(B, follow.wave, 1, -1, 0.1)
    moving.look(0, 0.2)
    assert not moving.settling
    moving.followed(B, follow.wave, 2, 0, 0.3)
    moving.look(1, 0.4)
    assert moving.settling


def test_a_wish_during_an_exchange_waits_for_its_end() -> None:
    moving, follow = moving_from_a()
    moving.followed(B, follow.wave, 2, 0, 0.1)
    moving.look(0, 0.2)
    (exchange,) = moving.still(0)
    assert isinstance(exchange, do.Exchange)
    assert moving.want([A, C]) == []
    assert moving.exchanging
    assert moving.took_map(A, 1) == []
    assert do.Exchanged() in moving.took_map(B, 1)
    (follow,) = moving.look(0, 0.3)
    assert isinstance(follow, do.Follow)
    assert {m.source for m in follow.moves} == {B}
    assert {m.target for m in follow.moves} == {A, C}


def test_who_does_not_take_a_map_in_time_is_named() -> None:
    moving, follow = moving_from_a()
    moving.followed(B, follow.wave, 2, 0, 0.1)
    moving.look(0, 0.2)
    moving.still(0)
    moving.look(0, 0.3)
    assert moving.stuck(0.3 + STALLED_S) == []
    moving.took_map(A, 1)
    moving.look(0, 1.0)
    assert moving.stuck(0.4 + STALLED_S) == [B]
    moving.took_map(B, 1)
    assert moving.stuck(0.4 + STALLED_S) == []


def test_a_map_is_taken_only_by_who_says_so_under_it() -> None:
    moving, follow = moving_from_a()
    moving.followed(B, follow.wave, 2, 0, 0.1)
    moving.look(0, 0.2)
    moving.still(0)
    for shard in SHARDS:
        assert moving.took_map(shard, 0) == []
    assert moving.exchanging


def test_a_wave_that_makes_no_progress_is_given_up_and_begun_again() -> None:
    moving, follow = moving_from_a()
    assert moving.look(0, STALLED_S) == []
    unfollow, remark = moving.look(0, STALLED_S + 0.1)
    assert unfollow == do.Unfollow(follow.wave)
    assert isinstance(remark, do.Remark)
    assert "no progress" in moving.waiting_for()
    assert moving.look(0, STALLED_S + 0.2) == []
    (again,) = moving.look(0, STALLED_S + 5.0)
    assert isinstance(again, do.Follow)
    assert again.wave > follow.wave
    assert again.moves == follow.moves
