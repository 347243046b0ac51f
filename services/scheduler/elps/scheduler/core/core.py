"""The scheduler's state machine: events in, commands out, messages as a function of what is known.

    shell: core.handle(event, now)  ->  write records, then publish, answer, ask
           core.messages(now)       ->  send, once everything handled so far is stored

`handle` is complete in itself: what an event frees is given to the next job within the same call. The records
it hands out are all that survives: a core rebuilt from them, with the members' next heartbeats, goes on where
this one stopped. Whatever it does is a function of the records it began with and of the events and times it was
given.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from elps.contracts.ids import JobId
from elps.contracts.messages import AgentCommand, DropJob, ShardCommand, StopTrainer
from elps.contracts.requests import JobCommand, PolicyCommand, Reply
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import IterationTimings
from elps.scheduler.core import forgetting, leading, life, placing, users, watch
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import (
    AgentBeaten,
    Answer,
    Bounds,
    Command,
    EchoHeard,
    Event,
    JobsForgotten,
    JobSubmitted,
    KeepPolicy,
    KeysRemoved,
    Marks,
    Moment,
    Request,
    Send,
    ShardBeaten,
    ShardRefused,
    TermGranted,
    Ticked,
    UserAsked,
)
from elps.scheduler.core.fifo import Fifo
from elps.scheduler.core.groups import Group, Grouped
from elps.scheduler.core.orders import Topic, batch_plan, orders
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.core.policy import Policy
from elps.scheduler.core.pool import Holding


class Core:
    """Jobs, members and who has what."""

    def __init__(
        self,
        records: Iterable[JobRecord],
        now: Moment,
        *,
        bounds: Bounds | None = None,
        policy: Policy | None = None,
        groups: Mapping[str, Group] | None = None,
        reserved: Iterable[JobId] = (),
        marks: Marks | None = None,
    ) -> None:
        """`records` and `marks` as the store has them; `reserved` are ids of records which could not be read."""
        self.bounds = bounds or Bounds()
        self._groups = dict(groups or {})
        self.policy: Policy = self._with_groups(policy or Fifo())
        self.book = Book(records, reserved, now, self.bounds, marks or Marks())
        self.book.resizes = self.policy.resizes
        self._said: dict[Topic, tuple[ShardCommand | AgentCommand, float]] = {}
        #: what is being repeated, and when it was last said

    def handle(self, event: Event, now: Moment) -> list[Command]:
        """Take one event; the commands are to be carried out in their order, records before all else."""
        book = self.book
        match event:
            case ShardBeaten(beat=beat):
                watch.shard_beaten(book, beat, now)
            case AgentBeaten(beat=agent_beat):
                watch.agent_beaten(book, agent_beat, now)
            case EchoHeard():
                watch.echo_heard(book, now)
            case Ticked():
                watch.ticked(book, now)
            case JobSubmitted():
                users.job_submitted(book, event, now)
            case UserAsked(body=PolicyCommand(policy=name)):
                self._asked_of_policies(event.request, name)
            case UserAsked(what="explain", body=JobCommand(job=job)):
                users.explained(book, self.policy, event.request, job, now)
            case UserAsked():
                users.user_asked(book, event, now)
            case TermGranted():
                placing.term_granted(book, event, now)
            case KeysRemoved() | JobsForgotten():
                forgetting.removed(book, event)
            case ShardRefused():
                watch.shard_refused(book, event, now)
        placing.settle(book, self.policy, now)
        return self._said_so_far()

    def take_in(self, event: JobSubmitted, now: Moment) -> list[Command]:
        """Enter a job, and leave it to the next event to place it: many may come at once, and each asks for all."""
        users.job_submitted(self.book, event, now)
        return self._said_so_far()

    def _said_so_far(self) -> list[Command]:
        out, self.book.out = self.book.out, []
        return out

    def _with_groups(self, policy: Policy) -> Policy:
        return Grouped(policy, self._groups) if self._groups else policy

    def _asked_of_policies(self, request: Request, name: str) -> None:
        """A policy is chosen; without a name, the one in force is asked for."""
        if name:
            self._choose(request, name)
        else:
            self._tell_policy(request)

    def _tell_policy(self, request: Request) -> None:
        """Asked again it is said anew: it may have changed."""
        name, others = self.policy.name, [known for known in POLICIES if known != self.policy.name]
        text = f"{name} is in force; there are {', '.join(others)} besides"
        self.book.out.append(Answer(request, Reply(ok=True, reason=text, lines=[name])))

    def _choose(self, request: Request, name: str) -> None:
        """Decide by another policy from now on; jobs that hold something go on as they are."""
        if (known_reply := self.book.answers.get(request)) is not None:
            self.book.out.append(Answer(request, known_reply))
            return
        if name not in POLICIES:
            known = ", ".join(POLICIES)
            reply = Reply(ok=False, reason=f"there is no policy {name[:40]!r}; known: {known}")
        else:
            reply = Reply(ok=True, reason=f"{self.policy.name} before, {name} from now on")
            self.policy = self._with_groups(POLICIES[name])
            self.book.resizes = self.policy.resizes
            self.book.changed()
            self.book.out.append(KeepPolicy(name))
            self.book.note("policy_chosen", policy=name)
        self.book.answer(request, reply)

    def timed(self, timings: IterationTimings) -> bool:
        """Take timings of a job's workers; True if its leader is to be told something new (`plans`).

        Not an event: it comes many times a second, changes no record, and frees nothing that others might get.
        """
        return leading.timed(self.book, timings)

    def plans(self, job: JobId, now: Moment) -> list[Send]:
        """What a job's leader is to be told of its batches at once, which waits for no record.

        Its term is one that the leader has shown, so that it is stored; and a plan that is lost is said again.
        """
        out = []
        for record, allocation, live, reign in self.book.holding():
            if record.id == job:
                for topic, send in batch_plan(record, allocation, live, reign):
                    self._said[topic] = (send.message, now.mono)
                    out.append(send)
        return out

    def messages(self, now: Moment, held: Container[JobId] = ()) -> list[Send]:
        """What is to be sent now: new messages at once, repeats at the pace of heartbeats; none of jobs in `held`."""
        said: dict[Topic, tuple[ShardCommand | AgentCommand, float]] = {}
        due = []
        for topic, send in orders(self.book):
            before = self._said.get(topic)
            if topic.job in held:
                if before is not None:
                    said[topic] = before
                continue
            if (
                before is not None
                and before[0] == send.message
                and now.mono - before[1] < self.bounds.beat_s
            ):
                said[topic] = before
                continue
            said[topic] = (send.message, now.mono)
            due.append(send)
            if isinstance(send.message, DropJob | StopTrainer):
                self.book.pool.told_to_end(topic.member, Holding(topic.job, topic.worker))
        self._said = said
        return due

    def keys_found(self, jobs: Iterable[JobId]) -> None:
        """Jobs of which the store holds keys: those that are not to be there go with the next event."""
        for job in jobs:
            forgetting.keys_found(self.book, job)

    def counts(self) -> dict[str, int]:
        """Number of jobs in each state."""
        counts = {state.value: 0 for state in JobState}
        for record in self.book.records.values():
            counts[record.state.value] += record.deleted_at is None
        return counts

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the books contradict themselves."""
        book = self.book
        for record in book.records.values():
            assert not (found := life.problems(record)), f"{record.id}: {found}"
            assert (record.id in book.live) == (not record.state.ended), record.id
            kept, hidden = record.id in book.retention.ended, record.id in book.retention.deleted
            assert kept == (record.state.ended and record.deleted_at is None), record.id
            assert hidden == (record.deleted_at is not None), record.id
        assert all(job in book.records for job in (*book.retention.ended, *book.retention.deleted))
        assert all(job in book.retention.deleted for job in book.retention.forgetting)
        for job, live in book.live.items():
            record = book.records[job]
            assert (live.reign is not None) == (record.allocation is not None), job
            assert live.reservation is None or record.state is JobState.QUEUED, job
        order = [book.records[job].seq for job in book.live]
        assert order == sorted(order), "jobs are not in their order of arrival"
        assert book.claims() == book.counted_claims()
        assert not (over := book.pool.overcommitted(book.claims())), over
        assert not book.out
