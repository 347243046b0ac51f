"""A trainer that does what `task_args["script"]` of its job says, in place of the real one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from elps.contracts.messages import StartTrainer


def run(start: StartTrainer, env: dict[str, str]) -> int:
    script = start.document.task_args["script"]
    return int(globals()[f"_{script}"](start, env) or 0)


def _exit(start: StartTrainer, env: dict[str, str]) -> int:
    print("hello from", start.worker)
    print("to stderr", file=sys.stderr)
    return int(start.document.task_args["code"])


def _sys_exit(start: StartTrainer, env: dict[str, str]) -> None:
    sys.exit("a reason")


def _raise(start: StartTrainer, env: dict[str, str]) -> None:
    for n in range(50):
        print(f"line {n}", file=sys.stderr)
    raise ValueError("the loss is a banana")


def _segfault(start: StartTrainer, env: dict[str, str]) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def _wait(start: StartTrainer, env: dict[str, str]) -> None:
    time.sleep(600)


def _busy(start: StartTrainer, env: dict[str, str]) -> int:
    """Compute in pure Python, and let go of the interpreter at no time for longer than that takes by itself."""
    until = time.monotonic() + float(start.document.task_args["seconds"])
    turns = 0
    while time.monotonic() < until:
        turns += sum(range(1000))
    print("computed")
    return 0


def _finish_on_terminate(start: StartTrainer, env: dict[str, str]) -> int:
    done = []
    signal.signal(signal.SIGTERM, lambda *_: done.append(1))
    print("ready")
    while not done:
        time.sleep(0.01)
    print("gave back")
    return 0


def _ignore(start: StartTrainer, env: dict[str, str]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready")
    time.sleep(600)


def _flood(start: StartTrainer, env: dict[str, str]) -> int:
    """Print about a GB, then a last word."""
    chunk = ("x" * 99 + "\n") * 10_000
    for _ in range(int(start.document.task_args["chunks"])):
        sys.stdout.write(chunk)
    print("last word", file=sys.stderr)
    return 4


def _descendants(start: StartTrainer, env: dict[str, str]) -> None:
    """Leave a child in the group, one in a session of its own, and one whose parent is gone."""
    nap = [sys.executable, "-c", "import time; time.sleep(600)"]
    for new_session in (False, True):
        child = subprocess.Popen(nap, start_new_session=new_session)
        print("child", child.pid)
    orphan = (
        "import subprocess, sys; "
        f"print('child', subprocess.Popen({nap!r}, start_new_session=True).pid, flush=True)"
    )
    subprocess.run([sys.executable, "-c", orphan], check=True)
    print("ready")
    time.sleep(600)


def _tell(start: StartTrainer, env: dict[str, str]) -> int:
    """Print what this process was given."""
    import numpy as np

    print("fds", sorted(int(p.name) for p in Path("/proc/self/fd").iterdir())[:4])
    print("threads", len(list(Path("/proc/self/task").iterdir())))
    print("session", os.getsid(0) == os.getpid())
    print("amqp", "ELPS_AMQP_URL" in env)
    print("blas", env.get("OPENBLAS_NUM_THREADS"))
    print("random", random.random(), np.random.random())  # noqa: NPY002 - the global ones are meant
    print("term", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    print("mask", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    print("path", "" in sys.path, str(Path.cwd()) in sys.path)
    print("args", len(start.document.task_args.get("pad", "")))
    return 0
