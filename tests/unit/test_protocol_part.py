"""What a shard accepts and when it advances, by any order of events, repeats and half-done work included."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elps.contracts.epoch import Epoch, Term
from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import PartitionId
from elps.psshard.core.part import Advance, Part, Reading, Verdict
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval

NOW, OLD, NEW = Epoch(Term(2, 5), 1), Epoch(Term(2, 5), 0), Epoch(Term(3, 1), 0)
A, B = PartitionId(0), PartitionId(1)


class Shard(RuleBasedStateMachine):
    """A part beside a model of it: for each partition the multiset of samples that it counted."""

    @initialize(
        samples=st.integers(1, 12),
        granule=st.integers(1, 3),
        granules=st.integers(1, 4),
        start=st.integers(0, 3),
    )
    def begin(self, samples: int, granule: int, granules: int, start: int) -> None:
        self.geometry = Geometry(samples, granule * granules, granule)
        self.part = Part(NOW, self.geometry)
        self.version = dict.fromkeys((A, B), start)
        self.start, self.gate = start, start - 1
        self.counted: dict[PartitionId, list[Interval]] = {A: [], B: []}
        self.adding: list[PartitionId] = []
        self.writing: dict[PartitionId, Advance] = {}
        self.skipped: set[Interval] = set()
        self.frozen: set[Interval] = set()
        for p in self.version:
            self.part.hold(p, start, 0)

    def a_piece(self, data: st.DataObject, t: int) -> Interval:
        """A granule-aligned part of an iteration; few shapes, so that they nest and meet."""
        whole = self.geometry.iteration(t)
        parts = self.geometry.cut(whole, [1] * data.draw(st.integers(1, 4), "parts"))
        return data.draw(st.sampled_from([p for p in parts if p.size]), "piece")

    def overlaps(self, interval: Interval, among: list[Interval] | set[Interval]) -> bool:
        return any(interval.overlaps(i) for i in among)

    @rule(data=st.data(), p=st.sampled_from((A, B)), back=st.integers(-1, 1))
    def offer(self, data: st.DataObject, p: PartitionId, back: int) -> None:
        t = self.version[p] - back
        if t < 0:
            return
        interval = self.a_piece(data, t)
        verdict = self.part.offer(NOW, t, interval, p)
        if back:
            assert verdict is (Verdict.HAVE_IT if back > 0 else Verdict.EARLY)
        elif self.overlaps(interval, self.counted[p]) or self.overlaps(interval, self.skipped):
            assert verdict is Verdict.HAVE_IT
        elif self.overlaps(interval, self.frozen):
            assert verdict is Verdict.FROZEN
        else:
            assert verdict is Verdict.ACCEPT
            self.counted[p].append(interval)
            self.adding.append(p)

    @rule(data=st.data(), p=st.sampled_from((A, B)), epoch=st.sampled_from((OLD, NEW)))
    def another_epoch_changes_nothing(
        self, data: st.DataObject, p: PartitionId, epoch: Epoch
    ) -> None:
        interval = self.a_piece(data, self.version[p])
        assert self.part.offer(epoch, self.version[p], interval, p) is Verdict.STALE
        self.part.announce_gate(epoch, self.version[p] + 5)
        self.part.grant(epoch, interval)
        self.part.thaw(epoch, interval)
        assert self.part.freeze(epoch, interval) is False

    @precondition(lambda self: self.adding)
    @rule(data=st.data())
    def added(self, data: st.DataObject) -> None:
        p = data.draw(st.sampled_from(self.adding), "added")
        self.adding.remove(p)
        self.part.added(p, self.version[p])

    @rule()
    def announce(self) -> None:
        self.gate = max(self.gate, min(self.version.values()))
        self.part.announce_gate(NOW, self.gate)

    @rule(p=st.sampled_from((A, B)))
    def advance(self, p: PartitionId) -> None:
        t = self.version[p]
        whole = self.geometry.iteration(t)
        tiles = [*self.counted[p], *(s for s in self.skipped if whole.contains(s))]
        complete = sum(i.size for i in tiles) == whole.size
        count = sum(i.size for i in self.counted[p])
        advance = self.part.due(p)
        ready = complete and p not in self.adding and self.gate >= t and p not in self.writing
        assert (advance is not None) == ready
        if advance is not None:
            assert (advance.iteration, advance.count) == (t, count)
            assert advance.step == self.part.steps(p) + (count > 0)
            self.writing[p] = advance

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def written(self, data: st.DataObject) -> None:
        p = data.draw(st.sampled_from(sorted(self.writing)), "written")
        self.part.advanced(self.writing.pop(p))
        self.version[p] += 1
        self.counted[p] = []
        with pytest.raises(IllegalEvent):
            self.part.advanced(Advance(p, self.version[p] - 1, 0, 0))

    @rule(data=st.data())
    def dispute(self, data: st.DataObject) -> None:
        t = min(self.version.values())
        interval = self.a_piece(data, t)
        if self.overlaps(interval, self.skipped) or interval in self.frozen:
            return
        clean = self.part.freeze(NOW, interval)
        counted = [i for p in (A, B) for i in self.counted[p]]
        others = any(v != t for v in self.version.values())
        assert clean == (not others and not self.overlaps(interval, counted))
        self.frozen.add(interval)
        if clean and data.draw(st.booleans(), "grant"):
            self.part.grant(NOW, interval)
            self.skipped.add(interval)
            self.frozen.discard(interval)
        elif data.draw(st.booleans(), "thaw"):
            self.part.thaw(NOW, interval)
            self.frozen.discard(interval)

    @rule(data=st.data())
    def repeats_change_nothing(self, data: st.DataObject) -> None:
        for p in (A, B):
            self.part.hold(p, data.draw(st.integers(0, 9), "again"), 7)
        for interval in sorted(self.skipped):
            self.part.grant(NOW, interval)
        self.part.announce_gate(NOW, data.draw(st.integers(-1, self.gate), "old gate"))

    @invariant()
    def two_versions_can_be_read(self) -> None:
        for p, v in self.version.items():
            assert self.part.version(p) == v
            assert self.part.reading(p, v) is Reading.READY
            assert self.part.reading(p, v + 1) is Reading.NOT_YET
            before = v > self.start and p not in self.writing
            assert self.part.reading(p, v - 1) is (Reading.READY if before else Reading.GONE)
            assert self.part.reading(p, v - 2) is Reading.GONE

    @invariant()
    def what_is_missing_is_what_was_not_counted(self) -> None:
        for p, v in self.version.items():
            whole = self.geometry.iteration(v)
            tiles = [*self.counted[p], *(s for s in self.skipped if whole.contains(s))]
            missing = self.part.missing(p)
            assert sum(i.size for i in missing) == whole.size - sum(i.size for i in tiles)
        self.part.check_invariants()


TestShard = Shard.TestCase
TestShard.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def part_at(version: int = 0) -> Part:
    part = Part(NOW, Geometry(samples=12, batch=6, granule=2))
    part.hold(A, version, 0)
    part.announce_gate(NOW, version)
    return part


def test_a_cut_within_a_granule_is_an_illegal_event() -> None:
    with pytest.raises(IllegalEvent, match=r"\[0, 3\) is not a part of iteration 0"):
        part_at().offer(NOW, 0, Interval(0, 3), A)


def test_what_spans_two_iterations_is_an_illegal_event() -> None:
    with pytest.raises(IllegalEvent):
        part_at().offer(NOW, 0, Interval(4, 8), A)


def test_a_skip_of_what_was_counted_is_an_illegal_event_and_changes_nothing() -> None:
    part = part_at()
    assert part.offer(NOW, 0, Interval(0, 2), A) is Verdict.ACCEPT
    part.freeze(NOW, Interval(0, 4))
    with pytest.raises(IllegalEvent, match="although a part of it was accepted"):
        part.grant(NOW, Interval(0, 4))
    assert part.offer(NOW, 0, Interval(2, 4), A) is Verdict.FROZEN


def test_a_skip_in_an_iteration_that_is_over_is_an_illegal_event() -> None:
    part = part_at()
    part.offer(NOW, 0, Interval(0, 6), A)
    part.added(A, 0)
    advance = part.due(A)
    assert advance is not None
    part.advanced(advance)
    with pytest.raises(IllegalEvent):
        part.grant(NOW, Interval(0, 2))


def test_a_skip_of_before_the_checkpoint_may_be_repeated_to_a_part_that_began_after_it() -> None:
    part_at(version=2).grant(NOW, Interval(0, 2))


def test_an_iteration_of_which_nothing_is_left_advances_without_a_step() -> None:
    part = Part(NOW, Geometry(samples=6, batch=6), [Interval(0, 6)])
    part.hold(A, 0, 4)
    assert part.due(A) is None
    part.announce_gate(NOW, 0)
    assert part.due(A) == Advance(A, 0, count=0, step=4, skipped=(Interval(0, 6),))


def test_a_version_rests_until_it_is_being_left() -> None:
    part = part_at()
    assert part.rests_at(0)
    part.offer(NOW, 0, Interval(0, 6), A)
    part.added(A, 0)
    assert part.rests_at(0)
    assert part.due(A) is not None
    assert not part.rests_at(0)


def test_adding_what_was_not_accepted_is_an_illegal_event() -> None:
    with pytest.raises(IllegalEvent):
        part_at().added(A, 0)
