"""What a change of size costs a job under torchrun, which restarts all of its workers: beside `bench_elastic.py`.

Measured only where torch can be imported; it is no dependency. A worker is an agent of its own, and a loop that adds up
a gradient over all workers (gloo) and takes a step. What is told is the time from the last iteration at one size to the
first one at the next; that a restarted job also loads a checkpoint, and repeats what came after it, is not counted.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import arguments, emit, say

from elps.local.ports import free_ports

EVEN = 20
"""Iterations at rest before and after a change."""
WAIT_S = 180.0
LAST_CALL_S = 1
"""How long a rendezvous that has its least number of workers waits for more; 30 by default, which all would wait."""


def train(log: str, elements: int) -> None:
    """A worker of torchrun: iterations until it is ended; the first of them tells of each."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    values, gradient = torch.zeros(elements), torch.empty(elements)
    with Path(log).open("a", buffering=1) as file:
        while True:
            gradient.fill_(1e-6)
            dist.all_reduce(gradient)
            values.add_(gradient, alpha=-0.01)
            if dist.get_rank() == 0:
                file.write(f"{time.time()} {dist.get_world_size()}\n")


class Job:
    """A job under torchrun, with one agent for each worker."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._log, self._elements = folder / f"log-{megabytes}", megabytes * 250_000
        self._said = folder / f"said-{megabytes}"
        self._port = free_ports(1)[0]
        self._agents: list[subprocess.Popen[bytes]] = []
        self._log.touch()

    def add(self) -> None:
        """Another worker joins."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2:3"]
        command += ["--nproc-per-node=1", "--rdzv-backend=c10d", "--max-restarts=100"]
        command += [f"--rdzv-endpoint=127.0.0.1:{self._port}", "--rdzv-id=bench"]
        command += ["--monitor-interval=0.1", f"--rdzv-conf=last_call_timeout={LAST_CALL_S}"]
        command += [__file__, "--train", str(self._log), str(self._elements)]
        # Without the second one, version 2.13 hangs when a worker joins: its agents look in different stores.
        env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with self._said.open("ab") as said:
            self._agents.append(
                subprocess.Popen(command, env=env, stdout=said, stderr=said, start_new_session=True)
            )

    def leave(self) -> None:
        """The worker that came last goes, in order."""
        self._agents[-1].send_signal(signal.SIGTERM)
        self._agents.pop().wait(WAIT_S)

    def rows(self) -> list[tuple[float, int]]:
        """When each iteration was done, and by how many."""
        lines = self._log.read_text().splitlines(keepends=True)
        fields = [line.split() for line in lines if line.endswith("\n")]
        return [(float(at), int(workers)) for at, workers in fields]

    def wait(self, workers: int) -> None:
        """Until it has made iterations with so many, and no other number since."""
        deadline = time.monotonic() + WAIT_S
        while {w for _, w in self.rows()[-EVEN:]} != {workers} or len(self.rows()) < EVEN:
            if time.monotonic() > deadline:
                end = self._said.read_text(errors="replace")[-2000:]
                raise TimeoutError(f"no iterations with {workers} within {WAIT_S:g} s: {end}")
            time.sleep(0.1)

    def close(self) -> None:
        """End all of it."""
        for agent in self._agents:
            agent.terminate()
        for agent in self._agents:
            try:
                agent.wait(20.0)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


def change(job: Job, act: Callable[[], None], workers: int, name: str, megabytes: int) -> None:
    """Change the number of workers, and tell what it cost."""
    say(f"torchrun: {megabytes} MB, {name}")
    asked_at = time.time()
    act()
    job.wait(workers)
    rows = job.rows()
    first = next(n for n, (at, w) in enumerate(rows) if at > asked_at and w == workers)
    usual = statistics.median(
        b[0] - a[0] for a, b in zip(rows[-EVEN:], rows[-EVEN + 1 :], strict=False)
    )
    seconds = rows[first][0] - rows[first - 1][0] - usual
    emit(
        f"elastic.{name}.by_torchrun",
        seconds * 1e3,
        "ms",
        ratio=seconds / usual,
        to="an iteration of the same job under torchrun, whose workers all start again",
        done_in_s=rows[first][0] - asked_at,
        iteration_ms=usual * 1e3,
        megabytes=megabytes,
        torch=importlib.import_module("torch").__version__,
    )


def measure(folder: Path, megabytes: int) -> None:
    """One size of model."""
    job = Job(folder, megabytes)
    try:
        job.add()
        job.add()
        job.wait(2)
        change(job, job.add, 3, "workers_2_to_3", megabytes)
        change(job, job.leave, 2, "workers_3_to_2", megabytes)
    finally:
        job.close()


def main() -> None:
    """Run all, where torch is there."""
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]))
        return
    options = arguments(__doc__ or "")
    if importlib.util.find_spec("torch") is None:
        print(json.dumps({"name": "elastic.by_torchrun", "skipped": "torch is not installed"}))
        return
    with tempfile.TemporaryDirectory(prefix="elps-bench-") as folder:
        for megabytes in (1, 16, 64) if options.full else (1, 16):
            measure(Path(folder), megabytes)


if __name__ == "__main__":
    main()
