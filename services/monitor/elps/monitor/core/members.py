"""The processes of the stack: newest beat of each, and whether it is alive by the receiver's own clock.

Nothing here depends on a sender's clock. Beats can be doubled and late: within an incarnation the sequence number
decides, and an incarnation that was followed by another does not come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from elps.contracts.answers import Liveness
from elps.contracts.messages import AgentBeat, MemberMessage, SchedulerBeat, ShardBeat

FORGET_S = 120.0
"""A member lost without leaving is shown so long: a person can see it, and ids of the past do not pile up."""
MAX_MEMBERS = 10_000
RETIRED = 8
"""Past incarnations remembered for each member."""

B = TypeVar("B", ShardBeat, AgentBeat, SchedulerBeat)


class Member(Generic[B]):
    """One process."""

    def __init__(self, beat: B, now_s: float) -> None:
        self.beat: B = beat
        self.heard_s = now_s  #: when the newest beat came, on our monotonic clock
        self.retired: deque[str] = deque(maxlen=RETIRED)  #: incarnations that another one followed

    def take(self, beat: B, now_s: float) -> bool:
        """Take a beat unless it is a repeat or of the past."""
        if beat.incarnation in self.retired:
            return False
        if beat.incarnation == self.beat.incarnation:
            if beat.seq <= self.beat.seq:
                return False
        else:
            self.retired.append(self.beat.incarnation)
        self.beat, self.heard_s = beat, now_s
        return True


class Roster(Generic[B]):
    """The members of one kind, by id."""

    def __init__(self, lost_s: float) -> None:
        self.lost_s = lost_s
        self._members: dict[str, Member[B]] = {}

    def take(self, key: str, beat: B, now_s: float) -> bool:
        """Take a beat; say whether it was news."""
        member = self._members.get(key)
        if member is not None:
            return member.take(beat, now_s)
        if len(self._members) >= MAX_MEMBERS:
            stalest = min(self._members, key=lambda k: (self._members[k].heard_s, k))
            del self._members[stalest]
        self._members[key] = Member(beat, now_s)
        return True

    def liveness(self, member: Member[B], now_s: float) -> Liveness:
        """Whether a member is there, is on its way out, or went silent."""
        if now_s - member.heard_s > self.lost_s:
            return "lost"
        return "leaving" if getattr(member.beat, "leaving", False) else "alive"

    def forget(self, now_s: float) -> None:
        """Let go of members that left, and of those lost long ago."""
        for key, member in list(self._members.items()):
            silent_s = now_s - member.heard_s
            left = silent_s > self.lost_s and getattr(member.beat, "leaving", False)
            if left or silent_s > max(FORGET_S, self.lost_s):
                del self._members[key]

    def get(self, key: str) -> Member[B] | None:
        """A member by its id."""
        return self._members.get(key)

    def listed(self, now_s: float) -> Iterator[tuple[Member[B], Liveness, float]]:
        """Members by id, with their liveness and the seconds since their newest beat."""
        for key in sorted(self._members):
            member = self._members[key]
            yield member, self.liveness(member, now_s), max(0.0, now_s - member.heard_s)

    def __len__(self) -> int:
        return len(self._members)


class Members:
    """All processes that send beats."""

    def __init__(self, lost_s: float) -> None:
        self.shards: Roster[ShardBeat] = Roster(lost_s)
        self.agents: Roster[AgentBeat] = Roster(lost_s)
        self.schedulers: Roster[SchedulerBeat] = Roster(lost_s)
        self.standbys: Roster[SchedulerBeat] = Roster(lost_s)

    def take(self, beat: MemberMessage, now_s: float) -> bool:
        """Take a beat of any kind; say whether it was news."""
        match beat:
            case ShardBeat():
                return self.shards.take(beat.shard, beat, now_s)
            case AgentBeat():
                return self.agents.take(beat.agent, beat, now_s)
            case SchedulerBeat(charge=None):
                return self.standbys.take(f"{beat.host} {beat.pid}", beat, now_s)
            case SchedulerBeat():
                return self.schedulers.take("scheduler", beat, now_s)

    def forget(self, now_s: float) -> None:
        """Let go of members that left, and of those lost long ago."""
        for roster in (self.shards, self.agents, self.schedulers, self.standbys):
            roster.forget(now_s)
