"""What of a history is written to the store, and that it comes back from there."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import iteration_row

from elps.contracts.answers import Evaluation
from elps.contracts.errors import InvalidDocument
from elps.contracts.telemetry import IterationRow
from elps.monitor.core import history as history_module
from elps.monitor.core import keeping
from elps.monitor.core.history import History
from elps.monitor.core.keeping import (
    PIECE_ROWS,
    Kept,
    Piece,
    pack,
    restored,
    unpack,
)

SEQ = 7
WHOLE = 40
SEEDS = st.integers(0, 2**32)


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Few rows are whole, so that short histories thin."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(history_module, "ROWS_WHOLE", WHOLE)
    monkeypatch.setattr(history_module, "ROWS_PER_LEVEL", 12)
    monkeypatch.setattr(history_module, "EVALUATIONS_WHOLE", 10)
    monkeypatch.setattr(history_module, "EVALUATIONS_PER_LEVEL", 4)
    yield
    monkeypatch.undo()


class Fields(dict[str, bytes]):
    """A job's hash in the store."""

    def take(self, kept: Kept, history: History, steps: int | None = None) -> bool:
        """Carry out a save, or only its first steps; whether it was whole."""
        save = kept.save(history)
        todo = [("write", name) for name in save.write] + [("remove", name) for name in save.remove]
        for what, name in todo[:steps]:
            if what == "write":
                self[name] = pack(save.write[name])
            else:
                self.pop(name, None)
        if steps is not None and steps < len(todo):
            return False
        kept.saved(save)
        return True

    def read(self) -> History:
        history = History()
        history.restore(*restored(unpack(body) for body in self.values()))
        history.check_invariants()
        return history


def contents(history: History) -> tuple[list[tuple[int, IterationRow]], list[Evaluation]]:
    placed = sorted(history.rows.placed(), key=lambda pair: pair[1].iteration)
    return placed, list(history.evaluations)


def train(history: History, rng: random.Random, iterations: int, at: int, term: int) -> int:
    """Rows and evaluations as they come, late and doubled ones among them; returns the next iteration."""
    for i in range(at, at + iterations):
        told_at = term * 1e6 + i
        history.add(iteration_row(i, workers=rng.randrange(3), term=term, at=told_at))
        if rng.random() < 0.1:
            late = max(0, i - rng.randrange(9))
            history.add(iteration_row(late, term=term, at=told_at))
        if i % 5 == 4:
            metrics = {"loss": rng.random()}
            history.evaluated(Evaluation(iteration=i + 1, at=told_at, metrics=metrics, term=term))
    return at + iterations


