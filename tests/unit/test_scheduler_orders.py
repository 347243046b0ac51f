"""When members are told what is to be."""

from __future__ import annotations

from scheduler_desk import Desk

from elps.contracts.ids import JobId
from elps.contracts.messages import HostJob


def test_what_is_held_back_of_a_job_is_said_as_soon_as_it_may_be_and_not_twice() -> None:
    desk, held = Desk(), {JobId("j")}
    desk.shard()
    desk.agent()
    desk.submit()
    assert desk.take_sent(HostJob)
    assert desk.core.messages(desk.now, held) == []
    assert desk.core.messages(desk.now) == [], "it was said just now"
    desk.time += desk.core.bounds.beat_s
    assert desk.core.messages(desk.now, held) == []
    again = desk.core.messages(desk.now, {JobId("another")})
    assert HostJob in [type(send.message) for send in again]
