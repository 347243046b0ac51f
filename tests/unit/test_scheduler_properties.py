"""The scheduler's core in a small world that crashes, loses, repeats and reorders at random.

The world's members obey what reaches them, as real ones do. After every step the books must hold; when the failures
stop, every job must come to its end and every slot must be free.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elps.contracts.codec import decode, encode, parse_job
from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import (
    AgentBeat,
    DirectJob,
    DropJob,
    HostedJob,
    HostJob,
    JobCommand,
    ShardBeat,
    StartTrainer,
    StopTrainer,
    SuspendCommand,
    TrainerStatus,
)
from elps.contracts.state import JobRecord, JobState, Progress
from elps.scheduler.core.core import Core
from elps.scheduler.core.events import (
    AgentBeaten,
    AskTerm,
    EchoHeard,
    Event,
    JobSubmitted,
    MemberId,
    Moment,
    Request,
    Send,
    ShardBeaten,
    TermGranted,
    Ticked,
    UserAsked,
    WriteRecord,
)
from elps.scheduler.core.life import CHANGES
from elps.scheduler.core.pool import Holding

SHARDS, AGENTS, JOBS = 3, 3, 5
SLOTS = 2
ITERATIONS = 12
CALM_ROUNDS = 300
BEATS_HELD = 30


@dataclass
class Hosted:
    """A job on a fake shard."""

    term: Term
    leads: bool
    shards: list[ShardId]
    admitted: list[WorkerId]
    goal: str = "run"
    phase: str = "loading"
    iteration: int = 0


@dataclass
class FakeMember:
    id: str
    incarnation: int = 1
    seq: int = 0
    alive: bool = True
    leaving: bool = False
    inbox: list[Any] = field(default_factory=list)
    missed: bool = False  #: a command to it was lost: it may know less than the scheduler thinks


@dataclass
class FakeShard(FakeMember):
    jobs: dict[JobId, Hosted] = field(default_factory=dict)


@dataclass
class FakeAgent(FakeMember):
    trainers: dict[WorkerId, tuple[JobId, Term, str]] = field(default_factory=dict)
    ending: dict[WorkerId, None] = field(default_factory=dict)  #: told to end, still there

    def end(self) -> None:
        """What was told to end does so."""
        for worker in self.ending:
            self.trainers.pop(worker, None)
        self.ending.clear()


class World:
    """Members, what is on its way, the store, and two cores that must agree in everything."""

    def __init__(self, shadowed: bool = True) -> None:
        self.shadowed = shadowed
        self.time = 100.0
        self.store: dict[JobId, JobRecord] = {}
        self.numbers: dict[JobId, int] = {}
        self.asked: list[AskTerm] = []
        self.beats: list[Event] = []
        self.shards = {f"shard-{n}": FakeShard(f"shard-{n}") for n in range(SHARDS)}
        self.agents = {f"agent-{n}": FakeAgent(f"agent-{n}") for n in range(AGENTS)}
        self.checkpoints: dict[JobId, int] = {}
        self.requests = 0
        self.restart()

    # --- the scheduler ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Moment:
        return Moment(self.time, 1e9 + self.time)

    def restart(self) -> None:
        records = [decode(encode(record), JobRecord) for record in self.store.values()]
        assert records == list(self.store.values())
        self.core, self.shadow = Core(records, self.now), Core(reversed(records), self.now)
        self.asked.clear()

    def feed(self, event: Event) -> None:
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
        self.core.check_invariants()
        sends = self.core.messages(self.now)
        if self.shadowed:
            assert sends == self.shadow.messages(self.now)
        for send in sends:
            self.post(send)

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
        self.store[record.id] = record

    def post(self, send: Send) -> None:
        member = self.member(send.member)
        if member.alive:
            member.inbox.append(send.message)

    def member(self, name: str) -> FakeShard | FakeAgent:
        return self.shards[name] if name in self.shards else self.agents[name]

    def request(self) -> Request:
        self.requests += 1
        return Request(f"r{self.requests}")

    def ask(self, what: str, job: JobId, request: Request | None = None) -> None:
        self.feed(UserAsked(request or self.request(), what, JobCommand(job=job)))

    def grant(self, ask: AskTerm) -> None:
        number = max(self.numbers.get(ask.job, 0) + 1, ask.at_least)
        self.numbers[ask.job] = number
        self.feed(TermGranted(ask.job, ask.attempt, Term(number, number * 7), f"secret-{number}"))

    # --- the members --------------------------------------------------------------------------------------------------

    def beat(self, member: FakeShard | FakeAgent) -> Event:
        member.seq += 1
        common: dict[str, Any] = {
            "incarnation": f"{member.id}/{member.incarnation}",
            "seq": member.seq,
            "host": "h",
            "pid": 1,
            "slots": SLOTS,
            "version": "v",
            "leaving": member.leaving,
        }
        if isinstance(member, FakeAgent):
            trainers = [
                TrainerStatus(
                    job=job,
                    term=term,
                    worker=worker,
                    state=state,
                    exit="exit code 3" if state == "exited" else "",
                )  # type: ignore[arg-type]
                for worker, (job, term, state) in member.trainers.items()
            ]
            return AgentBeaten(AgentBeat(agent=AgentId(member.id), trainers=trainers, **common))
        jobs = [
            HostedJob(
                job=job,
                term=hosted.term,
                leads=hosted.leads,
                phase=hosted.phase if hosted.leads else "loading",  # type: ignore[arg-type]
                progress=Progress(iteration=hosted.iteration) if hosted.leads else None,
                ready=self.ready(job, hosted) if hosted.leads else [],
            )
            for job, hosted in member.jobs.items()
        ]
        return ShardBeaten(
            ShardBeat(shard=ShardId(member.id), data_host="h", data_port=1, jobs=jobs, **common)
        )

    def ready(self, job: JobId, hosted: Hosted) -> list[WorkerId]:
        running = {
            worker: None
            for agent in self.agents.values()
            if agent.alive
            for worker, (of, term, state) in agent.trainers.items()
            if (of, term, state) == (job, hosted.term, "running")
        }
        return [worker for worker in hosted.admitted if worker in running]

    def obey(self, member: FakeShard | FakeAgent, message: Any) -> None:
        if isinstance(member, FakeAgent):
            match message:
                case StartTrainer(job=job, term=term, worker=worker):
                    occupied = sum(
                        state != "exited" and known not in member.ending
                        for known, (_, _, state) in member.trainers.items()
                    )
                    if worker not in member.trainers:
                        fits = occupied < SLOTS and not member.leaving
                        assert occupied < SLOTS or member.missed, "a slot was given out twice"
                        member.trainers[worker] = (job, term, "starting" if fits else "exited")
                case StopTrainer(worker=worker, term=term):
                    known = member.trainers.get(worker)
                    if known is not None and known[1].number <= term.number:
                        if known[2] == "exited":
                            del member.trainers[worker]
                        else:
                            member.ending[worker] = None
            return
        match message:
            case HostJob(job=job, term=term, shards=shards, workers=workers):
                held = member.jobs.get(job)
                if held is None or held.term.number < term.number:
                    names = [address.shard for address in shards]
                    start = self.checkpoints.get(job, 0)
                    others = sum(other != job for other in member.jobs)
                    assert others < SLOTS or member.missed, "a slot was given out twice"
                    member.jobs[job] = Hosted(
                        term, names[0] == member.id, names, list(workers), iteration=start
                    )
            case DropJob(job=job, term=term):
                if job in member.jobs and member.jobs[job].term.number <= term.number:
                    del member.jobs[job]
            case DirectJob(job=job, term=term, goal=goal, workers=workers):
                held = member.jobs.get(job)
                if held is not None and held.leads and held.term == term:
                    held.goal, held.admitted = goal, list(workers)

    def whole(self, job: JobId, hosted: Hosted) -> bool:
        """Whether every shard of the job takes part."""
        return all(
            self.shards[name].alive
            and job in self.shards[name].jobs
            and self.shards[name].jobs[job].term == hosted.term
            for name in hosted.shards
        )

    def work(self, job: JobId, hosted: Hosted) -> None:
        """One step of a leader."""
        if not hosted.leads or hosted.phase in ("finished", "failed"):
            return
        able = bool(self.ready(job, hosted)) and self.whole(job, hosted)
        if hosted.phase == "loading" and not able:
            return
        if hosted.goal == "pause":
            hosted.phase = "paused" if hosted.phase == "pausing" else "pausing"
            self.checkpoints[job] = hosted.iteration
        elif not able:
            hosted.phase = "waiting"
        else:
            hosted.phase = "running"
            hosted.iteration += 1
            if hosted.iteration >= ITERATIONS:
                hosted.phase = "finished"

    def crash(self, member: FakeShard | FakeAgent) -> None:
        member.alive, member.leaving = False, False
        member.inbox.clear()
        member.missed = False
        if isinstance(member, FakeShard):
            member.jobs.clear()
        else:
            member.trainers.clear()
            member.ending.clear()

    def revive(self, member: FakeShard | FakeAgent) -> None:
        if not member.alive:
            member.alive, member.seq = True, 0
            member.incarnation += 1

    def members(self) -> list[FakeShard | FakeAgent]:
        return [*self.shards.values(), *self.agents.values()]

    def records(self) -> dict[JobId, JobRecord]:
        return self.core.book.records

    # --- when the failures have stopped -------------------------------------------------------------------------------

    def calm(self) -> None:
        """Everything arrives, everyone works, until all jobs have ended."""
        for member in self.members():
            if member.leaving:
                self.crash(member)
            self.revive(member)
        if self.core.book.suspended:
            self.restart()
        for job, record in list(self.records().items()):
            if record.state is JobState.PAUSED or record.pausing:
                self.ask("resume", job)
        for _ in range(CALM_ROUNDS):
            self.round()
            if self.quiet():
                break
            self.time += 0.5
        else:
            raise AssertionError(
                f"no progress: {[(r.id, r.state, r.reason) for r in self.records().values()]}"
            )

    def round(self) -> None:
        """Everything on its way arrives, everyone does a step and says so."""
        self.feed(EchoHeard())
        self.feed(Ticked())
        beats, self.beats = self.beats, []
        for event in beats:
            self.feed(event)
        for ask in list(self.asked):
            self.asked.remove(ask)
            self.grant(ask)
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
        )


COMMANDS = ["kill", "pause", "pause", "resume", "resume"]
jobs = st.integers(0, JOBS - 1)
picks = st.integers(0, 10**6)


class SchedulerMachine(RuleBasedStateMachine):
    """Random walks through the world."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.last: tuple[str, JobId, Request] | None = None
        self.world.feed(EchoHeard())
        for member in self.world.members():
            self.world.feed(self.world.beat(member))

    def document(
        self, job: int, workers: tuple[int, int], shards: tuple[int, int]
    ) -> dict[str, Any]:
        return {
            "id": f"job-{job}",
            "task": "linear",
            "iterations": ITERATIONS,
            "workers": {"min": workers[0], "max": workers[1]},
            "shards": {"min": shards[0], "max": shards[1]},
        }

    @rule(
        job=jobs,
        size=st.sampled_from(
            [((1, 1), (1, 1)), ((1, 3), (1, 2)), ((2, 2), (2, 3)), ((3, 6), (1, 1))]
        ),
    )
    def submit(self, job: int, size: Any) -> None:
        self.world.feed(JobSubmitted(self.world.request(), parse_job(self.document(job, *size))))

    @rule(job=jobs, what=st.sampled_from(COMMANDS))
    def command(self, job: int, what: str) -> None:
        self.last = (what, JobId(f"job-{job}"), self.world.request())
        self.world.ask(*self.last)

    @rule()
    def repeat_command(self) -> None:
        if self.last is not None:
            self.world.ask(*self.last)

    @rule(chance=picks)
    def suspend(self, chance: int) -> None:
        if chance % 5 == 0:
            self.world.feed(UserAsked(self.world.request(), "suspend", SuspendCommand()))

    @rule(rounds=st.integers(1, 4))
    def all_goes_well(self, rounds: int) -> None:
        for _ in range(rounds):
            self.world.round()
            self.world.time += 0.1

    @rule(pick=picks)
    def emit_beat(self, pick: int) -> None:
        alive = [m for m in self.world.members() if m.alive]
        if alive and len(self.world.beats) < BEATS_HELD:
            self.world.beats.append(self.world.beat(alive[pick % len(alive)]))

    @rule()
    def all_beat(self) -> None:
        for member in self.world.members():
            if member.alive:
                self.world.feed(self.world.beat(member))

    @rule(pick=picks, fate=st.sampled_from(["arrives", "arrives", "arrives", "doubled", "lost"]))
    def deliver_beat(self, pick: int, fate: str) -> None:
        if self.world.beats:
            event = self.world.beats[pick % len(self.world.beats)]
            if fate != "doubled":
                self.world.beats.remove(event)
            if fate != "lost":
                self.world.feed(event)

    @rule(pick=picks, fate=st.sampled_from(["arrives", "arrives", "arrives", "doubled", "lost"]))
    def deliver_command(self, pick: int, fate: str) -> None:
        waiting = [m for m in self.world.members() if m.inbox]
        if waiting:
            member = waiting[pick % len(waiting)]
            message = member.inbox[0] if fate == "doubled" else member.inbox.pop(0)
            member.missed |= fate == "lost"
            if fate != "lost":
                self.world.obey(member, message)

    @rule(pick=picks)
    def trainers_end(self, pick: int) -> None:
        agents = [agent for agent in self.world.agents.values() if agent.ending]
        if agents:
            agents[pick % len(agents)].end()

    @rule()
    def deliver_all_commands(self) -> None:
        for member in self.world.members():
            while member.inbox:
                self.world.obey(member, member.inbox.pop(0))

    @rule(pick=picks)
    def grant_term(self, pick: int) -> None:
        if self.world.asked:
            self.world.grant(self.world.asked.pop(pick % len(self.world.asked)))

    @rule(pick=picks, state=st.sampled_from(["running", "running", "running", "exited"]))
    def trainer_moves(self, pick: int, state: str) -> None:
        found = [
            (a, w)
            for a in self.world.agents.values()
            for w, (_, _, s) in a.trainers.items()
            if s != "exited"
        ]
        if found:
            agent, worker = found[pick % len(found)]
            job, term, _ = agent.trainers[worker]
            agent.trainers[worker] = (job, term, state)

    @rule(pick=picks, fails=st.integers(0, 19))
    def leader_works(self, pick: int, fails: int) -> None:
        found = [(j, h) for s in self.world.shards.values() for j, h in s.jobs.items() if h.leads]
        if found:
            job, hosted = found[pick % len(found)]
            if fails == 0:
                hosted.phase = "failed"
            self.world.work(job, hosted)

    @rule(pick=picks, how=st.sampled_from(["crash", "revive", "revive", "restart", "leave"]))
    def member_fate(self, pick: int, how: str) -> None:
        members = self.world.members()
        member = members[pick % len(members)]
        if how in ("crash", "restart"):
            self.world.crash(member)
        if how in ("revive", "restart"):
            self.world.revive(member)
        if how == "leave":
            member.leaving = True

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 2.0, 6.0]), deaf=st.booleans())
    def time_passes(self, seconds: float, deaf: bool) -> None:
        self.world.time += seconds
        if not deaf:
            self.world.feed(EchoHeard())
        self.world.feed(Ticked())

    @rule()
    def scheduler_restarts(self) -> None:
        self.world.restart()
        self.world.feed(EchoHeard())

    @invariant()
    def nothing_is_given_twice(self) -> None:
        world = self.world
        for name, shard in world.core.book.pool.shards.items():
            assert len(world.core.book.claims().get(name, {})) <= shard.slots
        for record in world.records().values():
            assert msgspec.structs.replace(record, progress=Progress()) == msgspec.structs.replace(
                world.store[record.id], progress=Progress()
            ), "memory and store differ in more than progress"

    def teardown(self) -> None:
        self.world.calm()


