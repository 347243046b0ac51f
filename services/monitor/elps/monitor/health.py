"""The health report: what is there of the stack, as far as its beats, the broker and the store tell."""

from __future__ import annotations

from dataclasses import dataclass

from elps.contracts.answers import Health, Part, Status
from elps.contracts.messages import AgentBeat, SchedulerBeat, ShardBeat
from elps.monitor.core.members import Members, Roster
from elps.monitor.core.state import State

DIFFERS_S = 2.0
"""From so much on the times that two hosts tell contradict each other for whoever reads them."""
HOSTS_TOLD = 5


@dataclass(frozen=True)
class Surroundings:
    """What the shell knows of broker and store, and of itself."""

    broker: bool
    """Whether the broker is reachable."""
    store_problem: str | None
    """What was wrong with the store when it was asked last; None when nothing."""
    version: str
    blocked: str = ""
    """Why the broker takes no messages though it is reachable; empty while it takes them."""
    started_s: float = -1e18
    """When the monitor began to listen, on its monotonic clock."""


def health(state: State, now_s: float, around: Surroundings) -> Health:
    """Whether broker, store and every kind of member are there, of one version and with one time."""
    members = state.members
    parts = {
        "broker": _part(around.broker and not around.blocked, _broker(around)),
        "store": _part(around.store_problem is None, around.store_problem or "reachable"),
        "scheduler": _schedulers(members, now_s),
        "shards": _roster("shard", members.shards, now_s),
        "workers": _roster("agent", members.agents, now_s),
        "versions": _versions(state, now_s, around.version),
        "clocks": _clocks(state, now_s),
    }
    whole = all(part.status == "ok" for part in parts.values())
    return Health(status="ok" if whole else "degraded", parts=parts, version=around.version)


def staleness(state: State, now_s: float, around: Surroundings) -> str:
    """Why what is told of jobs may be old, with the age; empty while it is not."""
    lost_s = state.members.schedulers.lost_s
    silent_s = now_s - max(state.heard_s, around.started_s)
    if not around.broker:
        return f"the monitor does not reach the broker: this is as of {silent_s:.0f} s ago"
    if around.blocked and silent_s > lost_s:
        return f"{around.blocked}: this is as of {silent_s:.0f} s ago"
    if silent_s > lost_s:
        return f"no member of the stack was heard for {silent_s:.0f} s: this is as of then"
    silent_s = now_s - max(state.scheduler_heard_s, around.started_s)
    if silent_s > lost_s:
        return f"the scheduler was not heard for {silent_s:.0f} s: states of jobs are as of then"
    return ""


def _broker(around: Surroundings) -> str:
    return around.blocked or "connected" if around.broker else "not reachable"


def _part(ok: bool, detail: str, count: int | None = None) -> Part:
    status: Status = "ok" if ok else "degraded"
    return Part(status=status, detail=detail, count=int(ok) if count is None else count)


def _roster(
    kind: str, roster: Roster[ShardBeat] | Roster[AgentBeat] | Roster[SchedulerBeat], now_s: float
) -> Part:
    there, lost = 0, []
    for member, liveness, heard_s in roster.listed(now_s):
        if liveness != "lost":
            there += 1
        elif not getattr(member.beat, "leaving", False):
            name = getattr(member.beat, kind, kind)
            lost.append(f"{name} silent for {heard_s:.0f} s")
    if lost:
        return _part(False, "; ".join(lost[:10]), there)
    return _part(there > 0, f"{there} there" if there else f"no {kind} has been heard", there)


def _schedulers(members: Members, now_s: float) -> Part:
    """The one in charge, and those that stand by; one that is gone is told of, and nothing is wrong for it."""
    part = _roster("scheduler", members.schedulers, now_s)
    standing_by = _roster("standby", members.standbys, now_s)
    if not len(members.standbys):
        return part
    detail = f"{part.detail}, standby: {standing_by.detail}"
    return _part(part.status == "ok", detail, part.count)


def _versions(state: State, now_s: float, own: str) -> Part:
    found: dict[str, list[str]] = {own: ["monitor"]}
    for kind, roster in (
        ("scheduler", state.members.schedulers),
        ("standby", state.members.standbys),
        ("shard", state.members.shards),
        ("agent", state.members.agents),
    ):
        for member, liveness, _ in roster.listed(now_s):
            if liveness != "lost":
                found.setdefault(member.beat.version, []).append(getattr(member.beat, kind, kind))
    if len(found) == 1:
        return _part(True, own)
    told = (f"{version}: {', '.join(names[:5])}" for version, names in sorted(found.items()))
    return _part(False, "; ".join(told), len(found))


def _clocks(state: State, now_s: float) -> Part:
    """Of the members' hosts, beside the monitor's; old members tell no time, and nothing is wrong for it."""
    hosts = list(state.clocks.listed(now_s))
    off = [(host, off_s) for host, off_s in hosts if abs(off_s) >= DIFFERS_S]
    if not off:
        return _part(True, f"{len(hosts)} as the monitor's" if hosts else "none told", len(hosts))
    told = (
        f"{host} {off_s:.1f} s ahead"
        if off_s > 0
        else f"{host} {-off_s:.1f} s behind, or heard late"
        for host, off_s in off[:HOSTS_TOLD]
    )
    more = f"; and {len(off) - HOSTS_TOLD} more" if len(off) > HOSTS_TOLD else ""
    return _part(
        False, f"beside the monitor's host: {'; '.join(told)}{more}", len(hosts) - len(off)
    )
