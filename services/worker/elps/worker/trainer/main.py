"""The trainer's main loop: ask the leader for a lease, pull, compute, push, ask again."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from elps.contracts.epoch import NO_EPOCH, Epoch
from elps.contracts.errors import ElpsError, ProtocolError, TaskError
from elps.contracts.messages import StartTrainer
from elps.contracts.texts import shortened
from elps.runtime.emulating import Machine
from elps.stream.interval import Interval
from elps.tasks.opening import open_job
from elps.tasks.running import OpenJob
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import Flag, Header, Kind, Status
from elps.worker.trainer.gradient import Gradient
from elps.worker.trainer.inbox import Inbox
from elps.worker.trainer.noticing import Noticing
from elps.worker.trainer.reaching import (
    Ahead,
    CalledAway,
    ShardUnreachable,
    StaleTerm,
    places_of,
    reach,
)
from elps.worker.trainer.shards import Shards
from elps.worker.trainer.warming import warm_up
from elps.worker.zygote.protocol import EXIT_CUT_OFF

LEADER_REACH_S = 20.0
LEADER_SILENT_S = 20.0
"""The leader speaks every 2 s to whoever waits for it; silence for this long means that it is gone."""
LEAVE_S = 0.5
"""How long one that is to end waits for the parameters of the lease in its hand; agents give it 1 s in all."""
MAX_TRACEBACK_CHARS = 20_000
MAX_LINE_CHARS = 2_000
"""Of each line of it, so that a message of any length hides none of the others."""

EXIT_DONE, EXIT_FAILED = 0, 1


def run(start: StartTrainer, env: Mapping[str, str]) -> int:
    """Train until the leader says stop; returns the exit code.

    0: nothing more to do. 1: the task failed, the leader has the traceback. 117: the leader or a shard is out of reach.
    """
    try:
        machine = Machine.of(env)
        leader = reach(
            start,
            start.leader.host,
            start.leader.port,
            f"leader {start.leader.shard}",
            "lease",
            LEADER_REACH_S,
        )
    except StaleTerm as error:
        _say(f"elps: not needed any more: {error}")
        return EXIT_DONE
    except ElpsError as error:
        _say(f"elps: {error}")
        return EXIT_CUT_OFF
    try:
        return _work(start, env, leader, machine)
    except StaleTerm as error:
        _say(f"elps: not needed any more: {error}")
        return EXIT_DONE
    except (ConnectionEnded, ProtocolError, TimeoutError, ShardUnreachable) as error:
        _say(f"elps: {error}")
        return EXIT_CUT_OFF
    finally:
        leader.close()


def _work(start: StartTrainer, env: Mapping[str, str], leader: Connection, machine: Machine) -> int:
    trainer = None
    try:
        job = open_job(start.document, env)
        trainer = Trainer(start, job, leader, machine)
        trainer.leave_when_told()
        if start.warm:
            trainer.warm_up()
        leader.send(
            Header(Kind.READY),
            {
                "samples": job.samples,
                "test_samples": job.test_samples,
                "layout": job.layout.to_wire(),
                "fingerprint": job.fingerprint,
                "code_hash": job.code_hash,
            },
        )
        try:
            while trainer.step():
                pass
        except _Leaving:
            trainer.say_goodbye()
        return EXIT_DONE
    except TaskError as error:
        where = trainer.where if trainer else f"worker {start.worker}, opening task and data"
        lines = f"{where}: {error}\n{_cause(error)}".splitlines()
        text = "\n".join(shortened(line, MAX_LINE_CHARS) for line in lines)
        text = shortened(text, MAX_TRACEBACK_CHARS)
        text = text.encode("utf-8", "backslashreplace").decode()  # else it could not be sent
        _say(text)
        leader.send(Header(Kind.FAILED), {"what": text.strip()})
        return EXIT_FAILED
    finally:
        if trainer is not None:
            trainer.close()


def _say(text: str) -> None:
    """To the job's log: what a trainer writes to its standard error goes there."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _cause(error: TaskError) -> str:
    """The traceback of the user's code, without the frames of elps above it."""
    if error.__cause__ is None:
        return ""
    return "".join(traceback.format_exception(error.__cause__))


class _Leaving(BaseException):
    """SIGTERM came and nothing of a lease is begun; no user's code may catch it."""


