"""Carries out what the roster decides: the zygote, the trainers' processes, their exits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from elps.contracts.codec import encode
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId, id_problem, worker_id_problem
from elps.contracts.messages import StartTrainer, StopTrainer, TrainerStatus
from elps.runtime.processes import describe_exit, rss_bytes
from elps.runtime.service import Clock
from elps.worker.agent.log_file import LogFile, log_path
from elps.worker.agent.output import TrainerOutput
from elps.worker.agent.zygote_link import ZygoteLink, wait_for_exit
from elps.worker.core.commands import (
    BeatNow,
    Command,
    Fork,
    Kill,
    ReplaceZygote,
    Terminate,
    TrainerKey,
)
from elps.worker.core.roster import Roster
from elps.worker.settings import Settings
from elps.worker.zygote.protocol import (
    EXIT_CUT_OFF,
    Began,
    Ended,
    Failed,
    Forked,
    FromZygote,
    NotForked,
    Ready,
)

log = structlog.get_logger(__name__)

TRAINER = "elps.worker.trainer.main:run"
EXIT_LINES = 20
"""Lines of a trainer's standard error that its exit is reported with."""
ORPHAN_S = 2.0
"""How long a trainer may outlive its zygote; the kernel ends it with it."""
RETRY_S, MAX_RETRY_S = 0.2, 10.0
"""Wait before a new zygote; doubled for each one that did not get ready."""
MOST_DOUBLED = 10
"""Doublings after which the longest wait is reached for long, and a larger power would be no number any more."""


@dataclass
class _Process:
    """A trainer that was asked of a zygote and is not known to be gone."""

    key: TrainerKey
    output: TrainerOutput
    #: -1 until the zygote told of the fork.
    pidfd: int = -1


