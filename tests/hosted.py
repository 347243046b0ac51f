"""Shards with their jobs in this process, and trainers that speak frames by hand: the shard's side under test.

Each shard has an event loop in a thread of its own, as its service has, but no broker: the test says what the scheduler
would. The task is simple: each sample's gradient is 1 everywhere and the rate is 1, so version *t* is *-t*.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from elps.contracts.epoch import Term
from elps.contracts.errors import ElpsError
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.job import Batch, Checkpoint, JobDocument, Limits, Optimizer, Pool
from elps.contracts.messages import Address, DirectJob, HostedJob, HostJob, JobEvent, StartTrainer
from elps.contracts.state import Progress
from elps.contracts.telemetry import IterationRow
from elps.optim import warm_up
from elps.psshard.bridge import Bridge
from elps.psshard.hosting import Hosting
from elps.psshard.listener import Listener
from elps.storage.memory import MemoryStore
from elps.stream.interval import Interval
from elps.tasks.layout import Layout
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import Header, Kind, Status
from elps.worker.trainer.inbox import Inbox
from elps.worker.trainer.reaching import CalledAway, reach
from elps.worker.trainer.shards import Shards

sys.path.insert(0, str(Path(__file__).parent))

from data_plane import pull, push

SECRET = "s3cret"
JOB = JobId("job")
JOIN_S = 5.0
NOBODY = 9
"""A port at which nobody listens: the dead do not connect again."""
SAMPLES = 8
SIZE = 40_000


def document(**fields: Any) -> JobDocument:
    """Thirty iterations of 8 samples, no evaluation, a checkpoint at the end only."""
    defaults: dict[str, Any] = {
        "id": JOB,
        "task": "linear",
        "iterations": 30,
        "batch": Batch(global_=8),
        "optimizer": Optimizer(name="sgd", lr=1.0),
        "checkpoint": Checkpoint(every_s=0.0),
        "limits": Limits(floor_s=30.0),
        "shards": Pool(min=1, max=4),
    }
    return JobDocument(**(defaults | fields))


def identity(**changes: Any) -> dict[str, Any]:
    """What a trainer says in READY."""
    layout = Layout.of({"w": np.zeros(SIZE)}, "float32").to_wire()
    return {
        "samples": SAMPLES,
        "test_samples": 0,
        "layout": layout,
        "fingerprint": "data",
        "code_hash": "code",
    } | changes


class Host:
    """One shard process."""

    def __init__(self, number: int, store: MemoryStore) -> None:
        self.me = ShardId(f"shard-{number}")
        self.rows: list[IterationRow] = []
        self.events: list[JobEvent] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.bridge = asyncio.run_coroutine_threadsafe(self._make_bridge(store), self._loop).result(
            5
        )
        self.hosting = Hosting(self.me, self.bridge)
        self.listener = Listener(
            "127.0.0.1", 0, self.hosting.secret_of, self.hosting.check, self.hosting.serve
        )
        self._listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)

    async def _make_bridge(self, store: MemoryStore) -> Bridge:
        return Bridge(store, self._loop)

    async def _listen(self) -> None:
        while True:
            await self.bridge.wake.wait()
            rows, events, _ = self.bridge.take()
            self.rows += [row for _, row in rows]
            self.events += events

    def status(self) -> HostedJob:
        """What the beat would show of the job; of one that was dropped, as long as it is being closed."""
        return self.hosting.status()[-1]

    def close(self) -> None:
        """As a shard that leaves."""
        self.hosting.close("the shard is leaving")
        self.listener.close()
        self._listening.cancel()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(5)  # it sees that
        asyncio.run_coroutine_threadsafe(_end_all_others(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


class Stack:
    """A job on some shards. Ports may be those of proxies, for the leader's links alone."""

    def __init__(self, shards: int = 1, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.hosts = [Host(n + 1, self.store) for n in range(shards)]
        self.link_ports = {h.listener.port: h.listener.port for h in self.hosts}
        self.trainers: list[FakeTrainer] = []
        self._named: set[WorkerId] = set()
        warm_up("float32")

    @property
    def leader(self) -> Host:
        """The shard that leads."""
        return self.hosts[0]

    def message(self, doc: JobDocument, term: int = 1, workers: int = 1, **fields: Any) -> HostJob:
        """What the scheduler would say; training begins when these workers are ready."""
        defaults: dict[str, Any] = {
            "job": JOB,
            "document": doc,
            "term": Term(term, 77),
            "secret": SECRET,
            "shards": [
                Address(shard=h.me, host="127.0.0.1", port=self.link_ports[h.listener.port])
                for h in self.hosts
            ],
            "workers": [WorkerId(f"job-w{n}") for n in range(1, workers + 1)],
            "progress": Progress(),
        }
        return HostJob(**(defaults | fields))

    def host(self, doc: JobDocument, term: int = 1, workers: int = 1, **fields: Any) -> HostJob:
        """Tell every shard."""
        message = self.message(doc, term, workers, **fields)
        self._named = set(message.workers)
        for host in self.hosts:
            host.hosting.host(message)
        return message

    def direct(self, message: HostJob, goal: str = "run", **fields: Any) -> None:
        """The scheduler's word to the leader."""
        defaults = {"workers": sorted(self._named), "exits": {}} | fields
        self.leader.hosting.direct(
            DirectJob(job=JOB, term=message.term, goal=goal, **defaults)  # type: ignore[arg-type]
        )

    def trainer(self, message: HostJob, number: int, **fields: Any) -> FakeTrainer:
        """Start one; the leader is told that it may come."""
        if WorkerId(f"job-w{number}") not in self._named:
            self._named.add(WorkerId(f"job-w{number}"))
            self.direct(message)
        real = {proxied: port for port, proxied in self.link_ports.items()}
        trainer = FakeTrainer(message, WorkerId(f"job-w{number}"), real, **fields)
        self.trainers.append(trainer)
        trainer.start()
        return trainer

    def status(self) -> HostedJob:
        """What the leader's beat would show."""
        return self.leader.status()

    def close(self) -> None:
        """End everything."""
        for host in self.hosts:
            host.close()
        for trainer in self.trainers:
            trainer.join(15)
            assert not trainer.is_alive(), f"{trainer.worker} did not end"


def tell(leader: Connection, header: Header, meta: dict[str, Any] | None = None) -> None:
    """As a trainer does: what the leader said before it hung up is read all the same."""
    with contextlib.suppress(ConnectionEnded):
        leader.send(header, meta)


class FakeTrainer(threading.Thread):
    """Speaks frames. `before` is asked before each frame of the leader is followed; False makes it die there."""

    def __init__(
        self,
        message: HostJob,
        worker: WorkerId,
        real_ports: dict[int, int],
        *,
        says: dict[str, Any] | None = None,
        before: Callable[[FakeTrainer, Header], bool] = lambda trainer, header: True,
        bad: Callable[[int, Interval], bool] = lambda t, interval: False,
        around: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.worker = worker
        self.message = message
        self.ended = ""  #: why it was told to stop, or how it was cut off
        self.seen: list[Kind] = []
        self.leases: list[Header] = []
        self.shards: Shards | None = None
        self.around = around or {}  #: what it says of its machine
        self._real, self._says, self._before, self._bad = (
            real_ports,
            says or identity(),
            before,
            bad,
        )
        self.params = np.zeros(SIZE, message.document.dtype)
        self.leader: Connection | None = None

    def run(self) -> None:
        first = self.message.shards[0]
        try:
            port = self._real[first.port]
            start = self._start_trainer()
            self.leader = reach(start, first.host, port, "leader", "lease", JOIN_S)
            self.leader.send(Header(Kind.READY), self._says)
            self._inbox = Inbox(self.leader)
            while self._step(self.leader, self._inbox):
                pass
        except (ElpsError, TimeoutError) as error:
            self.ended = self.ended or str(error)
        finally:
            self.die()

    def die(self) -> None:
        """As a process that is killed: all its connections end."""
        if self.leader is not None:
            self.leader.close()
        if self.shards is not None:
            for shard in self.shards.all():
                shard.port = NOBODY
            self.shards.close()

    def _step(self, leader: Connection, inbox: Inbox) -> bool:
        header, meta = inbox.take(20)
        self.seen.append(header.kind)
        if not self._before(self, header):
            self.ended = f"died at {header.kind.name}"
            return False
        try:
            return self._follow(leader, inbox, header, meta)
        except CalledAway:
            return True

    def _follow(
        self, leader: Connection, inbox: Inbox, header: Header, meta: dict[str, Any]
    ) -> bool:
        match header.kind:
            case Kind.STOP:
                self.ended = meta["reason"]
                return False
            case Kind.MAP:
                if self.shards is not None:
                    self.shards.close()
                places = self._real_map(meta)
                self.shards = Shards(
                    self._start_trainer(),
                    header.epoch,
                    places,
                    self.params.itemsize,
                    inbox.called_away,
                )
                self.shards.connect()
                self._ask(leader, None)
            case Kind.WAIT if meta.get("notice") and self.around and self.shards is not None:
                tell(leader, Header(Kind.NOTICED, self.shards.epoch), self.around)
            case Kind.INITIALISE:
                assert self.shards is not None
                if self.shards.push_values(np.zeros_like(self.params)) is Status.OK:
                    tell(leader, Header(Kind.INITIALISED, header.epoch))
            case Kind.TRAIN if self.shards is not None and header.epoch == self.shards.epoch:
                self.leases.append(header)
                self._train(leader, header, self.shards)
            case Kind.EVALUATE if self.shards is not None and header.epoch == self.shards.epoch:
                if self._pull(leader, header, self.shards):
                    where = {"iteration": header.iteration, "interval": header.interval}
                    sums = {"loss": float(header.interval.size * header.iteration)}
                    tell(leader, Header(Kind.EVALUATED, header.epoch, **where), {"sums": sums})  # type: ignore[arg-type]
                    self._ask(leader, None)
        return True

    def _ask(self, leader: Connection, done: dict[str, Any] | None) -> None:
        assert self.shards is not None
        tell(leader, Header(Kind.ASK, self.shards.epoch), done)

    def _pull(self, leader: Connection, lease: Header, shards: Shards) -> bool:
        status = pull(shards, lease.iteration, lease.ticket, self.params)
        if status is Status.OK:
            assert (self.params == self.params[0]).all(), f"mixed versions at {lease.iteration}"
        elif status in (Status.CALLED_BACK, Status.GONE):
            self._ask(leader, None)
        return status is Status.OK

    def _train(self, leader: Connection, lease: Header, shards: Shards) -> None:
        if not self._pull(leader, lease, shards):
            return
        t, interval = lease.iteration, lease.interval
        if self._bad(t, interval):
            bad = Header(Kind.BAD, lease.epoch, iteration=t, interval=interval)
            tell(leader, bad, {"what": "NaN"})
            self._ask(leader, None)
            return
        self._ask(
            leader,
            {"iteration": t, "lo": interval.lo, "hi": interval.hi, "loss": float(interval.size)},
        )
        gradient = np.full_like(self.params, interval.size)
        if push(shards, t, interval, gradient) is Status.OK:
            pushed = Header(Kind.PUSHED, lease.epoch, iteration=t, interval=interval)
            tell(leader, pushed, {"push_s": 0.0, **self.around})

    def _real_map(self, meta: dict[str, Any]) -> list[dict[str, Any]]:
        return [s | {"port": self._real[s["port"]]} for s in meta["shards"]]

    def _start_trainer(self) -> StartTrainer:
        return StartTrainer(
            job=JOB,
            document=self.message.document,
            term=self.message.term,
            worker=self.worker,
            leader=self.message.shards[0],
            secret=SECRET,
        )


async def _end_all_others() -> None:
    """Cancel what is still under way in this loop: one that is closed over it leaves it to whoever collects garbage."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
