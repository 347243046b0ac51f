"""The zygote's loop: fork on request, reap, tell, end with the agent."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from elps.contracts.errors import SetupError
from elps.runtime.processes import die_with_parent, name_thread
from elps.worker.zygote import child, linux
from elps.worker.zygote.preload import Trainer, preload, require_one_thread
from elps.worker.zygote.protocol import (
    Ended,
    Failed,
    Forked,
    ForkRequest,
    FromZygote,
    NotForked,
    Ready,
    SignalRequest,
    receive,
    send,
    to_zygote,
)

ORPHAN_S = 0.5
"""How long to wait for the end of a process that was sent SIGKILL."""
_OURS = {signal.SIGCHLD, signal.SIGTERM}


@dataclass(frozen=True)
class _Child:
    tag: int
    pid: int


def serve(control: socket.socket, agent: int, trainer: str, modules: Sequence[str]) -> int:
    """Be the zygote until the agent is gone; returns the exit code. `agent` is the process id of the parent."""
    die_with_parent(signal.SIGTERM)
    if os.getppid() != agent:
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    linux.adopt_orphans()
    name_thread("elps zygote")
    began = time.monotonic()
    try:
        run = preload(modules, trainer)
        return Zygote(control, run).serve(time.monotonic() - began)
    except SetupError as error:
        with contextlib.suppress(OSError):
            send(control, Failed(reason=str(error)))
        sys.stderr.write(f"zygote: {error}\n")
        return 1


class Zygote:
    """The loop and its children."""

    def __init__(self, control: socket.socket, run: Trainer) -> None:
        """Take the socket to the agent and the function that trainers run."""
        self._control = control
        self._run = run
        self._pid = os.getpid()
        #: By tag; the processes are not reaped, so their numbers cannot mean anyone else.
        self._children: dict[int, _Child] = {}
        self._ended = False
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_terminate)

    def serve(self, preloaded_s: float) -> int:
        """Serve until the agent closes the socket or is gone; then end all children."""
        try:
            self._tell(Ready(seconds=preloaded_s))
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            poll.register(self._woken, select.POLLIN)
            while not self._ended:
                ready = {descriptor for descriptor, _ in poll.poll()}
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._reap()
                if self._control.fileno() in ready:
                    self._take_request()
        finally:
            self._end_all()
        return 0

    def _on_terminate(self, *_: object) -> None:
        self._ended = True

    def _tell(self, message: FromZygote, descriptors: Sequence[int] = ()) -> None:
        try:
            send(self._control, message, descriptors)
        except OSError:
            self._ended = True

    # --- requests -----------------------------------------------------------------------------------------------------

    def _take_request(self) -> None:
        try:
            received = receive(self._control, to_zygote)
        except ConnectionError:
            received = None
        if received is None:
            self._ended = True
            return
        request, descriptors = received
        if isinstance(request, ForkRequest):
            self._fork(request, descriptors)
        else:
            self._signal(request)

    def _fork(self, request: ForkRequest, descriptors: Sequence[int]) -> None:
        try:
            require_one_thread("something in the zygote")
            sys.stdout.flush()
            sys.stderr.flush()
            # The child must not take a signal with the zygote's handlers.
            signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
            pid = os.fork()
            if pid == 0:
                self._live(request, descriptors)
        except (OSError, SetupError) as error:
            self._tell(NotForked(tag=request.tag, reason=str(error)))
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
            for descriptor in descriptors:
                os.close(descriptor)
        self._children[request.tag] = _Child(request.tag, pid)
        pidfd = os.pidfd_open(pid)
        try:
            self._tell(Forked(tag=request.tag, pid=pid), [pidfd])
        finally:
            os.close(pidfd)

    def _live(self, request: ForkRequest, descriptors: Sequence[int]) -> NoReturn:
        child.live(request, descriptors, self._control, self._pid, self._run)

    def _signal(self, request: SignalRequest) -> None:
        if (it := self._children.get(request.tag)) is None:
            return
        os.kill(it.pid, request.signal)
        if request.signal == signal.SIGKILL:
            _kill_session(it.pid)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for it in list(self._children.values()):
            if os.waitid(os.P_PID, it.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._bury(it)
        self._end_orphans()

    def _bury(self, it: _Child) -> None:
        """End what the trainer leaves behind while its number still is its own, then reap and tell."""
        _kill_session(it.pid)
        _, status, usage = os.wait4(it.pid, 0)
        del self._children[it.tag]
        self._end_orphans()
        self._tell(Ended(tag=it.tag, status=status, max_rss_bytes=usage.ru_maxrss * 1024))

    def _end_orphans(self) -> None:
        """End adopted processes: a living trainer adopts its own, so these come from trainers that are gone.

        One that the kernel cannot end in time is reaped when it tells of its end.
        """
        trainers = {it.pid for it in self._children.values()}
        for pid in linux.children_of_this_thread():
            if pid not in trainers:
                os.kill(pid, signal.SIGKILL)
                pidfd = os.pidfd_open(pid)
                select.select([pidfd], [], [], ORPHAN_S)
                os.close(pidfd)
                os.waitpid(pid, os.WNOHANG)

    def _end_all(self) -> None:
        for it in self._children.values():
            os.kill(it.pid, signal.SIGKILL)
            _kill_session(it.pid)
        for it in list(self._children.values()):
            os.waitpid(it.pid, 0)
        self._children.clear()
        while linux.children_of_this_thread():
            self._end_orphans()


def _kill_session(pid: int) -> None:
    """Kill the process group that a trainer leads, if it has got so far as to have one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