class Trainers:
    """All trainers of the agent. Everything happens on the event loop; nothing here blocks it."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        env: Mapping[str, str],
        changed: Callable[[], None],
        *,
        trainer: str = TRAINER,
        preload: Sequence[str] = (),
    ) -> None:
        """`changed` is called when the beat would show something new; `trainer` is what the zygote runs."""
        self._settings = settings
        self._clock = clock
        self._env = env
        self._changed = changed
        self._trainer = trainer
        self._preload = preload
        self._roster = Roster(
            settings.agent,
            settings.worker_slots,
            stop_grace_s=settings.stop_grace_s,
            leave_grace_s=settings.leave_grace_s,
        )
        self._link: ZygoteLink | None = None
        #: Of the current link only; a tag is never used twice.
        self._processes: dict[int, _Process] = {}
        self._last_tag = 0
        #: Forks asked for while there is no zygote.
        self._backlog: list[Fork] = []
        #: Of trainers that are gone, until `take_printed`.
        self._finished: list[TrainerOutput] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._deadline_moved = asyncio.Event()

    # --- what the agent asks ------------------------------------------------------------------------------------------

    def start(self, command: StartTrainer) -> None:
        """The scheduler wants a trainer; raises `InvalidDocument` for ids that are not fit to be file names."""
        _check_ids(command)
        self._carry_out(self._roster.start(command, self._clock.monotonic()))

    def stop(self, command: StopTrainer) -> None:
        """The scheduler wants a trainer ended and forgotten."""
        _check_ids(command)
        self._carry_out(self._roster.stop(command, self._clock.monotonic()))

    async def leave(self) -> None:
        """Start no trainer any more, end those that run, return when they are gone."""
        self._carry_out(self._roster.leave(self._clock.monotonic()))
        if self._link and not self._link.ready:
            self._link.kill(
                "the agent leaves"
            )  # nothing runs yet, and its imports need not be waited for
        await self._idle.wait()

    @property
    def leaving(self) -> bool:
        """Whether the agent is about to go."""
        return self._roster.leaving

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the zygote, None while there is none."""
        return self._link.pid if self._link else None

    def of(self, job: JobId) -> list[TrainerStatus]:
        """The trainers of a job that are here, ended ones included that the beat still shows."""
        return [status for status in self._roster.statuses() if status.job == job]

    def statuses(self) -> list[TrainerStatus]:
        """What the beat shows."""
        return [
            msgspec.structs.replace(s, rss_bytes=rss_bytes(s.pid))
            if s.pid and s.state != "exited"
            else s
            for s in self._roster.statuses()
        ]

    def take_printed(self) -> list[tuple[TrainerKey, list[str]]]:
        """What trainers printed since the last call."""
        printed = [(o.key, o.finish()) for o in self._finished]
        self._finished.clear()
        printed += [(p.key, p.output.take()) for p in self._processes.values()]
        return [(key, lines) for key, lines in printed if lines]

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def keep_zygote(self) -> None:
        """Have a zygote at all times, until cancelled; then end it and all its children."""
        failures = 0
        while True:
            try:
                link = self._link = ZygoteLink(self._trainer, self._preload, self._env)
            except OSError as error:  # no memory, process or descriptor is free: others free some
                failures += 1
                log.error("zygote_not_started", error=str(error), in_a_row=failures)
            else:
                how = await self._keep(link)
                failures = 0 if link.ready else failures + 1
                log.error("zygote_ended", pid=link.pid, how=how, in_a_row=failures)
            await asyncio.sleep(min(RETRY_S * 2 ** min(failures, MOST_DOUBLED), MAX_RETRY_S))

    async def _keep(self, link: ZygoteLink) -> str:
        """Work with a zygote until it is gone, with all its children; how it ended."""
        try:
            await self._follow(link)
        finally:
            self._link = None
            how = await asyncio.shield(asyncio.ensure_future(link.end()))
            await self._bury_all(f"the parent process of the trainers ended: {how}")
        return how

    async def keep_time(self) -> None:
        """Have the roster act at its deadlines, until cancelled."""
        while True:
            self._deadline_moved.clear()
            deadline = self._roster.next_deadline()
            wait_s = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
            try:
                async with asyncio.timeout(wait_s):
                    await self._deadline_moved.wait()
            except TimeoutError:
                self._carry_out(self._roster.tick(self._clock.monotonic()))

    # --- commands of the roster ---------------------------------------------------------------------------------------

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Fork():
                    self._fork(command)
                case Terminate(key):
                    self._signal(key, signal.SIGTERM)
                case Kill(key):
                    self._signal(key, signal.SIGKILL)
                case ReplaceZygote(reason):
                    if self._link and self._link.ready:
                        self._link.kill(reason)
                case BeatNow():
                    self._changed()
        self._deadline_moved.set()
        if self._roster.processes():
            self._idle.clear()
        else:
            self._idle.set()

    def _fork(self, command: Fork) -> None:
        key = command.key
        if self._link is None:
            self._backlog.append(command)
            return
        self._last_tag += 1
        try:
            output, errors = self._link.fork(self._last_tag, key.worker, encode(command.start))
        except OSError as error:
            log.error("trainer_not_started", job=key.job, worker=key.worker, error=str(error))
            self._carry_out(
                self._roster.exited(key, f"could not be started: {error}", self._clock.monotonic())
            )
            return
        file = None
        if self._settings.log_dir:
            path = log_path(self._settings.log_dir, key.job, key.worker)
            file = LogFile(path, self._settings.log_max_bytes)
        self._processes[self._last_tag] = _Process(
            key, TrainerOutput(key, output, errors, self._clock, file)
        )

    def _signal(self, key: TrainerKey, number: signal.Signals) -> None:
        log.info("trainer_signalled", job=key.job, worker=key.worker, signal=number.name)
        for tag, process in self._processes.items():
            if process.key == key and self._link:
                self._link.signal(tag, number)
                return
        for waiting in [w for w in self._backlog if w.key == key]:
            self._backlog.remove(waiting)
            self._carry_out(
                self._roster.exited(key, "ended before it was started", self._clock.monotonic())
            )

    # --- events of the zygote -----------------------------------------------------------------------------------------

    async def _follow(self, link: ZygoteLink) -> None:
        """Take in what a zygote says until it is gone."""
        hung = asyncio.get_running_loop().call_later(
            self._settings.preload_s,
            link.kill,
            f"its imports took more than {self._settings.preload_s:g} s",
        )
        backlog, self._backlog = self._backlog, []
        for waiting in backlog:
            self._fork(waiting)
        try:
            async for message, descriptors in link.messages():
                if isinstance(message, Ready):
                    hung.cancel()
                self._take_in(message, descriptors)
        finally:
            hung.cancel()

    def _take_in(self, message: FromZygote, descriptors: Sequence[int]) -> None:
        match message:
            case Ready(seconds=seconds):
                log.info("zygote_ready", seconds=round(seconds, 3))
            case Failed(reason=reason):
                log.error("zygote_failed", reason=reason)
            case Forked(tag=tag, pid=pid):
                process = self._processes[tag]
                (process.pidfd,) = descriptors
                self._carry_out(self._roster.forked(process.key, pid))
            case Began(tag=tag, pid=pid):
                self._carry_out(self._roster.began(self._processes[tag].key, pid))
            case NotForked(tag=tag, reason=reason):
                self._bury(tag, f"could not be forked: {reason}")
            case Ended(tag=tag, status=status):
                code = os.waitstatus_to_exitcode(status)
                self._bury(tag, describe_exit(code), done=code == 0, cut_off=code == EXIT_CUT_OFF)

    def _bury(self, tag: int, how: str, *, done: bool = False, cut_off: bool = False) -> None:
        """A trainer is gone: read its last words and tell the roster."""
        process = self._processes.pop(tag)
        if process.pidfd >= 0:
            os.close(process.pidfd)
        process.output.read_out()
        process.output.say(how)
        self._finished.append(process.output)
        errors = process.output.last_errors(EXIT_LINES)
        log.info("trainer_exited", job=process.key.job, worker=process.key.worker, how=how)
        text = f"{how}\n{errors}" if errors else how
        now = self._clock.monotonic()
        self._carry_out(self._roster.exited(process.key, text, now, done=done, cut_off=cut_off))

    async def _bury_all(self, how: str) -> None:
        """The zygote is gone, and its children with it: the kernel sees to that, and this makes sure."""
        for tag, process in list(self._processes.items()):
            if process.pidfd >= 0:
                _kill_session(process.pidfd)
                if not await wait_for_exit(process.pidfd, ORPHAN_S):
                    log.error("trainer_not_ended", worker=process.key.worker, how=how)
            self._bury(tag, how)


def _kill_session(pidfd: int) -> None:
    """Kill a process and the process group that it leads or led, which the pidfd names without doubt."""
    for flags in (0, _PROCESS_GROUP):
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL, None, flags)
        except ProcessLookupError:
            pass
        except OSError as error:  # a kernel before 6.9 does not know the flag
            log.debug("process_group_not_killed", error=str(error))


_PROCESS_GROUP = 1 << 2
"""PIDFD_SIGNAL_PROCESS_GROUP."""


def _check_ids(command: StartTrainer | StopTrainer) -> None:
    problems = []
    if problem := id_problem(command.job):
        problems.append(f"job: {problem}")
    if problem := worker_id_problem(command.worker):
        problems.append(f"worker: {problem}")
    if problems:
        raise InvalidDocument("command", problems)
