"""The life of a trainer process between the fork and its end. Nothing here returns to the zygote."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from elps.contracts.codec import decode
from elps.contracts.messages import StartTrainer
from elps.runtime.processes import die_with_parent, name_thread
from elps.worker.zygote import linux
from elps.worker.zygote.preload import Trainer
from elps.worker.zygote.protocol import Began, ForkRequest, send

ORPHANED = 113
"""Exit code of a trainer whose zygote was gone before it could ask to be ended with it."""
OOM_SCORE = 300
"""Out of memory, the kernel shall end a trainer, which is replaced, before the zygote, the agent or the broker."""


def live(
    request: ForkRequest,
    descriptors: Sequence[int],
    control: socket.socket,
    zygote: int,
    run: Trainer,
) -> NoReturn:
    """Be a trainer: set the process up, run the trainer's function, exit with its result.

    Called right after the fork with all signals of the zygote blocked. An exception's traceback goes to standard error.
    """
    code = 1
    try:
        start = _take_descriptors(descriptors)
        os.setsid()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != zygote:
            os._exit(ORPHANED)
        linux.adopt_orphans()
        name_thread(f"elps {request.name}")
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
        if numpy_random := sys.modules.get("numpy.random"):
            numpy_random.seed()  # else all trainers would draw the same from numpy's global generator
        _reset_signals()
        send(control, Began(tag=request.tag, pid=os.getpid()))
        control.close()  # the object too: closed later by its finalizer it would close whoever has its number by then
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        faulthandler.enable()
        code = run(decode(start, StartTrainer), dict(os.environ))
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:  # noqa: BLE001 - not hidden: printed, and the exit code tells
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _exit_code(end: SystemExit) -> int:
    """What the interpreter would make of it."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _take_descriptors(descriptors: Sequence[int]) -> bytes:
    """Put output where it belongs and return the encoded `StartTrainer`."""
    output, errors, start = descriptors
    os.dup2(output, 1)
    os.dup2(errors, 2)
    # New objects: those of the zygote remember what its descriptors were (whether one can seek, say).
    sys.stdout = _writer(1, "replace")
    sys.stderr = _writer(2, "backslashreplace")
    with open(start, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _writer(descriptor: int, errors: str) -> TextIO:
    """Text in UTF-8, out with every line."""
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors=errors, closefd=False)