@settings(max_examples=30)
@given(SEEDS, st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_a_history_comes_back_as_it_was_whatever_came_between_its_saves(
    seed: int, lengths: list[int]
) -> None:
    rng = random.Random(seed)
    history, kept, fields, at, term = History(), Kept(SEQ, {}), Fields(), 0, 1
    for iterations in lengths:
        at = train(history, rng, iterations, at, term)
        assert fields.take(kept, history)
        assert contents(fields.read()) == contents(history)
        if rng.random() < 0.3:
            at, term = max(0, at - rng.randrange(60)), term + 1
        if rng.random() < 0.1:
            history.shrink()


@settings(max_examples=30)
@given(SEEDS, st.lists(st.integers(1, 120), min_size=2, max_size=5))
def test_a_save_that_is_cut_off_loses_none_of_the_newest_rows_that_were_saved(
    seed: int, lengths: list[int]
) -> None:
    rng = random.Random(seed)
    history, kept, fields, at, term = History(), Kept(SEQ, {}), Fields(), 0, 1
    saved: set[tuple[int, int]] = set()
    for iterations in lengths:
        at = train(history, rng, iterations, at, term)
        whole = fields.take(kept, history, steps=rng.randrange(20))
        there = {(row.iteration, row.term) for row in history.rows.newest(WHOLE)}
        found = {(row.iteration, row.term) for row in fields.read().rows}
        assert saved & there <= found
        saved = there if whole else saved & there
        if rng.random() < 0.3:
            at, term = max(0, at - rng.randrange(60)), term + 1
    assert fields.take(kept, history)
    assert contents(fields.read()) == contents(history)


@settings(max_examples=15)
@given(SEEDS)
def test_what_came_before_a_history_was_taken_back_stays_beside_it(seed: int) -> None:
    rng = random.Random(seed)
    history, fields = History(), Fields()
    at = train(history, rng, 100, 0, 1)
    fields.take(Kept(SEQ, {}), history)
    late = History()
    for i in range(at, at + 10):
        late.add(iteration_row(i))
    newest = [row.iteration for row in late.rows]
    late.restore(*restored(unpack(body) for body in fields.values()))
    late.check_invariants()
    found = [row.iteration for row in late.rows]
    assert found[-len(newest) :] == newest
    assert found[0] == 0
    assert set(found) >= {row.iteration for row in history.rows.newest(25)}


def test_a_save_writes_what_has_changed_and_no_more() -> None:
    history, kept, fields = History(), Kept(SEQ, {}), Fields()
    train(history, random.Random(1), 10_000, 0, 1)
    fields.take(kept, history)
    assert not kept.differs(history)
    history.add(iteration_row(10_000))
    assert kept.differs(history)
    save = kept.save(history)
    assert list(save.write) == [f"r0.{10_000 // PIECE_ROWS}"]
    assert save.remove == []
    assert len(fields) < 60, "the number of pieces grows with the logarithm of the length"


def test_what_nobody_can_use_is_removed_with_the_next_save() -> None:
    history = History()
    history.add(iteration_row(0))
    save = Kept(SEQ, {"r0.0": None, "r0.99": None}).save(history)
    assert list(save.write) == ["r0.0"]
    assert save.remove == ["r0.99"]


def test_a_piece_that_is_too_large_is_thinned_until_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeping, "MAX_PIECE_BYTES", 64 * 1024)
    rng = random.Random(3)
    rows = [_noisy(iteration_row(i, workers=250), rng) for i in range(PIECE_ROWS)]
    body = pack(Piece(seq=SEQ, level=0, rows=rows))
    assert len(body) <= 64 * 1024
    kept = unpack(body).rows
    assert 0 < len(kept) < PIECE_ROWS
    assert kept == rows[:: PIECE_ROWS // len(kept)]


def test_of_a_row_that_does_not_fit_alone_its_workers_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_PIECE_BYTES", 4 * 1024)
    row = _noisy(iteration_row(7, workers=2000), random.Random(3))
    body = pack(Piece(seq=SEQ, level=0, rows=[row]))
    assert len(body) <= 4 * 1024
    assert unpack(body).rows == [msgspec.structs.replace(row, workers=[])]


def test_what_the_store_may_have_lost_is_all_written_again() -> None:
    history, kept, fields = History(), Kept(SEQ, {}), Fields()
    train(history, random.Random(1), 500, 0, 1)
    fields.take(kept, history)
    gone = next(iter(fields))
    del fields[gone]
    assert not kept.differs(history)
    kept.doubt()
    assert kept.differs(history)
    assert fields.take(kept, history)
    assert gone in fields
    assert contents(fields.read()) == contents(history)


def _noisy(row: IterationRow, rng: random.Random) -> IterationRow:
    replace = msgspec.structs.replace
    timings = [
        replace(t, compute_s=rng.random(), pull_s=rng.random(), wait_s=rng.random())
        for t in row.workers
    ]
    return replace(row, workers=timings)


@pytest.mark.parametrize("body", [b"", b"\x80\x04pickle", pack(Piece(seq=1, level=0))[:-9]])
def test_bytes_that_are_no_piece_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidDocument, match="piece of a history"):
        unpack(body)
