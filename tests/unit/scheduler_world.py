"""The scheduler's core in a small world, with all that is on its way between it and the members.

After every step the books must hold; when the failures stop, every job must come to its end and every slot must be
free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler_fakes import SLOTS, FakeAgent, FakeShard
from scheduler_members import AGENTS, SHARDS, Members

from elps.contracts.codec import decode, encode
from elps.contracts.epoch import Term
from elps.contracts.ids import JobId, ShardId
from elps.contracts.messages import DropJob, HostJob, StartTrainer
from elps.contracts.requests import JobCommand, ScaleCommand
from elps.contracts.state import Allocation, JobRecord, JobState, Pinned
from elps.scheduler.core.core import Core
from elps.scheduler.core.events import (
    Answer,
    AskTerm,
    Command,
    EchoHeard,
    Event,
    ForgetJobs,
    JobsForgotten,
    KeysRemoved,
    Marks,
    MemberId,
    Moment,
    Probe,
    RemoveKeys,
    Request,
    ShardRefused,
    TermGranted,
    Ticked,
    UserAsked,
    WriteRecord,
)
from elps.scheduler.core.known import Live, Reign
from elps.scheduler.core.life import CHANGES
from elps.scheduler.core.policy import Policy
from elps.scheduler.core.pool import Holding

CALM_ROUNDS = 300


class World(Members):
    """Members, what is on its way, the store, and two cores that must agree in everything."""

    def __init__(self, shadowed: bool = True, policy: Policy | None = None) -> None:
        super().__init__()
        self.shadowed, self.policy = shadowed, policy
        self.time = 100.0
        self.store: dict[JobId, JobRecord] = {}
        self.numbers: dict[JobId, int] = {}
        self.asked: list[AskTerm] = []
        self.probes: list[Probe] = []
        self.beats: list[Event] = []
        self.pins: dict[JobId, Pinned] = {}  #: what was asked for last
        self.removals: list[RemoveKeys | ForgetJobs] = []  #: under way
        self.marks = Marks()
        self.highest: dict[JobId, int] = {}  #: of all terms ever given to an id, to whichever job
        self.requests = 0
        self.restart()

    # --- the scheduler ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Moment:
        return Moment(self.time, 1e9 + self.time)

    def restart(self) -> None:
        records = [decode(encode(record), JobRecord) for record in self.store.values()]
        assert records == list(self.store.values())
        self.core = Core(records, self.now, policy=self.policy, marks=self.marks)
        self.shadow = Core(reversed(records), self.now, policy=self.policy, marks=self.marks)
        self.asked.clear()
        self.removals.clear()
        for core in (self.core, self.shadow):
            core.keys_found(sorted(self.numbers))
        self.probes.clear()
        for member in self.members():
            member.missed |= any(self.forgotten(message) for message in member.inbox)

    def forgotten(self, message: Any) -> bool:
        """Whether an order on its way begins something that the records do not know, since it was taken back.

        A scheduler that starts now cannot hear of it before it is obeyed, and may give the slot to another job. An
        agent refuses what is too much; the heartbeat after it shows the rest, which is then ended.
        """
        if not isinstance(message, HostJob | StartTrainer):
            return False
        record = self.store.get(message.job)
        allocation = None if record is None else record.allocation
        if allocation is None or allocation.term != message.term:
            return True
        return isinstance(message, StartTrainer) and message.worker not in allocation.workers

    def feed(self, event: Event) -> list[Command]:
        before = self.core.book.claims()
        commands = self.core.handle(event, self.now)
        self.check_free(before)
        if self.shadowed:
            assert commands == self.shadow.handle(event, self.now)
        for command in commands:
            if isinstance(command, WriteRecord):
                self.write(command.record)
            elif isinstance(command, AskTerm):
                self.asked.append(command)
            elif isinstance(command, Probe):
                self.probes.append(command)
            elif isinstance(command, RemoveKeys | ForgetJobs):
                self.removals.append(command)
        self.core.check_invariants()
        sends = self.core.messages(self.now)
        if self.shadowed:
            assert sends == self.shadow.messages(self.now)
        for send in sends:
            self.post(send)
        return commands

    def check_free(self, before: Mapping[MemberId, Mapping[Holding, object]]) -> None:
        """What was given out just now was free, as far as the scheduler knew."""
        claims, pool = self.core.book.claims(), self.core.book.pool
        for name, claimed in claims.items():
            if len(claimed) > len(before.get(name, {})):
                assert len(claimed) + len(pool.unclaimed(name, claimed)) <= SLOTS, "not free"

    def write(self, record: JobRecord) -> None:
        if (before := self.store.get(record.id)) is not None:
            legal = [after for (state, _), after in CHANGES.items() if state is before.state]
            assert record.state is before.state or record.state in legal, (before.state, record)
            assert (record.seq, record.document) == (before.seq, before.document)
            assert record.workers_named >= before.workers_named
            assert record.terms >= before.terms
            if (now := record.allocation) is not None and now.inherits is not None:
                self.check_succession(before, now)
        if record.allocation is not None and (number := record.allocation.term.number):
            known = before is not None and before.terms == number
            assert known or number > self.highest.get(record.id, 0), "a term of an earlier job"
            self.highest[record.id] = number
        self.store[record.id] = record

    def check_succession(self, before: JobRecord, now: Allocation) -> None:
        """A leader that leaves has given away all that it held before another one is named."""
        old = before.allocation
        if old is None or old.term == now.term:
            return
        lead = self.shards[old.shards[0]].jobs.get(before.id)
        if lead is not None and lead.term == old.term and self.shards[old.shards[0]].leaving:
            assert old.shards[0] not in lead.owners, "named while the one before held a part"
            assert set(lead.owners) <= set(now.shards), "named without some that hold a part"

    def records(self) -> dict[JobId, JobRecord]:
        return self.core.book.records

    def request(self) -> Request:
        self.requests += 1
        return Request(f"r{self.requests}")

    def ask(self, what: str, job: JobId, request: Request | None = None) -> None:
        self.feed(UserAsked(request or self.request(), what, JobCommand(job=job)))

    def scale(self, job: JobId, workers: int | None, shards: int | None, auto: bool) -> None:
        wish = ScaleCommand(job=job, workers=workers, shards=shards, auto=auto)
        request = self.request()
        commands = self.feed(UserAsked(request, "scale", wish))
        (reply,) = [c.reply for c in commands if isinstance(c, Answer) and c.request == request]
        before = self.pins.get(job, Pinned())
        if reply.ok and auto:
            self.pins[job] = Pinned()
        elif reply.ok:
            self.pins[job] = Pinned(
                workers=before.workers if workers is None else workers,
                shards=before.shards if shards is None else shards,
            )

    def grant(self, ask: AskTerm) -> None:
        number = max(self.numbers.get(ask.job, 0) + 1, ask.at_least)
        self.numbers[ask.job] = number
        self.feed(TermGranted(ask.job, ask.attempt, Term(number, number * 7), f"secret-{number}"))

    def remove(self, removal: RemoveKeys | ForgetJobs) -> None:
        """The store lets go of what it is told to, and says so."""
        if isinstance(removal, ForgetJobs):
            self.marks = removal.marks
            for job in removal.jobs:
                self.lose_keys(job)
                assert self.store.pop(job).deleted_at is not None
                self.pins.pop(job, None)
                for member in self.members():  # nobody knew it any more who can be heard
                    if member.alive:
                        member.missed |= any(m.job == job for m in member.inbox)
            self.feed(JobsForgotten(removal.jobs))
        elif removal.all:
            self.lose_keys(removal.job)
            self.feed(KeysRemoved((removal.job,)))

    def lose_keys(self, job: JobId) -> None:
        known = self.store.get(job)
        assert known is None or known.state.ended, "keys of a job that goes on"
        self.numbers.pop(job, None)
        self.checkpoints.pop(job, None)

    def look(self, probe: Probe) -> None:
        """Nobody listens where the process was that a probe is meant for, if it is not there any more."""
        shard = self.shards[probe.shard]
        if not shard.alive or f"{shard.id}/{shard.incarnation}" != probe.incarnation:
            self.feed(ShardRefused(probe.shard, probe.incarnation))

    # --- the members --------------------------------------------------------------------------------------------------

    def obey(self, member: FakeShard | FakeAgent, message: Any) -> None:
        if isinstance(member, FakeAgent):
            member.obey(message)
        else:
            if isinstance(message, DropJob):
                self.check_drop(member, message)
            member.obey(message, self.checkpoints)

    def check_drop(self, member: FakeShard, drop: DropJob) -> None:
        """A shard is not told to drop what its job, which goes on, has there.

        Unless the order is late: the shard was taken back before it took part, and then was given the job again. Or it
        was lost, holding nothing by the leader's newest word, and has come back.
        """
        record, share = self.store.get(drop.job), member.jobs.get(drop.job)
        allocation = None if record is None else record.allocation
        late = any(isinstance(m, HostJob) and m.job == drop.job for m in member.inbox)
        if allocation is None or allocation.term != drop.term or share is None or late:
            return
        leader = self.share(allocation.shards[0], drop.job, share)
        lost = ShardId(member.id) in allocation.lost
        if leader is not None and not leader.resting and not lost:
            assert leader.owners.get(ShardId(member.id)) is not share, "dropped while it is needed"

    # --- when the failures have stopped -------------------------------------------------------------------------------

    def strand(self) -> None:
        """No worker any more, nor will one come: whatever a user pauses now rests in bounded time."""
        for agent in self.agents.values():
            agent.crash()
        for shard in self.shards.values():
            shard.revive()
        for job in list(self.core.book.live):
            self.ask("pause", job)
        self.rounds_until(
            lambda: not any(record.pausing for record in self.records().values()), "a pause waits"
        )

    def calm(self) -> None:
        """Everything arrives, everyone works, until all jobs have ended."""
        for member in self.members():
            if member.leaving:
                member.crash()
            member.revive()
        if self.core.book.suspended:
            self.restart()
        for job, record in list(self.records().items()):
            if record.state is JobState.PAUSED or record.pausing:
                self.ask("resume", job)
        self.lasting = True
        self.rounds_until(self.sized, "not of the size asked for")
        self.lasting = False
        self.rounds_until(self.quiet, "no progress")

    def rounds_until(self, what: Callable[[], bool], otherwise: str) -> None:
        for _ in range(CALM_ROUNDS):
            self.round()
            if what():
                return
            self.time += 0.5
        states = [(r.id, r.state, r.reason) for r in self.records().values()]
        wrong = [(holding[0].id, self.wrong(holding)) for holding in self.core.book.holding()]
        raise AssertionError(f"{otherwise}: {states}, {wrong}")

    def round(self) -> None:
        """Everything on its way arrives, everyone does a step and says so."""
        self.feed(EchoHeard())
        self.feed(Ticked())
        beats, self.beats = self.beats, []
        for event in beats:
            self.feed(event)
        probes, self.probes = self.probes, []
        for probe in probes:
            self.look(probe)
        for ask in list(self.asked):
            self.asked.remove(ask)
            self.grant(ask)
        removals, self.removals = self.removals, []
        for removal in removals:
            self.remove(removal)
        for member in self.members():
            while member.inbox:
                self.obey(member, member.inbox.pop(0))
            if isinstance(member, FakeAgent):
                member.end()
                for worker, (job, term, state) in member.trainers.items():
                    if state == "starting":
                        member.trainers[worker] = (job, term, "running")
        for shard in self.shards.values():
            for job, hosted in list(shard.jobs.items()):
                self.work(job, hosted)
        for member in self.members():
            if member.alive:
                self.feed(self.beat(member))

    def sized(self) -> bool:
        """Whether each job has the size asked for, or all that there is, and lies where it shall."""
        return not any(map(self.wrong, self.core.book.holding())) and not self.startable()

    def startable(self) -> bool:
        """Whether a job is about to start."""
        return any(live.reservation is not None for live in self.core.book.live.values())

    def wrong(self, holding: tuple[JobRecord, Allocation, Live, Reign]) -> str:
        record, allocation, live, reign = holding
        pool, claims = self.core.book.pool, self.core.book.claims()
        pinned = self.pins.get(record.id, Pinned())
        assert record.pinned == pinned
        leader = self.shards[allocation.shards[0]].jobs.get(record.id)
        if leader is None or leader.term != allocation.term or reign.lead is None:
            return "no leader"
        if pinned.workers not in (None, allocation.size) or pinned.shards not in (
            None,
            allocation.width,
        ):
            return "not what was asked for"
        slots = sum(pool.free(agent, claims) for agent in pool.agents if agent not in live.avoid)
        if len(allocation.workers) < allocation.size and slots:
            return "lacks workers"
        others = [s for s in pool.shards if s not in allocation.shards and pool.free(s, claims)]
        targets = allocation.targets or allocation.shards
        if len(targets) < allocation.width and others:
            return "lacks shards"
        if len(targets) > allocation.width or set(targets) != set(allocation.shards):
            return "has too many shards"
        if set(leader.owners) != set(targets) or leader.copies or not self.whole(record.id, leader):
            return "partitions do not lie where they shall"
        if reign.retiring or set(self.ready(record.id, leader)) != set(allocation.workers):
            return "has other workers"
        return ""

    def quiet(self) -> bool:
        """Whether all jobs have ended and nothing is held anywhere."""
        ended = all(record.state.ended for record in self.records().values())
        empty = not any(shard.jobs for shard in self.shards.values()) and not any(
            agent.trainers for agent in self.agents.values()
        )
        pool, claims = self.core.book.pool, self.core.book.claims()
        free = all(pool.free(name, claims) == SLOTS for name, _ in pool.members())
        return (
            ended
            and empty
            and free
            and len(list(pool.members())) == SHARDS + AGENTS
            and not self.core.book.cleanup
            and not self.core.book.removing
        )
