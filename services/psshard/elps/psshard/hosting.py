"""All jobs on one shard: which terms they are under, who may connect, what the beat shows."""

from __future__ import annotations

import threading

import structlog
from msgspec import structs

from elps.contracts.epoch import Term
from elps.contracts.errors import ProtocolError
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.messages import BatchPlan, DirectJob, DropJob, HostedJob, HostJob, Refusal
from elps.psshard.bridge import Bridge
from elps.psshard.estate import Estate
from elps.psshard.feeding import FeedConnection
from elps.psshard.lead import Lead
from elps.psshard.link import serve_link
from elps.psshard.member import Member
from elps.psshard.orders import Orders
from elps.psshard.serving import PullConnection, PushConnection
from elps.runtime.emulating import Machine
from elps.wire.connection import Connection
from elps.wire.handshake import Hello, Purpose, Refused

MAX_REFUSED = 64
"""Refusals shown in a beat; the scheduler repeats what it wants to be hosted, so the newest are enough."""

MIB = 1024 * 1024

log = structlog.get_logger()


class Hosted:
    """One job under one term on this shard."""

    def __init__(
        self,
        host: HostJob,
        me: ShardId,
        bridge: Bridge,
        estate: Estate | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.host = host
        self.member = Member(host.document, estate, machine)
        self.orders = Orders(host, me, self.member, bridge)
        self.lead = Lead(host, me, self.orders, bridge) if host.shards[0].shard == me else None
        self._lock = threading.Lock()
        self._connections: dict[Connection, Purpose] = {}
        self._closed = False
        self._linked = False  #: its leader has called

    def status(self) -> HostedJob:
        """As the beat shows it."""
        worked, held = self.member.worked(), self.member.held_bytes
        s_per_mib = worked.s_per_byte * MIB if worked is not None else None
        if self.lead is not None:
            return structs.replace(self.lead.status(held), s_per_mib=s_per_mib)
        return HostedJob(
            job=self.host.job,
            term=self.host.term,
            leads=False,
            bytes_held=held,
            phase="running",
            s_per_mib=s_per_mib,
        )

    @property
    def busy(self) -> bool:
        """Whether training would be cut off if this shard ended now."""
        if self.lead is not None:
            return not self.lead.ended
        with self._lock:
            led = "link" in self._connections.values()
            return led or (self.host.inherits is not None and not self._linked)

    def serve(self, connection: Connection, hello: Hello) -> None:
        """Serve a connection until it ends or the job is dropped."""
        with self._lock:
            if self._closed:
                raise ProtocolError(f"job {self.host.job} was dropped meanwhile")
            self._connections[connection] = hello.purpose
            self._linked |= hello.purpose == "link"
        try:
            match hello.purpose:
                case "push":
                    PushConnection(connection, self.member).serve()
                case "pull":
                    PullConnection(connection, self.member, WorkerId(hello.sender)).serve()
                case "feed":
                    following, report = self.member.following, self.member.report
                    FeedConnection(connection, following, report).serve()
                case "link":
                    serve_link(connection, self.orders, self.host.term)
                case "lease":
                    if self.lead is None:
                        raise ProtocolError(f"{hello.sender} asked a shard that does not lead")
                    self.lead.serve_trainer(connection, WorkerId(hello.sender))
        finally:
            with self._lock:
                del self._connections[connection]

    @property
    def at_work(self) -> bool:
        """Whether something of it may still be written to the store."""
        return self.orders.at_work or (self.lead is not None and self.lead.at_work)

    def close(self, reason: str) -> None:
        """Drop the job: connections end, arrays go."""
        if self.lead is not None:
            self.lead.close(reason)
        self.member.close()
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close()


class Hosting:
    """The jobs of one shard. Called from the event loop and from connection threads."""

    def __init__(self, me: ShardId, bridge: Bridge, machine: Machine | None = None) -> None:
        self._me, self._bridge, self._machine = me, bridge, machine
        self._lock = threading.Lock()
        self._jobs: dict[JobId, Hosted] = {}
        self._closing: list[
            Hosted
        ] = []  #: dropped, but something may still be on its way to the store
        self._highest: dict[
            JobId, Term
        ] = {}  #: terms seen; a lower one, or an equal number, is refused for ever
        self._refused: dict[JobId, Refusal] = {}  #: what the scheduler is to hear, the newest last

    def host(self, message: HostJob) -> None:
        """Take part in a job; a repeat changes nothing, a newer term replaces the older one."""
        with self._lock:
            old = self._jobs.get(message.job)
            if self._refuse(message):
                self._bridge.beat()
                return
            if old is not None and old.host.term == message.term:
                return
            self._highest[message.job] = message.term
            goes_on = message.inherits is not None
            estate = old.member.bequeath() if old is not None and goes_on else None
            hosted = self._jobs[message.job] = Hosted(
                message, self._me, self._bridge, estate, self._machine
            )
        if old is not None:
            old.close(f"term {message.term.number} has begun")
        log.info(
            "job_hosted",
            job=message.job,
            term=message.term.number,
            leads=hosted.lead is not None,
            reason="the scheduler placed it here",
        )
        if hosted.lead is not None:
            hosted.lead.start()
        self._bridge.beat()

    def _refuse(self, message: HostJob) -> bool:
        """Whether a job's term is over here. Told in every beat until a higher one comes or the job is dropped."""
        job, term = message.job, message.term
        highest = self._highest.get(job, term)
        self._refused.pop(job, None)
        if term == highest or term.number > highest.number:
            return False
        self._refused[job] = Refusal(term=term, highest=highest)
        for oldest in list(self._refused)[:-MAX_REFUSED]:
            del self._refused[oldest]
        reason = f"term {term} is over: {highest} was seen here"
        log.error("term_refused", job=job, reason=reason)
        return True

    def refused(self) -> dict[JobId, Refusal]:
        """Jobs that are not hosted under the term last told."""
        with self._lock:
            return dict(self._refused)

    def drop(self, message: DropJob) -> None:
        """Forget a job of this term or an older one."""
        with self._lock:
            refusal = self._refused.get(message.job)
            if refusal is not None and refusal.term.number <= message.term.number:
                del self._refused[message.job]
            hosted = self._jobs.get(message.job)
            if hosted is None or hosted.host.term.number > message.term.number:
                return
            del self._jobs[message.job]
            self._closing.append(hosted)
        hosted.close("the job was taken from this shard")
        log.info("job_dropped", job=message.job, term=message.term.number)
        self._bridge.beat()

    def direct(self, message: DirectJob) -> None:
        """Hand the scheduler's word to the leader, if it is for the term in force."""
        if (lead := self._led(message)) is not None:
            lead.direct(message)

    def plan_batches(self, message: BatchPlan) -> None:
        """Hand the scheduler's word on the workers' shares to the leader, if it is for the term in force."""
        if (lead := self._led(message)) is not None:
            lead.plan_batches(message)

    def _led(self, message: DirectJob | BatchPlan) -> Lead | None:
        with self._lock:
            hosted = self._jobs.get(message.job)
        return hosted.lead if hosted is not None and hosted.host.term == message.term else None

    def balanced(self, job: JobId) -> bool:
        """Whether somebody waits for the timings of a job that is led here."""
        with self._lock:
            hosted = self._jobs.get(job)
        return hosted is not None and hosted.host.document.balanced

    def secret_of(self, job: JobId) -> str | None:
        """The secret by which a job's processes prove themselves; None for a job that is not here."""
        with self._lock:
            hosted = self._jobs.get(job)
            return hosted.host.secret if hosted is not None else None

    def check(self, hello: Hello) -> None:
        """Raise `Refused` when a process of a job may not come in."""
        with self._lock:
            hosted = self._jobs.get(hello.job)
        if hosted is None or hosted.host.term.number < hello.term:
            raise Refused(f"job {hello.job} is not here yet under term {hello.term}", "later")
        if hello.term < hosted.host.term.number:
            raise Refused(f"term {hello.term} of job {hello.job} is over", "over")
        if hello.purpose == "lease":
            if hosted.lead is None:
                raise Refused(f"{self._me} does not lead job {hello.job}")
            hosted.lead.check(WorkerId(hello.sender))

    def serve(self, connection: Connection, hello: Hello) -> None:
        """Serve a connection that has shaken hands."""
        with self._lock:
            hosted = self._jobs.get(hello.job)
        if hosted is None or hosted.host.term.number != hello.term:
            raise ProtocolError(f"job {hello.job} was dropped meanwhile")
        hosted.serve(connection, hello)

    def status(self) -> list[HostedJob]:
        """All jobs, in order. Those that are over come first: what is said last of a job is of its newest term."""
        with self._lock:
            self._closing = [job for job in self._closing if job.at_work]
            jobs = self._closing + [self._jobs[j] for j in sorted(self._jobs)]
        return [job.status() for job in jobs]

    def term(self, job: JobId) -> Term | None:
        """The term under which a job is here."""
        with self._lock:
            hosted = self._jobs.get(job)
            return hosted.host.term if hosted is not None else None

    @property
    def busy(self) -> bool:
        """Whether training would be cut off if this shard ended now."""
        with self._lock:
            return any(job.busy for job in self._jobs.values())

    def close(self, reason: str) -> None:
        """Drop everything: the shard ends."""
        with self._lock:
            jobs = list(self._jobs.values())
            self._jobs.clear()
        for job in jobs:
            job.close(reason)
