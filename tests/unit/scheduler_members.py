"""The members of the scheduler's test world together: who has what of a job, and what its leader does step by step."""

from __future__ import annotations

from scheduler_fakes import ITERATIONS, FakeAgent, FakeShard, Hosted

from elps.contracts.ids import JobId, WorkerId
from elps.scheduler.core.events import AgentBeaten, Event, Send, ShardBeaten

SHARDS, AGENTS = 4, 3


class Members:
    """Shards and agents, which come and go."""

    def __init__(self) -> None:
        self.shards = {f"shard-{n}": FakeShard(f"shard-{n}") for n in range(SHARDS)}
        self.agents = {f"agent-{n}": FakeAgent(f"agent-{n}") for n in range(AGENTS)}
        self.checkpoints: dict[JobId, int] = {}
        self.lasting = False  #: leaders do not come to the end

    def post(self, send: Send) -> None:
        member = self.member(send.member)
        if member.alive:
            member.inbox.append(send.message)

    def member(self, name: str) -> FakeShard | FakeAgent:
        return self.shards[name] if name in self.shards else self.agents[name]

    def members(self) -> list[FakeShard | FakeAgent]:
        return [*self.shards.values(), *self.agents.values()]

    def beat(self, member: FakeShard | FakeAgent) -> Event:
        if isinstance(member, FakeAgent):
            return AgentBeaten(member.beat())
        ready = {job: self.ready(job, hosted) for job, hosted in member.jobs.items()}
        return ShardBeaten(member.beat(ready))

    def ready(self, job: JobId, hosted: Hosted) -> list[WorkerId]:
        running = {
            worker: None
            for agent in self.agents.values()
            if agent.alive
            for worker, (of, term, state) in agent.trainers.items()
            if (of, term, state) == (job, hosted.term, "running")
        }
        return [worker for worker in hosted.admitted if worker in running]

    def whole(self, job: JobId, hosted: Hosted) -> bool:
        """Whether every shard of the job takes part."""
        shares = {name: self.share(name, job, hosted) for name in hosted.owners or hosted.shards}
        if hosted.owners:
            return all(shares[name] is share for name, share in hosted.owners.items())
        return None not in shares.values()

    def share(self, shard: str, job: JobId, hosted: Hosted) -> Hosted | None:
        """What a shard has of a job under the term of its leader."""
        found = self.shards[shard].jobs.get(job) if self.shards[shard].alive else None
        return found if found is not None and found.term == hosted.term else None

    def work(self, job: JobId, hosted: Hosted) -> None:
        """One step of a leader."""
        if hosted.leads:
            whole = self.whole(job, hosted)
            if whole and not hosted.owners:
                found = {name: self.share(name, job, hosted) for name in hosted.shards}
                hosted.go_on({name: share for name, share in found.items() if share is not None})
            last = ITERATIONS - 1 if self.lasting else ITERATIONS
            hosted.step(bool(self.ready(job, hosted)) and whole, last)
            hosted.hold()
            if hosted.phase == "paused":
                self.checkpoints[job] = hosted.iteration
            if hosted.resting or hosted.goal == "pause":
                hosted.copies.clear()
            elif hosted.owners:
                self.move(job, hosted, whole)

    def move(self, job: JobId, hosted: Hosted, whole: bool) -> None:
        """One step on the way to the shards that are wanted: a copy is begun, or takes over, or an owner is emptied."""
        wanted = hosted.wanted or list(hosted.owners)
        hosted.copies = {
            name: share
            for name, share in hosted.copies.items()
            if name in wanted and self.share(name, job, hosted) is share
        }
        if hosted.copies:
            if whole:
                hosted.owners |= hosted.copies
                hosted.copies = {}
            return
        for name in wanted:
            share = self.share(name, job, hosted)
            if name not in hosted.owners and share is not None:
                hosted.copies[name] = share
                return
        emptied = [name for name in hosted.owners if name not in wanted]
        if whole and emptied and len(emptied) < len(hosted.owners):
            del hosted.owners[emptied[0]]
