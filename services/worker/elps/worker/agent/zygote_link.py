"""The agent's side of one zygote process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence

import structlog

from elps.runtime.processes import describe_exit
from elps.worker.zygote.preload import ONE_THREAD
from elps.worker.zygote.protocol import (
    Failed,
    ForkRequest,
    FromZygote,
    Ready,
    SignalRequest,
    ToZygote,
    from_zygote,
    receive,
    send,
)

log = structlog.get_logger(__name__)

END_S = 5.0
"""How long a zygote may take to end its children and itself once its socket is closed."""
NOT_FOR_TRAINERS = ("ELPS_AMQP_URL", "ELPS_REDIS_URL")
"""Variables that may hold passwords and that no trainer needs."""


class ZygoteLink:
    """One zygote, from its start to its end. All descriptors handed over are owned, and closed, by the link."""

    def __init__(self, trainer: str, modules: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the process; it imports `modules` and the trainer's, given as ``module:function``, and serves then.

        `OSError` when the machine has no memory, process or descriptor for it.
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Requests stay in the socket while the zygote still imports; -P: nothing of the working directory is code.
            command = [sys.executable, "-P", "-m", "elps.worker.zygote"]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid()), trainer, *modules],
                env={k: v for k, v in env.items() if k not in NOT_FOR_TRAINERS} | ONE_THREAD,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._pidfd = _pidfd_of(self._process)
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._control.setblocking(False)
        self._outbox: deque[tuple[ToZygote, tuple[int, ...]]] = deque()
        self._failure = ""
        self._open = True
        self.ready = False

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def fork(self, tag: int, name: str, encoded_start: bytes) -> tuple[int, int]:
        """Ask for a trainer; returns the descriptors from which to read its standard output and error."""
        opened: list[int] = []
        try:
            output, output_end = os.pipe2(os.O_CLOEXEC)
            opened += [output, output_end]
            errors, errors_end = os.pipe2(os.O_CLOEXEC)
            opened += [errors, errors_end]
            start = os.memfd_create("start", os.MFD_CLOEXEC)
            opened.append(start)
            _write_all(start, encoded_start)
            os.set_blocking(output, False)
            os.set_blocking(errors, False)
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        self._post(ForkRequest(tag=tag, name=name), (output_end, errors_end, start))
        return output, errors

    def signal(self, tag: int, number: signal.Signals) -> None:
        """Have a signal sent to a trainer; after a request to fork it, it comes after the fork."""
        self._post(SignalRequest(tag=tag, signal=number))

    async def messages(self) -> AsyncIterator[tuple[FromZygote, list[int]]]:
        """What the zygote says, with the descriptors, until it is gone."""
        while True:
            try:
                received = receive(self._control, from_zygote)
            except BlockingIOError:
                await _readable(self._control.fileno())
                continue
            except ConnectionResetError:
                continue  # told once, when it ended without reading all requests; its last messages still follow
            if received is None:
                return
            message, descriptors = received
            if isinstance(message, Ready):
                self.ready = True
            elif isinstance(message, Failed):
                self._failure = message.reason
            yield message, descriptors

    def hang_up(self) -> None:
        """Close the conversation: the zygote ends its children and itself, `messages` comes to its end."""
        if self._open:
            try:
                self._control.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("zygote_gone_already", pid=self.pid)

    def kill(self, why: str) -> None:
        """End the zygote at once; its children go with it."""
        log.warning("zygote_killed", pid=self.pid, reason=why)
        self._failure = self._failure or why
        self._process.kill()

    async def end(self) -> str:
        """Wait for the process to end, kill it when it does not; say why it ended. The link is closed afterwards."""
        self.hang_up()
        try:
            async with asyncio.timeout(END_S):
                await _readable(self._pidfd)
        except TimeoutError:
            self.kill(f"did not end within {END_S:g} s")
            await _readable(self._pidfd)
        finally:
            self._close()
        how = describe_exit(self._process.wait())
        return f"{how}: {self._failure}" if self._failure else how

    # --- inside -------------------------------------------------------------------------------------------------------

    def _post(self, message: ToZygote, descriptors: tuple[int, ...] = ()) -> None:
        self._outbox.append((message, descriptors))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                if self._open:
                    send(self._control, message, descriptors)
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(self._control.fileno(), self._flush)
                return
            except ConnectionError:
                log.debug(
                    "zygote_gone_already", pid=self.pid
                )  # `messages` ends, and whoever reads it takes care
            self._outbox.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        if self._open:
            asyncio.get_running_loop().remove_writer(self._control.fileno())

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._control.fileno())
        self._open = False
        self._control.close()
        os.close(self._pidfd)
        self._flush()


def _pidfd_of(process: subprocess.Popen[bytes]) -> int:
    """A descriptor of a child; a child for which there is none is ended."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


async def _readable(descriptor: int) -> None:
    """Wait until there is something to read, or an end."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def wait_for_exit(pidfd: int, timeout_s: float) -> bool:
    """Wait until the process of a pidfd is gone; False when the time passed first."""
    try:
        async with asyncio.timeout(timeout_s):
            await _readable(pidfd)
    except TimeoutError:
        return False
    return True