class Trainer:
    """One trainer process under one term."""

    def __init__(
        self, start: StartTrainer, job: OpenJob, leader: Connection, machine: Machine
    ) -> None:
        self._start, self._job, self._leader, self._machine = start, job, leader, machine
        self._inbox = Inbox(leader)
        self._noticing = Noticing()
        self._order = job.order()
        self._params = np.full(job.layout.size, 0, job.layout.dtype)  # its pages are there now
        self._gradient = Gradient(job, self._order)
        self._held = -1  #: version that `_params` holds whole; -1: none or a mixture
        self._shards: Shards | None = None
        self._ahead = Ahead(start)
        self._epoch: Epoch = NO_EPOCH
        self._free_at = time.perf_counter()  #: since when it only waits for a lease
        self._asking = False  #: waits for a lease
        self._leave_at: float | None = None  #: SIGTERM came; until when a lease in hand is finished
        self._waiting = False  #: for the leader: nothing would be lost by leaving now
        self._pulling = False  #: nothing of the lease in hand is begun
        self._closed = threading.Event()
        self.where = f"worker {start.worker}"  #: what it is at, for error messages

    def leave_when_told(self) -> None:
        """On SIGTERM finish the lease in hand, one on its way included, and go once the leader says stop.

        What is given back others would have to do besides. If that word, or the parameters, do not come soon: at once.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._told_to_leave)

    def _told_to_leave(self, *_: object) -> None:
        now = time.monotonic()
        if self._leave_at is None:
            self._leave_at = now + LEAVE_S
            threading.Thread(target=self._retire, daemon=True).start()
        if (self._waiting or self._pulling) and self._may_leave(now):
            raise _Leaving

    def _may_leave(self, now: float) -> bool:
        """Whether it need not wait for the lease in its hand, or for the leader's word that there is none."""
        assert self._leave_at is not None
        return now >= self._leave_at or not (self._asking or self._pulling)

    def _retire(self) -> None:
        """Have the leader count on this trainer no more; see to it that it goes."""
        self._tell(Header(Kind.RETIRING, self._epoch))
        if not self._closed.wait(LEAVE_S):
            os.kill(os.getpid(), signal.SIGTERM)

    @contextlib.contextmanager
    def _only_waiting(self) -> Iterator[None]:
        """Leave from here when told to, also when told a while ago."""
        self._waiting = True
        try:
            if self._leave_at is not None and self._may_leave(time.monotonic()):
                raise _Leaving
            yield
        finally:
            self._waiting = False

    def _tell(self, header: Header, meta: dict[str, Any] | None = None) -> None:
        """Send to the leader. Whether it is still there shows in what it says next, a reason to stop included."""
        with contextlib.suppress(ConnectionEnded):
            self._leader.send(header, meta)

    def warm_up(self) -> None:
        """Compute once for nothing; no parameters are held afterwards."""
        warm_up(self._job, self._order, self._params, self._gradient.flat)

    def close(self) -> None:
        """Hang up on the shards."""
        self._closed.set()
        self._noticing.close()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._shards is not None:
            self._shards.close()

    def say_goodbye(self) -> None:
        """Tell the leader that this is no death: nothing of the lease in hand was begun."""
        self._tell(Header(Kind.LEAVING, self._epoch), {"what": "its agent ends it"})

    def step(self) -> bool:
        """Do what the leader says next; False when it says stop."""
        with self._only_waiting():
            header, meta = self._inbox.take(LEADER_SILENT_S)
        try:
            return self._follow(header, meta)
        except CalledAway:
            self._held = -1
            self._hang_up()  # some were asked already, and their answers are on the way
            return True

    def _follow(self, header: Header, meta: dict[str, Any]) -> bool:
        match header.kind:
            case Kind.WAIT:
                if self._asking and meta.get("notice") is True:
                    around = self._noticing.waiting(self._machine.factor)
                    self._tell(Header(Kind.NOTICED, self._epoch), around)
                return True
            case Kind.STOP:
                _say(f"elps: stop: {meta.get('reason', '')}")
                return False
            case Kind.MAP:
                self._take_map(header, meta)
                return True
        if header.epoch != self._epoch or self._shards is None:
            return True  # of an epoch that is over: the map that follows tells more
        match header.kind:
            case Kind.INITIALISE:
                self._initialise(self._shards)
            case Kind.AHEAD:
                self._shards.connect_ahead(places_of(meta.get("shards")))
            case Kind.TRAIN:
                self._asking = False
                self._train(self._shards, header)
            case Kind.EVALUATE:
                self._asking = False
                self._evaluate(self._shards, header)
            case _:
                raise ShardUnreachable(f"the leader sent {header.kind.name}")
        return True

    def _take_map(self, header: Header, meta: dict[str, Any]) -> None:
        since, before, known = meta.get("since"), self._shards, self._epoch
        if header.epoch.term == known.term and header.epoch.n <= known.n:
            return  # known, or overtaken: to ask again would put a second lease into its hands
        same = header.epoch.term == known.term and isinstance(since, int) and since <= known.n
        shards = meta.get("shards")
        self._shards = Shards(
            self._start,
            header.epoch,
            shards if isinstance(shards, list) else [],
            self._job.layout.dtype.itemsize,
            self._inbox.called_away,
            self._ahead,
        )
        if before is not None and same:
            self._shards.take_over(before)
        elif before is not None:
            before.close()
        self._epoch = header.epoch
        self._shards.connect()
        if same and self._asking:
            return  # partitions lie elsewhere now, and nothing else is new
        if not same:
            self._held = -1
        self._ask(None)

    def _ask(self, done: dict[str, Any] | None) -> None:
        self._free_at, self._asking = time.perf_counter(), True
        self._tell(Header(Kind.ASK, self._epoch), done)

    def _initialise(self, shards: Shards) -> None:
        self.where = f"worker {self._start.worker}, computing the first parameters"
        status = shards.push_values(self._job.initial())
        if status is Status.OK:
            self._tell(Header(Kind.INITIALISED, self._epoch))

    def _pull(
        self, shards: Shards, version: int, ticket: int, *, newest: bool = False
    ) -> tuple[Status, float, float]:
        """Pull a version, or what is `newest` by then: that is never held, since more may have come."""
        if self._held == version and not newest:
            return Status.OK, 0.0, 0.0
        self._held = -1
        self._pulling = True
        flags = Flag.NEWEST if newest else Flag.NONE
        try:
            pulled = shards.pull(version, ticket, self._params, flags)
        finally:
            self._pulling = False
        if pulled.status is Status.OK:
            self._held = -1 if newest else version
        elif pulled.status in (Status.CALLED_BACK, Status.GONE):
            self._ask(None)
        return pulled.status, pulled.wait_s, pulled.pull_s

    def _train(self, shards: Shards, lease: Header) -> None:
        lease_s = time.perf_counter() - self._free_at
        t, interval = lease.iteration, lease.interval
        newest = self._start.document.bound is not None
        status, wait_s, pull_s = self._pull(shards, t, lease.ticket, newest=newest)
        if status is not Status.OK:
            return
        self.where = f"worker {self._start.worker}, iteration {t}, samples {interval}"
        began = time.perf_counter()
        with self._machine.computing():
            loss = self._gradient.compute(self._params, t, interval, shards)
        compute_s = time.perf_counter() - began
        if self._gradient.bad:
            self._gradient.drop()
            self._tell(
                Header(Kind.BAD, self._epoch, iteration=t, interval=interval),
                {"what": self._gradient.bad},
            )
            self._ask(None)
            return
        self._ask(
            {
                "iteration": t,
                "lo": interval.lo,
                "hi": interval.hi,
                "loss": loss if math.isfinite(loss) else None,
                "compute_s": compute_s,
                "pull_s": pull_s,
                "wait_s": wait_s,
                "lease_s": lease_s,
            }
        )
        began = time.perf_counter()
        if self._gradient.push() in (Status.OK, Status.REFUSED):
            push_s = time.perf_counter() - began
            around = self._noticing.now(self._machine.factor)
            self._tell(
                Header(Kind.PUSHED, self._epoch, iteration=t, interval=interval),
                {"push_s": push_s, **around},
            )
        self._free_at = time.perf_counter()

    def _evaluate(self, shards: Shards, lease: Header) -> None:
        version, part = lease.iteration, lease.interval
        status, _, _ = self._pull(shards, version, lease.ticket)
        if status is not Status.OK:
            return
        self.where = f"worker {self._start.worker}, evaluation of version {version}, samples {part}"
        sums = self._job.evaluate(self._params, part.lo, part.hi)
        shown = {n: v if math.isfinite(v) else None for n, v in sums.items()}
        self._tell(
            Header(
                Kind.EVALUATED, self._epoch, iteration=version, interval=Interval(part.lo, part.hi)
            ),
            {"sums": shown},
        )
        self._ask(None)
