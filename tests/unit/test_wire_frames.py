"""Headers: what is packed is read back, and what is no header is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.epoch import Epoch, Term
from elps.contracts.errors import ProtocolError
from elps.stream.interval import Interval
from elps.wire.frames import (
    HEADER_BYTES,
    MAGIC,
    MAX_META_BYTES,
    MAX_PART_BYTES,
    Flag,
    Header,
    Kind,
    Status,
    unpack,
)

U8, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
FIELDS = struct.Struct("<HBBBBxxIQQIIQQQIQ")
"""Magic, kind, flags, status, three bytes of nothing, partition, term, nonce, n, meta, iteration, lo, hi, body, ticket.
Written here anew, since the layout is a promise to other versions."""

headers = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    epoch=st.builds(Epoch, st.builds(Term, U64, U64), U32),
    flags=st.integers(0, 7).map(Flag),
    status=U8,
    partition=U32,
    iteration=U64,
    interval=st.tuples(U64, U64).map(lambda pair: Interval(min(pair), max(pair))),
    ticket=U64,
    meta_bytes=st.integers(0, MAX_META_BYTES),
    body_bytes=st.integers(0, MAX_PART_BYTES),
)


def raw(**changes: int) -> bytes:
    """A sound header with some fields changed."""
    fields = {
        "magic": MAGIC, "kind": Kind.PUSH, "flags": 0, "status": 0, "zero": 0, "partition": 7, "number": 3, "nonce": 9,
        "n": 1, "meta": 0, "iteration": 5, "lo": 10, "hi": 20, "body": 64, "ticket": 2,
    }  # fmt: skip
    return FIELDS.pack(*(fields | changes).values())


@given(headers)
def test_a_header_is_read_back_as_it_was_packed(header: Header) -> None:
    data = header.pack()
    assert len(data) == HEADER_BYTES == FIELDS.size == 72
    read = unpack(data)
    assert read == header
    assert unpack(memoryview(bytearray(data))) == header
    assert (type(read.kind), type(read.flags), type(read.interval)) == (Kind, Flag, Interval)


def test_fields_lie_where_every_version_expects_them() -> None:
    header = Header(
        Kind.PUSH, Epoch(Term(3, 9), 1), partition=7, iteration=5, interval=Interval(10, 20), ticket=2, body_bytes=64
    )  # fmt: skip
    assert header.pack() == raw()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"magic": 0}, "not a frame"),
        ({"magic": 0x95E1}, "not a frame"),  # the other byte order
        ({"magic": 0x5447}, "not a frame"),  # "GET /"
        ({"kind": 0}, "unknown frame"),
        ({"kind": 255}, "unknown frame"),
        ({"kind": 72}, "unknown frame"),  # reserved
        ({"flags": 8}, "unknown frame"),
        ({"flags": 255}, "unknown frame"),
        ({"meta": MAX_META_BYTES + 1}, "out of bounds"),
        ({"meta": 2**32 - 1}, "out of bounds"),
        ({"body": MAX_PART_BYTES + 1}, "out of bounds"),
        ({"body": 2**32 - 1}, "out of bounds"),
        ({"lo": 21}, "out of bounds"),
        ({"lo": 2**64 - 1, "hi": 2**64 - 2}, "out of bounds"),
    ],
)
def test_a_hostile_header_is_refused(changes: dict[str, int], text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        unpack(raw(**changes))


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_are_a_header_within_bounds_or_are_refused(data: bytes) -> None:
    try:
        header = unpack(data)
    except ProtocolError:
        return
    assert header.body_bytes <= MAX_PART_BYTES
    assert header.meta_bytes <= MAX_META_BYTES
    assert header.interval.lo <= header.interval.hi


@given(st.data(), headers)
def test_one_changed_byte_gives_another_header_or_is_refused(
    data: st.DataObject, header: Header
) -> None:
    raw_bytes = bytearray(header.pack())
    at = data.draw(st.integers(0, HEADER_BYTES - 1))
    raw_bytes[at] ^= data.draw(st.integers(1, 255))
    try:
        read = unpack(raw_bytes)
    except ProtocolError:
        return
    assert read != header or at in (5, 6, 7)  # bytes without a meaning yet


def test_epochs_of_many_jobs_are_told_apart_and_not_hoarded() -> None:
    from elps.wire import frames

    for number in range(5000):
        epoch = Epoch(Term(number, number * 7), number % 11)
        assert unpack(Header(Kind.BEAT, epoch).pack()).epoch == epoch
    assert len(frames._epochs) <= 256


def test_no_two_kinds_and_no_two_statuses_share_a_number() -> None:
    for numbers in (Kind, Status, Flag):
        assert len({int(n) for n in numbers.__members__.values()}) == len(numbers.__members__)
    assert max(Kind) < 72  # what follows is reserved
    assert sorted(Status) == list(range(5))  # the worst of several answers is the greatest
