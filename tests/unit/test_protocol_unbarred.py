"""``ssp`` and ``asp`` under random schedules, and under them again with each rule left out.

A bad schedule is told message by message by ``python tests/unit/protocol_unbarred.py SEED``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from protocol_marks import later, rare
from protocol_unbarred import bad_among
from protocol_unbarred_faults import UNBARRED_FAULTS, UNBARRED_SPARE

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.applying import Applying, part_for
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command, Timing
from elps.psshard.core.holes import Holes, furthest, merged
from elps.psshard.core.moving import Moving
from elps.psshard.core.part import Part, Reading, Verdict
from elps.psshard.core.rules import Rules
from elps.psshard.core.unbarred import UnbarredClock, clock_for
from elps.psshard.core.weighing import LOOK_S
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval

SCHEDULES, HEIRS, CHUNK = 3_000, 1_000, 500
NOW = Epoch(Term(3, 33), 1)
A, B = PartitionId(0), PartitionId(1)
S, V = ShardId("s"), ShardId("v")
FAST, SLOW = WorkerId("fast"), WorkerId("slow")


BLOCKS = [
    pytest.param(first, marks=later(first, thorough=500, long=2_000))
    for first in range(0, SCHEDULES, CHUNK)
]
"""The later ones are no part of `make test`."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", BLOCKS)
def test_every_schedule_without_a_barrier_applies_every_sample_once(first: int) -> None:
    bad = list(bad_among(range(first, first + CHUNK), thorough=True))
    told = "python tests/unit/protocol_unbarred.py"
    assert not bad, "; ".join(f"{told} {seed}: {why}" for seed, why in bad[:5])


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_leaders_that_follow_each_other_apply_every_sample_once() -> None:
    bad = list(bad_among(range(HEIRS), focus="heirs", thorough=True))
    assert not bad, "; ".join(f"{seed}: {why}" for seed, why in bad[:5])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", rare(UNBARRED_FAULTS, "no-epoch"))
def test_a_rule_without_a_barrier_that_is_left_out_is_found(name: str) -> None:
    fault = UNBARRED_FAULTS[name]
    found = any(bad_among(fault.seeds, **fault.how))
    assert found, f"{fault.what}: nothing was wrong in {fault.within} schedules"


@pytest.mark.timeout(300)
@pytest.mark.thorough
@pytest.mark.parametrize("name", UNBARRED_SPARE)
def test_what_is_only_there_for_clarity_changes_nothing(name: str) -> None:
    fault = UNBARRED_SPARE[name]
    bad = [seed for seed, _ in bad_among(fault.seeds, **fault.how)]
    assert not bad, f"{fault.what}: it is needed after all, see schedules {bad[:5]}"


# --- the shard --------------------------------------------------------------------------------------------------------


def part_at(gate: int, staleness: int = 1) -> Applying:
    """Iterations of 4 samples; two partitions at version 0."""
    part = Applying(NOW, Geometry(samples=8, batch=4), staleness=staleness)
    part.hold(A, 0, 0)
    part.hold(B, 0, 0)
    part.announce_gate(NOW, gate)
    return part


def apply(part: Applying, t: int, lo: int, hi: int, partition: PartitionId = A) -> Verdict:
    verdict = part.offer(NOW, t, Interval(lo, hi), partition)
    if verdict is Verdict.ACCEPT:
        part.added(partition, t)
        while (advance := part.due(partition)) is not None:
            part.advanced(advance)
    part.check_invariants()
    return verdict


def test_gradients_of_later_iterations_are_applied_at_once_and_known_when_they_come_again() -> None:
    part = part_at(gate=2)
    assert apply(part, 1, 4, 6) is Verdict.ACCEPT
    assert apply(part, 2, 8, 12) is Verdict.ACCEPT
    assert part.version(A) == 0
    assert apply(part, 0, 0, 4) is Verdict.ACCEPT
    assert part.version(A) == 1
    assert apply(part, 1, 4, 6) is Verdict.HAVE_IT
    assert apply(part, 1, 4, 8) is Verdict.HAVE_IT
    assert apply(part, 0, 0, 2) is Verdict.HAVE_IT
    assert apply(part, 1, 6, 8) is Verdict.ACCEPT
    assert part.version(A) == 3
    assert part.steps(A) == 4
    assert part.version(B) == 0


