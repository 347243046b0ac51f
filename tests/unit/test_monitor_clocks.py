"""Clocks of other hosts, as the monitor knows them from heartbeats."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor_messages import agent_beat, bare_beat, scheduler_beat

from elps.contracts.answers import Part
from elps.monitor.core import clocks as module
from elps.monitor.core.clocks import BEATS, ENOUGH, Clocks
from elps.monitor.core.state import State
from elps.monitor.health import DIFFERS_S, HOSTS_TOLD, Surroundings, health

LOST_S = 5.0
NOW = 1.7e9
AROUND = Surroundings(True, None, "1")


@given(
    off_s=st.floats(-1e6, 1e6),
    under_way_s=st.lists(st.floats(0, 1e3), min_size=ENOUGH, max_size=30),
)
def test_a_clock_is_never_told_to_be_further_ahead_than_it_is(
    off_s: float, under_way_s: list[float]
) -> None:
    clocks = Clocks(LOST_S)
    for late_s in under_way_s:
        clocks.take("h", NOW + off_s, NOW + late_s, 0.0)
    [(host, told_s)] = clocks.listed(0.0)
    assert host == "h"
    assert told_s == pytest.approx(off_s - min(under_way_s[-BEATS:]), abs=1e-5)


def test_beats_that_came_late_after_an_outage_are_soon_of_no_account() -> None:
    clocks = Clocks(LOST_S)
    for late_s in (40.0, 30.0, 20.0, 0.01):
        clocks.take("h", NOW, NOW + late_s, 0.0)
    assert dict(clocks.listed(0.0))["h"] == pytest.approx(-0.01, abs=1e-5)


def test_a_clock_that_was_set_right_is_right_after_as_many_beats_as_count() -> None:
    clocks = Clocks(LOST_S)
    for _ in range(BEATS):
        clocks.take("h", NOW + 60, NOW, 0.0)
    for _ in range(BEATS):
        assert dict(clocks.listed(0.0))["h"] == 60
        clocks.take("h", NOW, NOW, 0.0)
    assert dict(clocks.listed(0.0))["h"] == 0


def test_nothing_is_said_of_hosts_that_tell_no_time_have_told_it_once_or_are_silent() -> None:
    clocks = Clocks(LOST_S)
    for _ in range(ENOUGH):
        clocks.take("old", 0.0, NOW, 0.0)
        clocks.take("strange", float("inf"), NOW, 0.0)
        clocks.take("there", NOW, NOW, 0.0)
    clocks.take("new", NOW, NOW, 0.0)
    assert [host for host, _ in clocks.listed(0.0)] == ["there"]
    assert list(clocks.listed(LOST_S + 0.1)) == []
    clocks.take("there", NOW, NOW, LOST_S + 0.1)
    assert list(clocks.listed(LOST_S + 0.1)) == [], "what it told before its silence is forgotten"


def test_of_too_many_hosts_the_one_heard_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HOSTS", 2)
    clocks = Clocks(LOST_S)
    for _ in range(ENOUGH):
        for host in ("a", "b"):
            clocks.take(host, NOW, NOW, 0.0)
    clocks.take("a", NOW, NOW, 0.0)
    clocks.take("c", NOW, NOW, 0.0)
    assert [host for host, _ in clocks.listed(0.0)] == ["a"]


def told(state: State, **off_s: float) -> Part:
    """The part of the health report after beats of a shard on each of these hosts."""
    for seq in range(ENOUGH):
        for host, off in off_s.items():
            beat = bare_beat(seq, shard=f"s-{host}")
            beat = msgspec.structs.replace(beat, host=host, at=NOW + seq + off)
            state.take_beat(beat, float(seq), NOW + seq)
    return health(state, float(ENOUGH), AROUND).parts["clocks"]


def test_the_health_report_names_the_hosts_whose_clocks_differ() -> None:
    well = told(State(lost_s=LOST_S, run="r"), a=0.0, b=0.9 * DIFFERS_S, c=-0.9 * DIFFERS_S)
    assert (well.status, well.count) == ("ok", 3)
    part = told(State(lost_s=LOST_S, run="r"), a=0.0, b=3.0, c=-61.5)
    assert (part.status, part.count) == ("degraded", 1)
    assert part.detail == (
        "beside the monitor's host: b 3.0 s ahead; c 61.5 s behind, or heard late"
    )
    many = told(State(lost_s=LOST_S, run="r"), **{f"h{n}": 9.0 for n in range(HOSTS_TOLD + 2)})
    assert many.detail.endswith("; and 2 more")


def test_members_of_every_kind_tell_their_time_and_old_ones_harm_nothing() -> None:
    state = State(lost_s=LOST_S, run="r")
    beats = [bare_beat(1), agent_beat(), scheduler_beat()]
    for beat in beats:
        state.take_beat(beat, 0.0, NOW)
    assert health(state, 0.0, AROUND).parts["clocks"] == Part(status="ok", detail="none told")
    for n, beat in enumerate(beats):
        newer = msgspec.structs.replace(beat, seq=9, at=NOW + 7.0, host=f"h{n}")
        for seq in range(ENOUGH):
            state.take_beat(msgspec.structs.replace(newer, seq=9 + seq), 0.0, NOW)
    assert [off for _, off in state.clocks.listed(0.0)] == [7.0, 7.0, 7.0]
