"""The pool: shards and agents as their heartbeats show them, and which of their slots are taken.

A slot is taken by what the records give to it, by what the member's heartbeat still reports, and by *ghosts*:
things that a member was, or may have been, told to run and that were taken back. A ghost ends with the first
heartbeat that arrives after the member was told to end it, whatever that heartbeat shows, for orders reach a
member in their order: if the order to start it is still on its way, so is the one to end it, and whatever the
slot is given to next comes after both. A member that was lost may come back as the same process, so its ghosts
stay.

A heartbeat counts if it is newer than what is known: same incarnation and higher number, or an incarnation never
seen. Which of two incarnations is the newer one nothing tells, and a scheduler that has just started may hear a
late word of the dead one after the first word of the living one. So one that was superseded is believed again
when it has something new to say and the one that took its place has fallen silent: a dead one never does, and a
living one is not ignored for longer than silence takes to be noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import Address, AgentBeat, HostedJob, ShardBeat, TrainerStatus
from elps.scheduler.core.events import MemberId

REMEMBERED_MEMBERS = 10_000
"""Past members of which the newest heartbeat is remembered, so that late ones are known as such."""
REMEMBERED_INCARNATIONS = 16


class Holding(NamedTuple):
    """What takes one slot of a member: a job on a shard, or a trainer on an agent."""

    job: JobId
    worker: WorkerId | None = None


Claims = Mapping[MemberId, Mapping[Holding, object]]
"""What the records and reservations give to each member."""


@dataclass
class Member:
    """What is common to shards and agents."""

    incarnation: str
    seq: int
    slots: int
    host: str
    heard_at: float  #: monotonic, s; when the newest heartbeat arrived
    leaving: bool = False
    reported: dict[Holding, Term] = field(default_factory=dict)  #: as in its newest heartbeat


@dataclass
class Shard(Member):
    """A shard process."""

    address: Address = field(kw_only=True)
    jobs: dict[JobId, HostedJob] = field(default_factory=dict)


@dataclass
class Agent(Member):
    """A worker agent."""

    kind: str = ""  #: class of its machine; empty: unknown
    trainers: dict[WorkerId, TrainerStatus] = field(default_factory=dict)


class Seen(Enum):
    """What a heartbeat says of its sender."""

    STALE = "stale"
    """Nothing: a newer one is known."""
    AGAIN = "again"
    JOINED = "joined"
    RESTARTED = "restarted"
    """Another process than before: what the old one held is lost."""


@dataclass
class Ghost:
    """What was taken back from a member that may still have it."""

    term: Term
    told: bool = False  #: whether the member was told since to end it


@dataclass
class _Past:
    incarnation: str
    seq: int  #: highest heard of it
    superseded: dict[str, int] = field(default_factory=dict)  #: the others, with the highest heard


class Pool:
    """All members that are alive."""

    def __init__(self) -> None:
        self.shards: dict[ShardId, Shard] = {}
        self.agents: dict[AgentId, Agent] = {}
        self.ghosts: dict[
            MemberId, dict[Holding, Ghost]
        ] = {}  #: of members living and lost, none of them empty
        self._past: dict[MemberId, _Past] = {}  #: of living and former members
        self._clearing: dict[
            tuple[MemberId, Holding], float
        ] = {}  #: since when something unclaimed holds a slot

    def shard_beaten(self, beat: ShardBeat, now: float) -> Seen:
        """Take a shard's heartbeat."""
        seen = self._judge(beat.shard, beat, beat.shard in self.shards)
        if seen is not Seen.STALE:
            self.shards[beat.shard] = Shard(
                incarnation=beat.incarnation,
                seq=beat.seq,
                slots=beat.slots,
                host=beat.host,
                heard_at=now,
                leaving=beat.leaving,
                reported={Holding(hosted.job): hosted.term for hosted in beat.jobs},
                address=Address(shard=beat.shard, host=beat.data_host, port=beat.data_port),
                jobs={hosted.job: hosted for hosted in beat.jobs},
            )
            self._exorcise(beat.shard)
        return seen

    def agent_beaten(self, beat: AgentBeat, now: float) -> Seen:
        """Take an agent's heartbeat."""
        seen = self._judge(beat.agent, beat, beat.agent in self.agents)
        if seen is not Seen.STALE:
            self.agents[beat.agent] = Agent(
                incarnation=beat.incarnation,
                seq=beat.seq,
                slots=beat.slots,
                host=beat.host,
                heard_at=now,
                leaving=beat.leaving,
                reported={
                    Holding(status.job, status.worker): status.term for status in beat.trainers
                },
                trainers={status.worker: status for status in beat.trainers},
                kind=beat.kind,
            )
            self._exorcise(beat.agent)
        return seen

    def members(self) -> Iterator[tuple[MemberId, Member]]:
        """All living ones, shards first, each kind in the order of ids."""
        for shard in sorted(self.shards):
            yield shard, self.shards[shard]
        for agent in sorted(self.agents):
            yield agent, self.agents[agent]

    def member(self, member: MemberId) -> Member | None:
        """A living member."""
        return self.shards.get(ShardId(member)) or self.agents.get(AgentId(member))

    def silent(self, now: float, lost_s: float) -> list[MemberId]:
        """Members not heard for longer than `lost_s`."""
        return [member for member, known in self.members() if now - known.heard_at > lost_s]

    def remove(self, member: MemberId) -> None:
        """Count a member as gone, with all it held."""
        self.shards.pop(ShardId(member), None)
        self.agents.pop(AgentId(member), None)
        for key in [k for k in self._clearing if k[0] == member]:
            del self._clearing[key]

    def forgive(self, now: float) -> None:
        """Begin to count everyone's silence anew."""
        for _, member in self.members():
            member.heard_at = now

    def take_back(self, member: MemberId, holding: Holding, term: Term) -> None:
        """Something is no longer given to a member."""
        self.ghosts.setdefault(member, {})[holding] = Ghost(term)

    def told_to_end(self, member: MemberId, holding: Holding) -> None:
        """The order to end something is on its way to a member."""
        ghost = self.ghosts.get(member, {}).get(holding)
        if ghost is not None:
            ghost.told = True

    def reported_by_shards(self, job: JobId) -> bool:
        """Whether some living shard holds anything of a job, or may do so."""
        holding = Holding(job)
        return any(
            holding in shard.reported or holding in self.ghosts.get(name, {})
            for name, shard in self.shards.items()
        )

    def unclaimed(self, member: MemberId, claimed: Mapping[Holding, object]) -> dict[Holding, Term]:
        """What a member reports or may run although nobody gave it to it (any more), with its term."""
        known = self.member(member)
        found: dict[Holding, Term] = {}
        if known is not None and not known.reported.keys() <= claimed.keys():
            found = {h: term for h, term in known.reported.items() if h not in claimed}
        for holding, ghost in self.ghosts.get(member, {}).items():
            if holding not in claimed:
                found.setdefault(holding, ghost.term)
        return found

    def free(self, member: MemberId, claims: Claims) -> int:
        """Slots that can be given out now."""
        known = self.member(member)
        if known is None or known.leaving:
            return 0
        claimed = claims.get(member, {})
        return max(0, known.slots - len(claimed) - len(self.unclaimed(member, claimed)))

    def clearing(self, member: MemberId, claims: Claims, now: float, patience_s: float) -> int:
        """Slots that will be free within moments; those that are not so within `patience_s` do not count."""
        known = self.member(member)
        if known is None or known.leaving:
            return 0
        claimed = claims.get(member, {})
        count = 0
        for holding in self.unclaimed(member, claimed):
            since = self._clearing.setdefault((member, holding), now)
            count += now - since <= patience_s
        for key in [k for k in self._clearing if k[0] == member and k[1] in claimed]:
            del self._clearing[key]
        return min(count, max(0, known.slots - len(claimed)))

    def overcommitted(self, claims: Claims) -> list[str]:
        """Members given more than they offer; empty unless accounts are wrong or a member offers less than before."""
        return [
            f"{member} offers {known.slots} slots and was given {sorted(claims[member])}"
            for member, known in self.members()
            if member in claims and len(claims[member]) > known.slots
        ]

    def _judge(self, member: MemberId, beat: ShardBeat | AgentBeat, alive: bool) -> Seen:
        past = self._past.get(member)
        if past is None:
            self._remember(member, _Past(beat.incarnation, beat.seq))
            return Seen.JOINED
        if beat.incarnation == past.incarnation:
            if beat.seq <= past.seq:
                return Seen.STALE
            past.seq = beat.seq
            return Seen.AGAIN if alive else Seen.JOINED
        if (heard := past.superseded.get(beat.incarnation)) is not None:
            past.superseded[beat.incarnation] = max(heard, beat.seq)
            if alive or beat.seq <= heard:
                return Seen.STALE
        others = {**past.superseded, past.incarnation: past.seq}
        others.pop(beat.incarnation, None)
        for old in list(others)[:-REMEMBERED_INCARNATIONS]:
            del others[old]
        self._remember(member, _Past(beat.incarnation, beat.seq, others))
        return Seen.RESTARTED if alive else Seen.JOINED

    def _remember(self, member: MemberId, past: _Past) -> None:
        self._past.pop(member, None)
        self._past[member] = past
        if len(self._past) > REMEMBERED_MEMBERS:
            for old in _first_absent(self._past, (*self.shards, *self.agents, member)):
                del self._past[old]
                self.ghosts.pop(old, None)

    def _exorcise(self, member: MemberId) -> None:
        """A heartbeat is there: it speaks for itself about all that the member was told to end."""
        left = {h: ghost for h, ghost in self.ghosts.get(member, {}).items() if not ghost.told}
        if left:
            self.ghosts[member] = left
        else:
            self.ghosts.pop(member, None)
        known = self.member(member)
        assert known is not None
        for key in [
            k
            for k in self._clearing
            if k[0] == member and k[1] not in known.reported and k[1] not in left
        ]:
            del self._clearing[key]


def _first_absent(past: Mapping[MemberId, _Past], present: Iterable[MemberId]) -> list[MemberId]:
    """The oldest remembered member that is not alive, as a list of one; empty when all are."""
    alive = dict.fromkeys(present)
    return next(([member] for member in past if member not in alive), [])
