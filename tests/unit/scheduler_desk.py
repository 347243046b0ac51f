"""A scheduler's core with scripted members, for tests of what it does in each situation."""

from __future__ import annotations

from typing import Any

from elps.contracts.codec import decode, encode, parse_job
from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import AgentBeat, HostedJob, ShardBeat, TrainerStatus
from elps.contracts.requests import JobCommand, Reply
from elps.contracts.state import JobRecord, JobState, Progress
from elps.scheduler.core.core import Core
from elps.scheduler.core.events import (
    AgentBeaten,
    Answer,
    AskTerm,
    Command,
    EchoHeard,
    Event,
    ForgetJobs,
    JobsForgotten,
    JobSubmitted,
    KeysRemoved,
    Moment,
    PublishEvent,
    RemoveKeys,
    Request,
    ShardBeaten,
    TermGranted,
    Ticked,
    UserAsked,
)


class Desk:
    """A core, the heartbeats of scripted members, and everything that came out."""

    def __init__(
        self, records: list[JobRecord] | None = None, settled: bool = True, **given: Any
    ) -> None:
        self.time = 1000.0
        self.core = Core(records or [], self.now, **given)
        self.shards: dict[str, dict[str, Any]] = {}
        self.agents: dict[str, dict[str, Any]] = {}
        self.out: list[Command] = []
        self.sent: list[tuple[str, Any]] = []
        self.granting = self.removing = True
        self.seq = self.requests = self.terms = 0
        self.feed(EchoHeard())
        if settled:
            self.wait(3)

    @property
    def now(self) -> Moment:
        return Moment(self.time, 1e9 + self.time)

    def feed(self, event: Event) -> list[Command]:
        commands = self.core.handle(event, self.now)
        self.out += commands
        self.core.check_invariants()
        self.sent += [(s.member, s.message) for s in self.core.messages(self.now)]
        for ask in [c for c in commands if isinstance(c, AskTerm)]:
            if self.granting:
                self.terms = max(self.terms + 1, ask.at_least)
                term = Term(self.terms, 900 + self.terms)
                self.feed(TermGranted(ask.job, ask.attempt, term, "secret"))
        for removal in [c for c in commands if isinstance(c, RemoveKeys | ForgetJobs)]:
            if self.removing:
                self.feed(removed(removal))
        return commands

    def wait(self, seconds: float, step: float = 1.0, hear: bool = True) -> None:
        """Let time pass with everyone's heartbeats."""
        for _ in range(round(seconds / step)):
            self.time += step
            self.feed(EchoHeard())
            if hear:
                for shard in list(self.shards):
                    self.shard(shard)
                for agent in list(self.agents):
                    self.agent(agent)
            self.feed(Ticked())

    def shard(self, name: str = "s1", **state: Any) -> None:
        kept = self.shards.setdefault(name, {"incarnation": "1", "slots": 4, "jobs": []})
        kept |= state
        self.seq += 1
        beat = ShardBeat(
            shard=ShardId(name), seq=kept.get("seq", self.seq), host="h", pid=1, data_host="d",
            data_port=7, version="v", leaving=kept.get("leaving", False),
            refused=kept.get("refused", {}),
            **{k: kept[k] for k in ("incarnation", "slots", "jobs")},
        )  # fmt: skip
        self.feed(ShardBeaten(beat))

    def agent(self, name: str = "a1", **state: Any) -> None:
        kept = self.agents.setdefault(name, {"incarnation": "1", "slots": 1, "trainers": []})
        kept |= state
        self.seq += 1
        beat = AgentBeat(
            agent=AgentId(name), seq=kept.get("seq", self.seq), host="h", pid=1, version="v",
            leaving=kept.get("leaving", False), kind=kept.get("kind", ""),
            **{k: kept[k] for k in ("incarnation", "slots", "trainers")},
        )  # fmt: skip
        self.feed(AgentBeaten(beat))

    def submit(self, job: str = "j", **fields: Any) -> Reply:
        document = {"id": job, "task": "linear", "iterations": 9, **fields}
        return self.answered(JobSubmitted(self.request(), parse_job(document)))

    def request(self) -> Request:
        self.requests += 1
        return Request(f"r{self.requests}")

    def ask(self, what: str, job: str = "j", request: Request | None = None) -> Reply:
        return self.answered(UserAsked(request or self.request(), what, JobCommand(job=job)))

    def answered(self, event: JobSubmitted | UserAsked) -> Reply:
        self.feed(event)
        answers = [
            c.reply for c in self.out if isinstance(c, Answer) and c.request == event.request
        ]
        return answers[-1]

    def record(self, job: str = "j") -> JobRecord:
        return self.core.book.records[JobId(job)]

    def state(self, job: str = "j") -> JobState:
        return self.record(job).state

    def term(self, job: str = "j") -> Term:
        allocation = self.record(job).allocation
        assert allocation is not None
        return allocation.term

    def places(self, job: str = "j") -> list[ShardId]:
        """The job's shards, the leader first."""
        allocation = self.record(job).allocation
        assert allocation is not None
        return allocation.shards

    def workers(self, job: str = "j") -> dict[WorkerId, AgentId]:
        allocation = self.record(job).allocation
        assert allocation is not None
        return allocation.workers

    def hosts(self, job: str = "j", term: Term | None = None, **fields: Any) -> HostedJob:
        return HostedJob(job=JobId(job), term=term or self.term(job), **{"leads": True, **fields})

    def trainer(
        self,
        worker: str,
        job: str = "j",
        term: Term | None = None,
        state: Any = "running",
        how: str = "",
        done: bool = False,
        cut_off: bool = False,
    ) -> TrainerStatus:
        return TrainerStatus(
            job=JobId(job),
            term=term or self.term(job),
            worker=WorkerId(worker),
            state=state,
            exit=how,
            done=done,
            cut_off=cut_off,
        )

    def take_sent(self, kind: type[Any]) -> list[tuple[str, Any]]:
        """Orders of a kind since the last look; all others are forgotten too."""
        sent, self.sent = self.sent, []
        return [(member, message) for member, message in sent if isinstance(message, kind)]

    def events(self) -> list[str]:
        return [c.event.what for c in self.out if isinstance(c, PublishEvent)]

    def start(self, job: str = "j", iteration: int = 0) -> None:
        """One shard, one agent, and the job training on them."""
        self.shard()
        self.agent()
        if JobId(job) not in self.core.book.records:
            self.submit(job)
        (worker,) = self.workers(job)
        self.agent(trainers=[self.trainer(worker, job)])
        progress = Progress(iteration=iteration)
        self.shard(jobs=[self.hosts(job, phase="running", ready=[worker], progress=progress)])
        assert self.state(job) is JobState.RUNNING


def removed(removal: RemoveKeys | ForgetJobs) -> KeysRemoved | JobsForgotten:
    """What is said once it is carried out."""
    if isinstance(removal, ForgetJobs):
        return JobsForgotten(removal.jobs)
    return KeysRemoved((removal.job,))


def reborn(desk: Desk) -> Desk:
    records = [decode(encode(r), JobRecord) for r in desk.core.book.records.values()]
    after = Desk(records, settled=False)
    after.terms = desk.terms
    return after
