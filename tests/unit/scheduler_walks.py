"""Random walks of the scheduler through its test world: crashes, losses, repeats, other orders, and users."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scheduler_fakes import ITERATIONS
from scheduler_world import World

from elps.contracts.codec import parse_job
from elps.contracts.ids import JobId
from elps.contracts.requests import SuspendCommand
from elps.contracts.state import JobRecord, Progress
from elps.scheduler.core.events import EchoHeard, JobSubmitted, Request, Ticked, UserAsked
from elps.scheduler.core.policy import Policy

JOBS = 4
BEATS_HELD = 30
SHADOWED_EVERY = 8
"""In one in so many walks a second core gets the same events and must command the same."""
STRANDED_EVERY = 4
"""In one in so many walks all agents are gone at last, and all jobs are paused."""
SIZES = [
    ((1, 1), (1, 1)),
    ((1, 3), (1, 2)),
    ((2, 2), (2, 3)),
    ((3, 6), (1, 1)),
    *[((1, 4), (1, 4)), ((1, 3), (2, 4))] * 2,
]
"""Least and most workers, least and most shards."""
START_S = 20
COMMANDS = ["kill", "kill", "pause", "pause", "resume", "resume", "delete", "delete", "delete"]
jobs = st.integers(0, JOBS - 1)
picks = st.integers(0, 10**6)


class SchedulerMachine(RuleBasedStateMachine):
    """What can happen, with the world that it happens in."""

    policy: Policy | None = None

    @initialize()
    def begin(self, shadowed: bool = True) -> None:
        self.world = World(shadowed, self.policy)
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
            "limits": {"start_s": START_S},
            "workers": {"min": workers[0], "max": workers[1]},
            "shards": {"min": shards[0], "max": shards[1]},
        }

    @rule(
        job=jobs,
        size=st.sampled_from(SIZES),
    )
    def submit(self, job: int, size: Any) -> None:
        self.world.feed(JobSubmitted(self.world.request(), parse_job(self.document(job, *size))))

    @rule(job=jobs, what=st.sampled_from(COMMANDS))
    def command(self, job: int, what: str) -> None:
        self.last = (what, JobId(f"job-{job}"), self.world.request())
        self.world.ask(*self.last)

    @rule(
        job=jobs,
        workers=st.none() | st.integers(0, 6),
        shards=st.none() | st.integers(0, 4),
        auto=st.booleans(),
    )
    def scale(self, job: int, workers: int | None, shards: int | None, auto: bool) -> None:
        self.world.scale(JobId(f"job-{job}"), workers, shards, auto)

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

    @rule(pick=picks)
    def answer_probe(self, pick: int) -> None:
        if self.world.probes:
            self.world.look(self.world.probes.pop(pick % len(self.world.probes)))

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
            member.crash()
        if how in ("revive", "restart"):
            member.revive()
        if how == "leave":
            member.leaving = True

    @rule(pick=picks, how=st.sampled_from(["crash", "restart", "leave"]))
    def shard_on_its_way_goes(self, pick: int, how: str) -> None:
        """One that has just joined a job, or is about to leave it."""
        found = [
            shard
            for _, allocation, _, _ in self.world.core.book.holding()
            for shard in allocation.shards[1:]
            if allocation.plan > 0
        ]
        if found:
            shard = self.world.shards[found[pick % len(found)]]
            if how == "leave":
                shard.leaving = True
                return
            shard.crash()
            if how == "restart":
                shard.revive()

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 2.0, 6.0]), deaf=st.booleans())
    def time_passes(self, seconds: float, deaf: bool) -> None:
        self.world.time += seconds
        if not deaf:
            self.world.feed(EchoHeard())
        self.world.feed(Ticked())

    @rule(deaf=st.booleans())
    def a_minute_passes(self, deaf: bool) -> None:
        """Everyone is heard after it, as far as anyone is there."""
        self.world.time += 61.0
        if not deaf:
            self.world.feed(EchoHeard())
            self.all_beat()
        self.world.feed(Ticked())

    @rule(job=jobs, rounds=st.integers(0, 3))
    def a_job_goes_for_good(self, job: int, rounds: int) -> None:
        """By all that its id wants to be free again, unless something holds on to it."""
        for what in ("kill", "delete"):
            self.world.ask(what, JobId(f"job-{job}"))
        self.all_goes_well(rounds)
        self.a_minute_passes(deaf=False)
        self.all_goes_well(rounds)

    @rule()
    def removal_ends(self) -> None:
        """In the order in which they began."""
        if self.world.removals:
            self.world.remove(self.world.removals.pop(0))

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
            lasting, stored = what_lasts(record), what_lasts(world.store[record.id])
            assert lasting == stored, (
                "memory and store differ in more than what changes all the time"
            )

    def teardown(self) -> None:
        self.world.calm()


def what_lasts(record: JobRecord) -> JobRecord:
    """A record without what is stored only every few seconds."""
    return msgspec.structs.replace(record, progress=Progress(), reason="")


WEIGHTS = {
    "submit": 4,
    "command": 2,
    "scale": 10,
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
    "shard_on_its_way_goes": 2,
    "time_passes": 4,
    "scheduler_restarts": 1,
    "a_minute_passes": 1,
    "removal_ends": 3,
    "a_job_goes_for_good": 2,
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
    "shard_on_its_way_goes",
)


def walk(seed: int, steps: int, policy: Policy | None = None) -> World:
    """One random walk through the same rules, longer and denser than hypothesis likes them, then the calm."""
    chance = random.Random(seed)
    machine = SchedulerMachine()
    machine.policy = policy
    machine.begin(shadowed=seed % SHADOWED_EVERY == 0)
    arguments: dict[str, Any] = {
        "submit": lambda: {"job": chance.randrange(JOBS), "size": chance.choice(SIZES)},
        "command": lambda: {
            "job": chance.randrange(JOBS),
            "what": chance.choice(COMMANDS),
        },
        "scale": lambda: {
            "job": chance.randrange(JOBS),
            "workers": chance.choice([None, 1, 1, 2, 2, 3, 4, 6]),
            "shards": chance.choice([None, 1, 1, 2, 2, 3, 4]),
            "auto": chance.random() < 0.1,
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
            "how": chance.choice([*["revive"] * 5, "crash", "restart", "leave", "leave"])
        },
        "shard_on_its_way_goes": lambda: {"how": chance.choice(["crash", "restart", "leave"])},
        "time_passes": lambda: {
            "seconds": chance.choice([0.1, 1.0, 2.0, 2.0, 6.0]),
            "deaf": chance.random() < 0.2,
        },
        "a_job_goes_for_good": lambda: {
            "job": chance.randrange(JOBS),
            "rounds": chance.choice([0, 2, 3, 3]),
        },
        "a_minute_passes": lambda: {"deaf": chance.random() < 0.2},
    }
    for _ in range(steps):
        name = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        given = arguments.get(name, dict)()
        if name in PICKING:
            given["pick"] = chance.randrange(10**6)
        getattr(machine, name)(**given)
        machine.nothing_is_given_twice()
    if seed % STRANDED_EVERY == 1:
        machine.world.strand()
    machine.teardown()
    return machine.world
