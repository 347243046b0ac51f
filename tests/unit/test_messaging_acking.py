"""Deliveries that are acknowledged together: each exactly once, and none that is still at work."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from elps.messaging.acking import Acking, Settled


def acknowledged(open_: list[int], up_to: int | None, single: list[int]) -> set[int]:
    """What a broker with these open deliveries takes for acknowledged; it refuses a number that is not open."""
    assert up_to is None or up_to in open_
    assert set(single) <= set(open_)
    return {n for n in open_ if up_to is not None and n <= up_to} | set(single)


@given(st.lists(st.tuples(st.sampled_from(["come", "done", "back", "take"]), st.integers(0, 30))))
def test_what_is_acknowledged_is_settled_and_each_is_once(steps: list[tuple[str, int]]) -> None:
    settled, open_, at_work, done = Settled(), list[int](), set[int](), set[int]()
    came = 0
    for what, which in [*steps, ("take", 0)]:
        if what == "come":
            came += 1
            settled.came(came)
            open_.append(came)
            at_work.add(came)
        elif what == "take":
            taken = acknowledged(open_, *settled.take())
            assert taken == done, "all that is settled, and nothing that is at work"
            open_ = [n for n in open_ if n not in taken]
            done = set()
        elif at_work:
            number = sorted(at_work)[which % len(at_work)]
            at_work.discard(number)
            if what == "done":
                settled.done(number)
                done.add(number)
            else:
                settled.sent_back(number)
                open_.remove(number)
    assert settled.take() == (None, [])


def test_what_is_settled_in_order_takes_one_word() -> None:
    settled = Settled()
    for number in range(1, 101):
        settled.came(number)
        settled.done(number)
    assert settled.take() == (100, [])


def test_one_that_takes_long_does_not_hold_up_the_others() -> None:
    settled = Settled()
    for number in (1, 2, 3, 4):
        settled.came(number)
    for number in (1, 3, 4):
        settled.done(number)
    assert settled.take() == (1, [3, 4])
    settled.done(2)
    assert settled.take() == (2, [])


def test_a_number_that_is_settled_twice_is_acknowledged_once() -> None:
    settled = Settled()
    settled.came(1)
    settled.done(1)
    assert settled.take() == (1, [])
    settled.done(1)
    assert settled.take() == (None, [])


async def test_what_comes_while_a_word_is_on_its_way_goes_with_the_next() -> None:
    words: list[tuple[int, bool]] = []
    on_its_way, arrived = asyncio.Event(), asyncio.Event()

    async def ack(number: int, *, multiple: bool) -> None:
        words.append((number, multiple))
        on_its_way.set()
        await arrived.wait()

    acking = Acking(ack)
    for number in range(1, 10):
        acking.came(number)
    for number in (1, 2, 3):
        acking.done(number)
    await on_its_way.wait()
    assert words == [(3, True)]
    for number in (4, 5, 6, 8):
        acking.done(number)
    flushed = asyncio.create_task(acking.flush())
    await asyncio.sleep(0)
    assert not flushed.done()
    arrived.set()
    await flushed
    assert words == [(3, True), (6, True), (8, False)]
    acking.done(7)
    acking.done(9)
    await acking.flush()
    assert words[3:] == [(9, True)]