def test_nothing_is_applied_of_an_iteration_that_is_not_opened() -> None:
    part = part_at(gate=0)
    assert apply(part, 1, 4, 8) is Verdict.EARLY


def test_a_pull_for_training_waits_for_the_gate_and_for_the_bound() -> None:
    part = part_at(gate=1, staleness=1)
    assert part.reading(A, 1, newest=True) is Reading.READY
    assert part.reading(A, 2, newest=True) is Reading.NOT_YET
    part.announce_gate(NOW, 2)
    assert part.reading(A, 2, newest=True) is Reading.NOT_YET
    apply(part, 1, 4, 8)
    assert part.reading(A, 2, newest=True) is Reading.NOT_YET
    apply(part, 0, 0, 4)
    assert part.reading(A, 2, newest=True) is Reading.READY


def test_a_version_is_there_to_be_read_only_where_nothing_newer_may_be_applied() -> None:
    part = part_at(gate=0)
    assert part.reading(A, 1) is Reading.NOT_YET
    apply(part, 0, 0, 4)
    assert part.reading(A, 1) is Reading.READY
    assert not part.rests_at(1)
    apply(part, 0, 0, 4, B)
    assert part.rests_at(1)
    part.announce_gate(NOW, 1)
    assert part.reading(A, 1) is Reading.GONE
    apply(part, 1, 4, 6)
    assert not part.rests_at(1)


def test_what_is_applied_beyond_the_version_goes_with_the_values() -> None:
    part = Applying(NOW, Geometry(samples=8, batch=4), staleness=1)
    part.hold(A, 1, 5, applied=[Interval(4, 6), Interval(8, 10)])
    part.announce_gate(NOW, 2)
    assert apply(part, 1, 4, 6) is Verdict.HAVE_IT
    assert apply(part, 2, 8, 12) is Verdict.HAVE_IT
    assert apply(part, 1, 6, 8) is Verdict.ACCEPT
    assert part.version(A) == 2
    assert part.steps(A) == 6


def test_the_job_says_which_machines_it_takes() -> None:
    rules = Rules(Geometry(8, 4), 2)
    assert clock_for(rules) is Clock
    assert clock_for(Rules(Geometry(8, 4), 2, staleness=0)) is UnbarredClock
    assert type(part_for(None)(NOW, Geometry(8, 4), ())) is Part
    assert type(part_for(0)(NOW, Geometry(8, 4), ())) is Applying


# --- another leader ---------------------------------------------------------------------------------------------------


def test_pieces_are_cut_where_any_partition_has_a_part_and_what_all_have_is_done() -> None:
    geometry = Geometry(samples=8, batch=8)
    partitions = [(3, (Interval(24, 28),)), (3, (Interval(24, 26), Interval(28, 30))), (4, ())]
    holes = Holes(geometry, 3, partitions)
    assert holes.far == 3
    assert holes.pieces(3) == [
        (Interval(24, 26), True),
        (Interval(26, 28), False),
        (Interval(28, 30), False),
        (Interval(30, 32), False),
    ]


def test_how_far_partitions_have_come() -> None:
    geometry = Geometry(samples=8, batch=4)
    assert furthest(geometry, 5, [(5, ()), (5, ())]) == 4
    assert furthest(geometry, 5, [(5, ()), (7, ())]) == 6
    assert furthest(geometry, 5, [(5, (Interval(20, 22), Interval(36, 38))), (7, ())]) == 9


def test_intervals_that_touch_are_told_as_one() -> None:
    told = merged([Interval(4, 6), Interval(0, 2), Interval(2, 4), Interval(8, 9)])
    assert told == [Interval(0, 6), Interval(8, 9)]


def test_a_leader_that_takes_over_opens_what_was_open_and_lends_what_is_lacking() -> None:
    rules = Rules(Geometry(80, 4), 20, staleness=5, test_samples=4, evaluate_every=6)
    clock = UnbarredClock(rules, [S, V], 3, 0.0, evaluated=-1)
    clock.take_over([(3, (Interval(12, 14),)), (4, (Interval(16, 20),))])
    clock.go_on({})
    out = clock.expect([FAST], 0.0) + clock.progressed(S, 3, 0.0) + clock.progressed(V, 4, 0.0)
    assert do.AnnounceGate(4) in out
    out = clock.worker_ready(FAST, 0.0) + clock.asked(FAST, 0.0)
    assert [c.interval for c in out if isinstance(c, do.Lend)] == [Interval(14, 16)]
    clock.pause(0.0)
    assert clock.boundary == 5


