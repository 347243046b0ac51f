"""The worker service: an agent that has the trainers run that the scheduler asks for. It computes nothing itself."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from importlib.metadata import version

import structlog

from elps.contracts import topology
from elps.contracts.codec import decode, encode
from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId, parse_job_id
from elps.contracts.messages import AgentBeat, AgentCommand, JobEvent, StartTrainer
from elps.contracts.telemetry import LogLines
from elps.messaging.port import Delivery, Handler, Queue, Subscription
from elps.runtime.emulating import WORKERS
from elps.runtime.obeying import Obedience
from elps.runtime.processes import rss_bytes
from elps.runtime.schedule import every
from elps.runtime.service import Context
from elps.worker.agent.log_file import remove_logs
from elps.worker.agent.machine import own_kind
from elps.worker.agent.trainers import TRAINER, Trainers
from elps.worker.settings import read_settings
from elps.worker.zygote.preload import PRELOAD

log = structlog.get_logger(__name__)

PRINTED_S = 0.2
"""How often printed lines are sent on."""
PUBLISH_S = 5.0
PORTION_CHARACTERS = 128 * 1024
"""Text in one message of lines; escaped it is six times as long at worst."""


def create(context: Context) -> WorkerAgent:
    """Make the service from its environment."""
    return WorkerAgent(context)


class WorkerAgent:
    """The service."""

    def __init__(
        self, context: Context, *, trainer: str = TRAINER, preload: Sequence[str] = PRELOAD
    ) -> None:
        """`trainer` is what trainer processes run (``module:function``), `preload` what they find imported."""
        self._settings = read_settings(context.env)
        self._bus = context.bus
        self._clock = context.clock
        self._incarnation = secrets.token_hex(8)
        self._host = socket.gethostname()
        self._kind = self._settings.agent_kind or own_kind(self._settings.worker_slowdown)
        self._version = version("elps")
        self._seq = 0
        self._obedience = Obedience()
        #: Since the broker took the last ones.
        self._lines_lost = 0
        #: Jobs whose logs are to go, and the highest term that they had: a later job of the id keeps its own.
        self._deleted: dict[JobId, int | None] = {}
        self._changed = asyncio.Event()
        self._trainers = Trainers(
            self._settings,
            context.clock,
            {**os.environ, **context.env, WORKERS: self._settings.worker_slowdown},
            self._changed.set,
            trainer=trainer,
            preload=(*preload, *self._settings.preload_modules),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; then tell that the agent leaves, end the trainers, and say how they ended."""
        agent = self._settings.agent
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            zygote = tasks.create_task(self._trainers.keep_zygote(), name="zygote")
            time = tasks.create_task(self._trainers.keep_time(), name="time")
            queue = Queue(topology.command_queue(agent), ((topology.COMMANDS, agent),))
            subscription = await self._subscribe(queue, self._on_command, stop)
            deletions = await self._watch_deletions(stop)
            beats = tasks.create_task(
                every(
                    self._settings.beat_s, self.beat, done, nudge=self._changed, timeout_s=PUBLISH_S
                ),
                name="beats",
            )
            printed = tasks.create_task(
                every(PRINTED_S, self._send_printed, done, timeout_s=PUBLISH_S), name="printed"
            )
            slowdown = {"slowdown": s} if (s := self._settings.worker_slowdown) else {}
            log.info("agent_serves", agent=agent, slots=self._settings.worker_slots, **slowdown)
            await stop.wait()
            await self._trainers.leave()
            done.set()
            await asyncio.wait((beats, printed))
            zygote.cancel()
            time.cancel()
            for taken in (subscription, deletions):
                if taken:
                    await taken.cancel()
        await self._tell_the_end()

    async def _watch_deletions(self, stop: asyncio.Event) -> Subscription | None:
        """Hear of jobs whose logs are to go, if any are kept here."""
        if not self._settings.log_dir:
            return None
        queue = Queue(
            f"elps.deleted.{self._settings.agent}", ((topology.EVENTS, topology.DELETED_KEYS),)
        )
        return await self._subscribe(queue, self._on_deleted, stop)

    async def _on_deleted(self, delivery: Delivery) -> None:
        """Trainers of the job may still be on their way out: its logs go once these have had their last words."""
        event = decode(delivery.body, JobEvent)
        terms = event.record.terms if event.record is not None else None
        self._deleted[parse_job_id(event.job)] = terms

    async def _remove_deleted(self) -> None:
        gone = []
        for job, terms in list(self._deleted.items()):
            here = self._trainers.of(job)
            another = here and (terms is None or any(t.term.number > terms for t in here))
            if another:
                del self._deleted[job]
            elif all(trainer.state == "exited" for trainer in here):
                del self._deleted[job]
                gone.append(job)
        if log_dir := self._settings.log_dir:
            for job in gone:
                await asyncio.to_thread(remove_logs, log_dir, job)

    async def _subscribe(
        self, queue: Queue, handler: Handler, stop: asyncio.Event
    ) -> Subscription | None:
        """Take the queue, once whoever had the same id is gone; None when `stop` came first."""
        while not stop.is_set():
            try:
                return await self._bus.subscribe(queue, handler)
            except RetryLater as error:
                log.warning("queue_not_subscribed", queue=queue.name, error=str(error))
            try:
                async with asyncio.timeout(self._settings.beat_s):
                    await stop.wait()
            except TimeoutError:
                continue
        return None

    async def _on_command(self, delivery: Delivery) -> None:
        kind: type[AgentCommand] = AgentCommand  # type: ignore[assignment]  # a union is no type, but msgspec takes it
        command = decode(delivery.body, kind)
        if not self._obedience.owed_to(command):
            return
        if isinstance(command, StartTrainer):
            self._trainers.start(command)
        else:
            self._trainers.stop(command)

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the parent of all trainers."""
        return self._trainers.zygote_pid

    async def beat(self) -> None:
        """Publish what the agent knows of itself."""
        self._seq += 1
        message = AgentBeat(
            agent=self._settings.agent,
            incarnation=self._incarnation,
            seq=self._seq,
            host=self._host,
            pid=os.getpid(),
            slots=self._settings.worker_slots,
            trainers=self._trainers.statuses(),
            version=self._version,
            rss_bytes=rss_bytes(),
            leaving=self._trainers.leaving,
            obeys=self._obedience.to,
            kind=self._kind,
            at=self._clock.time(),
        )
        await self._bus.publish(
            topology.MEMBERS, topology.AGENT_BEAT, encode(message), confirm=False
        )

    async def _send_printed(self) -> None:
        """Send on what trainers printed. While the broker is away it is lost, but for the log files."""
        printed = self._trainers.take_printed()
        await self._remove_deleted()
        for key, lines in printed:
            for some in _portions(lines):
                message = LogLines(
                    job=key.job, worker=key.worker, at=self._clock.time(), lines=some
                )
                await self._publish_lines(message)

    async def _publish_lines(self, message: LogLines) -> None:
        try:
            await self._bus.publish(
                topology.TELEMETRY, topology.log_key(message.job), encode(message), confirm=False
            )
        except RetryLater as error:
            if not self._lines_lost:
                log.warning("printed_lines_lost", error=str(error))
            self._lines_lost += len(message.lines)
        else:
            if self._lines_lost:
                log.info("printed_lines_sent_again", lost=self._lines_lost)
            self._lines_lost = 0

    async def _tell_the_end(self) -> None:
        for act in (self._send_printed, self.beat):
            try:
                async with asyncio.timeout(PUBLISH_S):
                    await act()
            except (RetryLater, TimeoutError) as error:
                log.warning("last_word_not_sent", act=act.__name__, error=str(error))


def _portions(lines: Sequence[str]) -> Iterator[list[str]]:
    """Cut lines into messages of bounded size."""
    portion: list[str] = []
    size = 0
    for line in lines:
        if portion and size + len(line) > PORTION_CHARACTERS:
            yield portion
            portion, size = [], 0
        portion.append(line)
        size += len(line)
    if portion:
        yield portion
