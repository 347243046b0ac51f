"""Processes that were started, as the local stack looks at them."""

from __future__ import annotations

import subprocess
import sys

from elps.local import processes

FIRST_THREAD_ENDS = """
import ctypes, sys, threading
sys.stdin.readline()
threading.Thread(target=sys.stdin.readline).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_one_of_which_only_the_first_thread_has_ended_runs_on() -> None:
    """A server that is killed is like that for a moment, and its port is not free yet."""
    argv = [sys.executable, "-c", FIRST_THREAD_ENDS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        handle = processes.handle_of("ending", process.pid)
        assert handle is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert processes.wait_until(lambda: processes._stat(process.pid)[0] == "Z", 20.0)  # type: ignore[index]
        assert processes.is_alive(handle)
        process.communicate(b"\n", timeout=20)
        assert not processes.is_alive(handle)