# --- the leader -------------------------------------------------------------------------------------------------------


class Job:
    """A clock of two workers and two shards whose gradients are where they belong at once, if they are told."""

    def __init__(self, iterations: int = 20, moving: Moving | None = None, **rules: object) -> None:
        told = Rules(Geometry(80, 4), iterations, floor_s=100.0, **rules)  # type: ignore[arg-type]
        self.clock = UnbarredClock(told, [S, V], 0, 0.0, moving=moving)
        self.hands: dict[WorkerId, do.Lend] = {}
        self.others: list[Command] = []
        for shard in (S, V):
            self.take(self.clock.progressed(shard, 0, 0.0))
        self.take(self.clock.expect([FAST, SLOW], 0.0))
        for worker in (FAST, SLOW):
            self.take(self.clock.worker_ready(worker, 0.0))
        for worker in (FAST, SLOW):
            self.take(self.clock.asked(worker, 0.0))

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, do.Lend):
                self.hands[command.worker] = command
            else:
                self.others.append(command)
        self.clock.check_invariants(lambda _: ())

    def does(self, worker: WorkerId) -> None:
        """It computes what it has in hand, and asks."""
        lend = self.hands.pop(worker)
        if lend.kind == "evaluate":
            sums = {"m": 1.0}
            self.take(self.clock.evaluated(worker, lend.version, lend.interval, sums, 1.0))
        else:
            timing = Timing(samples=lend.interval.size)
            self.take(
                self.clock.computed(worker, lend.version, lend.interval, 1.0, timing, 1.0)
                + self.clock.asked(worker, 1.0)
            )
            self.take(self.clock.pushed(worker, lend.version, 0.1))
            return
        self.take(self.clock.asked(worker, 1.0))

    def complete(self, version: int) -> None:
        for shard in (S, V):
            self.take(self.clock.progressed(shard, version, 1.0))

    def said(self, kind: type) -> list[Command]:
        return [command for command in self.others if isinstance(command, kind)]


def test_who_is_fast_goes_on_up_to_the_bound_and_is_lent_one_more_to_wait_with() -> None:
    job = Job(staleness=2)
    assert job.hands[SLOW].version == 0
    pieces = []
    while FAST in job.hands and job.hands[FAST].version <= 2:
        pieces.append(job.hands[FAST].interval)
        job.does(FAST)
    # its own half of iteration 0, all of 1 and 2; it waits in the shards with a piece of 3
    assert sum(i.size for i in pieces) == 2 + 4 + 4
    assert job.hands[FAST].version == 3
    assert job.clock.gate == 3
    assert job.said(do.AnnounceGate) == [do.AnnounceGate(t) for t in range(4)]


def test_the_lease_of_one_that_is_lost_goes_to_who_asks_next_before_anything_newer() -> None:
    job = Job(staleness=5)
    lost = job.hands[SLOW].interval
    job.does(FAST)
    job.take(job.clock.worker_lost(SLOW, "gone", 2.0))
    job.does(FAST)
    assert job.hands[FAST].interval == lost


def test_who_waits_for_the_bound_is_called_back_when_a_piece_of_the_oldest_is_free() -> None:
    job = Job(staleness=0)
    job.does(FAST)
    assert job.hands[FAST].version == 1
    job.take(job.clock.worker_lost(SLOW, "gone", 2.0))
    assert job.said(do.CallBack) == [do.CallBack(FAST, job.hands[FAST].ticket)]


def test_nothing_is_lent_beyond_a_version_that_is_to_be_evaluated_until_that_is_done() -> None:
    job = Job(staleness=1000, test_samples=4, evaluate_every=2)
    for _ in range(3):
        job.does(FAST)
    assert FAST not in job.hands
    job.does(SLOW)
    assert not job.hands
    job.complete(2)
    assert {(lend.kind, lend.version) for lend in job.hands.values()} == {("evaluate", 2)}
    job.does(FAST)
    assert job.clock.gate == 1
    job.does(SLOW)
    assert {(lend.kind, lend.version) for lend in job.hands.values()} == {("train", 2)}


