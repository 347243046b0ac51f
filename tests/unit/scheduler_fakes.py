"""Fake members of the scheduler's test world: they obey what reaches them, as real ones do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import (
    AgentBeat,
    DirectJob,
    DropJob,
    HostedJob,
    HostJob,
    ShardBeat,
    StartTrainer,
    StopTrainer,
    TrainerStatus,
)
from elps.contracts.state import Progress

SLOTS = 2
ITERATIONS = 20
OPEN_EVERY = 3
"""One in so many boundaries lies behind an iteration that is lent already: without a worker it is not reached."""


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
    plan: int = 0
    wanted: list[ShardId] = field(default_factory=list)  #: of that plan
    owners: dict[ShardId, Hosted] = field(default_factory=dict)  #: empty until it has opened
    copies: dict[ShardId, Hosted] = field(default_factory=dict)  #: made on these
    at: tuple[int, tuple[ShardId, ...]] | None = (
        None  #: iteration of what it holds, and all that hold a part of it
    )
    before: Hosted | None = None  #: of the term before, if this one goes on from it

    def go_on(self, found: Mapping[ShardId, Hosted]) -> None:
        """Open: with what the shards have from the term before, if that is all of it."""
        claims = {n: s.before.at for n, s in found.items() if s.before and s.before.at}
        newest = max(claims.values(), default=(0, ()))
        if claims and all(n in claims for n in newest[1]):
            self.iteration = newest[0]
            self.owners = {n: found[n] for n in newest[1]}
        else:
            self.owners = dict(found)

    def lose(self, gone: Iterable[ShardId], checkpoint: int) -> None:
        """Shards are gone with what they had: the others go on with all of it, from the checkpoint."""
        for name in gone:
            self.copies.pop(name, None)
            self.shards = [shard for shard in self.shards if shard != name]
            if self.owners.pop(name, None) is not None:
                self.iteration = min(self.iteration, checkpoint)

    def hold(self) -> None:
        """What is on the shards is of this iteration."""
        names = tuple(sorted(self.owners))
        for share in self.owners.values():
            share.at = self.iteration, names

    @property
    def resting(self) -> bool:
        return self.phase in ("paused", "finished", "failed")

    def step(self, able: bool, last: int = ITERATIONS) -> None:
        """One step of a leader, `able` when a worker and all shards are there. One that rests or ended does no more.

        It goes on to iteration `last`.
        """
        if self.resting or (self.phase == "loading" and not able):
            return
        if self.goal == "pause" and (able or self.iteration % OPEN_EVERY):
            self.phase = "paused" if self.phase == "pausing" else "pausing"
        elif not able:
            self.phase = "waiting"
        else:
            # It may have taken over at the last iteration.
            self.iteration = max(self.iteration, min(self.iteration + 1, last))
            self.phase = "finished" if last >= ITERATIONS <= self.iteration else "running"


@dataclass
class FakeMember:
    id: str
    incarnation: int = 1
    seq: int = 0
    alive: bool = True
    leaving: bool = False
    inbox: list[Any] = field(default_factory=list)
    missed: bool = False  #: what reached it, or will, is not what the scheduler knows to have said

    def crash(self) -> None:
        self.alive, self.leaving, self.missed = False, False, False
        self.inbox.clear()

    def revive(self) -> None:
        if not self.alive:
            self.alive, self.seq = True, 0
            self.incarnation += 1

    def common(self) -> dict[str, Any]:
        """Fields of both kinds of heartbeat; each has the next number."""
        self.seq += 1
        return {
            "incarnation": f"{self.id}/{self.incarnation}",
            "seq": self.seq,
            "host": "h",
            "pid": 1,
            "slots": SLOTS,
            "version": "v",
            "leaving": self.leaving,
        }


@dataclass
class FakeShard(FakeMember):
    jobs: dict[JobId, Hosted] = field(default_factory=dict)

    def crash(self) -> None:
        super().crash()
        self.jobs.clear()

    def beat(self, ready: Mapping[JobId, list[WorkerId]]) -> ShardBeat:
        """`ready` are the trainers of the jobs that it leads."""
        jobs = [
            HostedJob(
                job=job,
                term=hosted.term,
                leads=hosted.leads,
                phase=hosted.phase if hosted.leads else "loading",  # type: ignore[arg-type]
                progress=Progress(iteration=hosted.iteration) if hosted.leads else None,
                ready=ready[job] if hosted.leads else [],
                holders=[*{**hosted.owners, **hosted.copies}],
                moving="moving" if hosted.copies else "",
                obeys=hosted.plan if hosted.leads else None,
                opened=Epoch(hosted.term, 1) if hosted.owners else None,
            )
            for job, hosted in self.jobs.items()
        ]
        return ShardBeat(
            shard=ShardId(self.id), data_host="h", data_port=1, jobs=jobs, **self.common()
        )

    def obey(self, message: Any, checkpoints: Mapping[JobId, int]) -> None:
        match message:
            case HostJob(job=job, term=term, shards=shards, workers=workers):
                held = self.jobs.get(job)
                if held is None or held.term.number < term.number:
                    names = [address.shard for address in shards]
                    others = sum(other != job for other in self.jobs)
                    assert others < SLOTS or self.missed, "a slot was given out twice"
                    self.jobs[job] = Hosted(
                        term,
                        names[0] == self.id,
                        names,
                        list(workers),
                        iteration=checkpoints.get(job, 0),
                        before=held if message.inherits is not None else None,
                    )
            case DropJob(job=job, term=term):
                if job in self.jobs and self.jobs[job].term.number <= term.number:
                    del self.jobs[job]
            case DirectJob(job=job, term=term, goal=goal, workers=workers):
                held = self.jobs.get(job)
                if held is not None and held.leads and held.term == term:
                    held.goal, held.admitted = goal, list(workers)
                    if message.plan > held.plan:
                        held.plan = message.plan
                        held.wanted = [address.shard for address in message.shards]
                        held.lose(message.lost, checkpoints.get(job, 0))


@dataclass
class FakeAgent(FakeMember):
    trainers: dict[WorkerId, tuple[JobId, Term, str]] = field(default_factory=dict)
    ending: dict[WorkerId, None] = field(default_factory=dict)  #: told to end, still there

    def crash(self) -> None:
        super().crash()
        self.trainers.clear()
        self.ending.clear()

    def end(self) -> None:
        """What was told to end does so."""
        for worker in self.ending:
            self.trainers.pop(worker, None)
        self.ending.clear()

    def beat(self) -> AgentBeat:
        trainers = [
            TrainerStatus(
                job=job,
                term=term,
                worker=worker,
                state=state,  # type: ignore[arg-type]
                exit="exit code 3" if state == "exited" else "",
            )
            for worker, (job, term, state) in self.trainers.items()
        ]
        return AgentBeat(agent=AgentId(self.id), trainers=trainers, **self.common())

    def obey(self, message: Any) -> None:
        match message:
            case StartTrainer(job=job, term=term, worker=worker):
                occupied = sum(
                    state != "exited" and known not in self.ending
                    for known, (_, _, state) in self.trainers.items()
                )
                if worker not in self.trainers:
                    fits = occupied < SLOTS and not self.leaving
                    assert occupied < SLOTS or self.missed, "a slot was given out twice"
                    self.trainers[worker] = (job, term, "starting" if fits else "exited")
            case StopTrainer(worker=worker, term=term):
                known = self.trainers.get(worker)
                if known is not None and known[1].number <= term.number:
                    if known[2] == "exited":
                        del self.trainers[worker]
                    else:
                        self.ending[worker] = None
