"""Facts about processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elps.runtime.processes import describe_exit, name_thread, rss_bytes


@pytest.mark.parametrize(
    ("returncode", "text"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "signal 9 (SIGKILL)"),
        (-15, "signal 15 (SIGTERM)"),
        (-99, "signal 99"),
    ],
)
def test_an_exit_is_described_for_people(returncode: int, text: str) -> None:
    assert describe_exit(returncode) == text


def test_a_wait_status_is_described_after_conversion() -> None:
    assert describe_exit(os.waitstatus_to_exitcode(signal.SIGSEGV)) == "signal 11 (SIGSEGV)"


def test_resident_memory_is_plausible_and_0_for_nobody() -> None:
    assert 5_000_000 < rss_bytes() < 100_000_000_000
    assert rss_bytes(os.getppid()) > 0
    assert rss_bytes(2**22 + 1) == 0


def test_a_thread_is_named_for_the_kernel_too() -> None:
    names = []

    def work() -> None:
        name_thread("data-receiver-of-shard-1")
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()
        names.extend([threading.current_thread().name, comm])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert names == ["data-receiver-of-shard-1", "data-receiver-o"]


PARENT = """
import os, sys, time
from elps.runtime.processes import die_with_parent
if os.fork() == 0:
    die_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(60)
else:
    sys.stdin.readline()
"""


def test_a_child_that_asked_for_it_ends_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    pidfd = os.pidfd_open(child)
    parent.kill()
    parent.wait()
    parent.stdout.read()  # ends when the child, which holds the pipe as well, is gone
    os.close(pidfd)
    parent.stdout.close()
    assert parent.stdin is not None
    parent.stdin.close()