WEIGHTS = {
    "submit": 6,
    "command": 3,
    "repeat_command": 1,
    "suspend": 1,
    "all_goes_well": 8,
    "emit_beat": 6,
    "all_beat": 6,
    "deliver_beat": 8,
    "deliver_command": 10,
    "deliver_all_commands": 4,
    "grant_term": 8,
    "trainers_end": 4,
    "trainer_moves": 8,
    "leader_works": 8,
    "member_fate": 4,
    "time_passes": 5,
    "scheduler_restarts": 1,
}
PICKING = (
    "emit_beat",
    "deliver_beat",
    "deliver_command",
    "grant_term",
    "trainer_moves",
    "trainers_end",
    "leader_works",
    "member_fate",
)
WALKS, STEPS = 50, 120


def walk(seed: int, steps: int = STEPS) -> World:
    """One random walk through the same rules, longer and denser than hypothesis likes them, then the calm."""
    chance = random.Random(seed)
    machine = SchedulerMachine()
    machine.begin()
    sizes = [((1, 1), (1, 1)), ((1, 3), (1, 2)), ((2, 2), (2, 3)), ((3, 6), (1, 1))]
    arguments: dict[str, Any] = {
        "submit": lambda: {"job": chance.randrange(JOBS), "size": chance.choice(sizes)},
        "command": lambda: {
            "job": chance.randrange(JOBS),
            "what": chance.choice(COMMANDS),
        },
        "suspend": lambda: {"chance": chance.randrange(40)},
        "all_goes_well": lambda: {"rounds": chance.randint(1, 3)},
        "deliver_beat": lambda: {
            "fate": chance.choice(["arrives", "arrives", "arrives", "doubled", "lost"])
        },
        "deliver_command": lambda: {"fate": chance.choice(["arrives"] * 6 + ["doubled", "lost"])},
        "trainer_moves": lambda: {"state": chance.choice(["running"] * 8 + ["exited"])},
        "leader_works": lambda: {"fails": chance.randrange(60)},
        "member_fate": lambda: {
            "how": chance.choice(["crash", "revive", "revive", "revive", "restart", "leave"])
        },
        "time_passes": lambda: {
            "seconds": chance.choice([0.1, 1.0, 2.0, 2.0, 6.0]),
            "deaf": chance.random() < 0.2,
        },
    }
    for _ in range(steps):
        name = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        given = arguments.get(name, dict)()
        if name in PICKING:
            given["pick"] = chance.randrange(10**6)
        getattr(machine, name)(**given)
        machine.nothing_is_given_twice()
    machine.teardown()
    return machine.world


def walk_all(seeds: range) -> None:
    for seed in seeds:
        try:
            walk(seed)
        except BaseException:
            print(f"failed: walk({seed})")
            raise


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", range(4))
def test_any_sequence_of_failures_ends_with_all_jobs_ended_and_all_slots_free(block: int) -> None:
    walk_all(range(block * WALKS, (block + 1) * WALKS))


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(8))
def test_ten_thousand_sequences_of_failures_end_with_all_slots_free(block: int) -> None:
    walk_all(range(1000 + block * 1250, 1000 + (block + 1) * 1250))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
