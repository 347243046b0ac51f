from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from elps.worker.core.printed import (
    BURST_S,
    BYTES_PER_S,
    LINES_PER_S,
    MAX_LINE_BYTES,
    TAIL_BYTES,
    Printed,
)


def test_lines_are_cut_across_chunks_and_an_unfinished_one_comes_at_the_end() -> None:
    it = Printed(0.0)
    it.feed("stdout", b"on", 0.0)
    it.feed("stdout", b"e\ntwo\nthr", 0.0)
    assert it.take() == ["one", "two"]
    it.feed("stdout", b"ee", 0.0)
    it.end("stdout")
    assert it.take() == ["three"]
    assert it.take() == []


def test_streams_do_not_mix_within_a_line_and_empty_lines_stay() -> None:
    it = Printed(0.0)
    it.feed("stdout", b"a", 0.0)
    it.feed("stderr", b"x\n\n", 0.0)
    it.feed("stdout", b"b\n", 0.0)
    assert it.take() == ["x", "", "ab"]


def test_progress_bars_with_carriage_returns_become_lines() -> None:
    it = Printed(0.0)
    it.feed("stderr", b"10%\r20%\r", 0.0)
    it.feed("stderr", b"\nend\r\n", 0.0)
    assert it.take() == ["10%", "20%", "end"]


def test_characters_cut_by_a_chunk_and_bytes_that_are_no_text_are_survived() -> None:
    it = Printed(0.0)
    word = "größe".encode()
    it.feed("stdout", word[:3], 0.0)
    it.feed("stdout", word[3:] + b"\n\xff\n", 0.0)
    assert it.take() == ["größe", "\ufffd"]


def test_a_line_without_end_is_cut_and_does_not_grow() -> None:
    it = Printed(0.0)
    for _ in range(10):
        it.feed("stdout", b"x" * MAX_LINE_BYTES, 0.0)
    it.feed("stdout", b"\nnext\n", 0.0)
    lines = it.take()
    assert lines == ["x" * MAX_LINE_BYTES + "…", "next"]


def test_what_is_above_the_rate_is_counted_and_its_end_still_known() -> None:
    it = Printed(0.0)
    total = 0
    for n in range(200):
        chunk = b"".join(b"%06d %02000d\n" % (n * 32 + i, 0) for i in range(32))
        total += len(chunk)
        it.feed("stderr", chunk, 0.0)
    lines = it.take()
    kept = sum(len(line) + 1 for line in lines[:-1])
    assert kept <= BYTES_PER_S * BURST_S
    assert lines[-1].startswith(f"[elps: {total - kept} bytes left out")
    assert it.last_lines("stderr", 1)[0].startswith("006399 ")
    it.feed("stderr", b"not this, \nthis\n", BURST_S)
    assert it.take()[0] == "this"


def test_many_short_lines_are_bounded_too() -> None:
    it = Printed(0.0)
    it.feed("stdout", b"\n" * 100_000, 0.0)
    lines = it.take()
    assert len(lines) == LINES_PER_S * BURST_S + 1
    assert lines[-1].startswith("[elps: ")


def test_the_tail_begins_with_a_whole_line() -> None:
    it = Printed(0.0)
    it.feed("stderr", b"a" * TAIL_BYTES + b"\nb\nc", 0.0)
    assert it.last_lines("stderr", 20) == ["b", "c"]
    assert it.last_lines("stderr", 1) == ["c"]
    assert it.last_lines("stdout", 20) == []


@example(b"\r", [])
@example(b"a\r\r", [2])
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_lines_do_not_depend_on_how_the_text_was_cut(text: bytes, cuts: list[int]) -> None:
    it = Printed(0.0)
    places = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    for a, b in pairwise(places):
        it.feed("stdout", text[a:b], 0.0)
    it.end("stdout")
    assert it.take() == [line.decode(errors="replace") for line in text.splitlines()]
