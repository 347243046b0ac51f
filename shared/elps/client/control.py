"""The client of the control plane: submit and direct jobs, ask the monitor, follow what happens.

Every wait is bounded; one that passes raises `RetryLater` and names who did not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from elps.client import reading
from elps.client.following import Following
from elps.contracts import topology
from elps.contracts.answers import (
    Agent,
    Events,
    Health,
    Iterations,
    JobDetail,
    JobSummary,
    Output,
    Shard,
    Shards,
    Workers,
)
from elps.contracts.codec import decode, encode, loads
from elps.contracts.errors import ElpsError, InvalidDocument, RetryLater
from elps.contracts.ids import parse_job_id
from elps.contracts.job import JobDocument
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Answer, JobCommand, PolicyCommand, Query, Reply, ScaleCommand
from elps.messaging.port import Bus

LOOK_S = 5.0
"""How often a wait for the end of a job asks for its state: events may be lost."""
ANSWER_S = 5.0
"""The scheduler and the monitor answer in milliseconds; whoever takes this long is down or drowned."""


class QueryRefused(ElpsError):
    """The monitor answered that it cannot say: most often there is no such job."""


class Client:
    """Talks to the scheduler and the monitor over a bus that someone else opens and closes."""

    def __init__(self, bus: Bus, *, timeout_s: float = ANSWER_S) -> None:
        self._bus = bus
        self._timeout_s = timeout_s

    async def submit(self, document: dict[str, Any] | JobDocument) -> Reply:
        """Hand in a job. A refusal is a `Reply` with `ok` false and every problem.

        A plain `dict` is sent as it is and judged by the scheduler. When no answer came in time, the job may still be
        accepted later: its message waits in a durable queue. A document with an `id` can be submitted again safely.
        """
        try:
            body = encode(document)
        except (TypeError, ValueError) as error:
            raise InvalidDocument("job document", [f"cannot be written as JSON: {error}"]) from None
        return await self._command(topology.SUBMIT, body)

    async def kill(self, job: str, reason: str = "") -> Reply:
        """End a job at once, for good."""
        return await self._direct(topology.KILL, job, reason)

    async def pause(self, job: str, reason: str = "") -> Reply:
        """Checkpoint a job at the next iteration boundary and let go of what it holds."""
        return await self._direct(topology.PAUSE, job, reason)

    async def resume(self, job: str, reason: str = "") -> Reply:
        """Queue a paused job again; it goes on from its checkpoint."""
        return await self._direct(topology.RESUME, job, reason)

    async def delete(self, job: str, reason: str = "") -> Reply:
        """Have all that there is of an ended job removed, its checkpoints too; refused for one that has not ended."""
        return await self._direct(topology.DELETE, job, reason)

    async def explain(self, job: str) -> Reply:
        """Why a job has what it has, and what would have to happen for it to get more: `Reply.lines`."""
        return await self._direct(topology.EXPLAIN, job, "")

    async def policy(self) -> Reply:
        """The policy in force: the first of `Reply.lines`."""
        return await self._command(topology.POLICY, encode(PolicyCommand()))

    async def choose_policy(self, policy: str) -> Reply:
        """Have the scheduler decide by another policy from now on, restarts included."""
        return await self._command(topology.POLICY, encode(PolicyCommand(policy=policy)))

    async def scale(
        self,
        job: str,
        *,
        workers: int | None = None,
        shards: int | None = None,
        auto: bool = False,
        reason: str = "",
    ) -> Reply:
        """Pin a job at a number of workers, of shards, or of both, while it trains; `auto` frees it again.

        What is left out stays as it was. Numbers must lie within the bounds of the job's document. The reply comes at
        once and says what will happen; the job gets there as members become free and ready.
        """
        wish = ScaleCommand(
            job=parse_job_id(job), workers=workers, shards=shards, auto=auto, reason=reason
        )
        return await self._command(topology.SCALE, encode(wish))

    async def jobs(self, limit: int = 1000) -> list[JobSummary]:
        """All jobs in the order of their arrival; of more than `limit` those that ended first are left out."""
        return reading.jobs_of(await self.query(Query(what="jobs", limit=limit)))

    async def job(self, job: str) -> JobDetail:
        """One job, with its document and its life."""
        return reading.job_of(await self.query(Query(what="job", job=parse_job_id(job))))

    async def iterations(self, job: str, since: int = 0, limit: int = 1000) -> Iterations:
        """Finished iterations from number `since` on, and evaluations; go on with `since` = `next` while `more`."""
        query = Query(what="iterations", job=parse_job_id(job), since=since, limit=limit)
        return reading.read(await self.query(query), Iterations)

    async def logs(self, job: str, since: int = 0, limit: int = 1000) -> Output:
        """What the job's trainers printed, from line `since` on; go on with `since` = `next` while `more`."""
        query = Query(what="logs", job=parse_job_id(job), since=since, limit=limit)
        return reading.read(await self.query(query), Output)

    async def events(self, job: str | None = None, after: str = "", limit: int = 1000) -> Events:
        """Events that the monitor holds, of one job or of all, from after the one with the id `after` on."""
        wanted = parse_job_id(job) if job is not None else None
        query = Query(what="events", job=wanted, after=after, limit=limit)
        return reading.read(await self.query(query), Events)

    async def workers(self) -> list[Agent]:
        """All worker agents with their trainers."""
        return reading.read(await self.query(Query(what="workers")), Workers).workers

    async def shards(self) -> list[Shard]:
        """All shards with the jobs that they take part in."""
        return reading.read(await self.query(Query(what="shards")), Shards).shards

    async def health(self) -> Health:
        """Whether the whole stack is there."""
        return reading.read(await self.query(Query(what="health")), Health)

    async def query(self, query: Query) -> Any:
        """Ask the monitor; return the JSON that it would give over HTTP.

        Raises `QueryRefused` with its reason, and `RetryLater` when it cannot say now, since the store is away.

        The methods above ask all there is to ask, and give it types.
        """
        body = await self._request(topology.QUERY, query.what, encode(query), "monitor")
        try:
            answer = msgspec.json.decode(body, type=Answer)
        except msgspec.DecodeError as error:
            raise InvalidDocument("answer of the monitor", [str(error)]) from None
        if answer.later:
            raise RetryLater(f"the monitor cannot say now: {answer.reason}")
        if not answer.ok:
            raise QueryRefused(answer.reason or "the monitor gave no reason")
        return loads(bytes(answer.result))

    def follow(self, job: str, *, logs: bool = False) -> Following:
        """What happens to a job from the moment of entering: ``async with client.follow(job) as stream: async for …``.

        Events and iteration rows, and with `logs` what the trainers print. Enter before asking for the job's present
        state, and nothing between is missed.
        """
        return Following(self._bus, parse_job_id(job), logs=logs)

    async def ended(self, job: str) -> JobDetail:
        """Wait until a job's life is over, and return what has become of it; bound the wait from outside.

        Raises `QueryRefused` when there is no such job. Once it was known, a monitor that is away is passed over.
        """
        loop = asyncio.get_running_loop()
        async with self.follow(job) as stream:
            summary = await self.job(job)
            while not summary.state.ended:
                until = loop.time() + LOOK_S
                while (left_s := until - loop.time()) > 0:
                    item = await stream.next(left_s)
                    if isinstance(item, JobEvent) and item.record and item.record.state.ended:
                        return reading.job_of_record(item.record)
                with contextlib.suppress(RetryLater):
                    summary = await self.job(job)
            return summary

    async def _direct(self, key: str, job: str, reason: str) -> Reply:
        return await self._command(key, encode(JobCommand(job=parse_job_id(job), reason=reason)))

    async def _command(self, key: str, body: bytes) -> Reply:
        return decode(await self._request(topology.JOBS, key, body, "scheduler"), Reply)

    async def _request(self, exchange: str, key: str, body: bytes, whom: str) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await self._bus.request(exchange, key, body, timeout_s=self._timeout_s)
        except RetryLater as error:
            if not self._bus.connected:
                raise RetryLater(
                    f"the broker is not reachable ({error}): is it running? try `make status`"
                ) from None
            if blocked := self._bus.blocked:
                raise RetryLater(
                    f"{blocked} (this one may still be taken: hand it in again with the same id)"
                ) from None
            waited = loop.time() - began >= 0.9 * self._timeout_s
            how = f"did not answer within {self._timeout_s:g} s" if waited else "is not there"
            kept = (
                "; the message waits for it and will be carried out"
                if whom == "scheduler" and waited
                else ""
            )
            raise RetryLater(f"the {whom} {how}{kept}: is it running? try `make status`") from error