def test_a_checkpoint_is_written_at_a_boundary_before_anything_beyond_it_is_lent() -> None:
    job = Job(staleness=1000, checkpoint_every=1)
    job.does(FAST)
    job.does(SLOW)
    job.complete(1)  # so a checkpoint is wanted; iteration 1 is opened already
    assert not job.said(do.WriteCheckpoint)
    boundary = job.clock.gate + 1
    for worker in (FAST, SLOW):
        while worker in job.hands:
            job.does(worker)
    assert job.clock.gate == boundary - 1
    job.others.clear()
    job.complete(boundary)
    order = [do.WriteCheckpoint(boundary), do.AnnounceGate(boundary)]
    assert [c for c in job.others if c in order] == order
    assert job.hands[FAST].version == boundary


def test_partitions_are_copied_while_the_job_stands_still() -> None:
    moving = Moving({A: 1, B: 1}, {A: S, B: S})
    job = Job(staleness=1000, moving=moving)
    job.does(FAST)
    job.take(job.clock.want([S, V], 1.0))
    assert not job.said(do.Follow)
    boundary = job.clock.gate + 1
    for worker in (FAST, SLOW):
        while worker in job.hands:
            job.does(worker)
    job.complete(boundary)
    (follow,) = job.said(do.Follow)
    assert isinstance(follow, do.Follow)
    assert not job.hands
    job.take(job.clock.followed(V, follow.wave, 0, boundary, 1.0))
    (exchange,) = job.said(do.Exchange)
    assert isinstance(exchange, do.Exchange)
    assert exchange.version == boundary
    for shard in (S, V):
        job.take(job.clock.progressed(shard, boundary, 1.0, 1))
    assert job.hands[FAST].version == boundary


def test_a_slow_shard_gives_partitions_away_while_nobody_waits_for_its_moves() -> None:
    sizes = {PartitionId(p): 1_000_000 for p in range(8)}
    placed = {p: S if p < 4 else V for p in sizes}
    job = Job(iterations=100_000, staleness=1000, moving=Moving(sizes, placed))
    job.take(job.clock.want([S, V], 1.0))
    now = 1.0
    while not job.said(do.Follow):
        now += LOOK_S
        assert now < 100.0, "it is not weighed"
        job.clock.worked(S, 1e-9)
        job.clock.worked(V, 20e-9)
        for worker in [w for w in (FAST, SLOW) if w in job.hands]:
            job.does(worker)
        for shard in (S, V):
            job.take(job.clock.progressed(shard, job.clock.gate + (not job.hands), now))
        job.take(job.clock.tick(now))
    (remark,) = [c for c in job.said(do.Remark) if c.what == "shards_weighed"]  # type: ignore[attr-defined]
    assert "v takes 20.0 times as long" in remark.reason  # type: ignore[attr-defined]
    (follow,) = job.said(do.Follow)
    assert {(m.source, m.target) for m in follow.moves} == {(V, S)}  # type: ignore[attr-defined]


def test_a_move_hurries_the_checkpoint_that_it_has_to_wait_for() -> None:
    job = Job(staleness=1000, checkpoint_every=1, moving=Moving({A: 1, B: 1}, {A: S, B: S}))
    job.does(FAST)
    job.does(SLOW)
    job.complete(1)  # so a checkpoint is wanted
    while not job.said(do.WriteCheckpoint):
        for worker in [w for w in (FAST, SLOW) if w in job.hands]:
            job.does(worker)
        job.complete(job.clock.gate + 1)
    (write,) = job.said(do.WriteCheckpoint)
    assert isinstance(write, do.WriteCheckpoint)
    assert not write.hurry
    job.take(job.clock.want([S, V], 1.0))
    job.take(job.clock.tick(2.0))
    assert job.said(do.WriteCheckpoint) == [write, do.WriteCheckpoint(write.version, hurry=True)]
    assert not job.said(do.Follow)


def test_a_pause_comes_where_nothing_was_opened_beyond() -> None:
    job = Job(staleness=1000)
    while job.clock.gate < 4:
        job.does(FAST)
    job.take(job.clock.pause(1.0))
    assert job.clock.boundary == 5
    for worker in (FAST, SLOW):
        while worker in job.hands:
            job.does(worker)
    job.complete(5)
    job.take(job.clock.checkpoint_written(5, 1.0))
    assert job.said(do.Rest) == [do.Rest(5)]
