"""A trainer process that its agent ends while the job trains."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elps.contracts.codec import encode
from elps.contracts.ids import WorkerId
from elps.contracts.job import Batch, Checkpoint, Data, Evaluate, JobDocument
from elps.contracts.messages import HostJob, StartTrainer

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import eventually
from hosted import JOB, SECRET, Stack

RUN = """
import sys
from elps.contracts.codec import decode
from elps.contracts.messages import StartTrainer
from elps.worker.trainer.main import run
sys.exit(run(decode(sys.stdin.buffer.read(), StartTrainer), {}))
"""
END_S = 30.0
"""Bounds a wait; what is waited for takes a fraction of a second."""


class Trainers:
    """Trainer processes of one job."""

    def __init__(self, stack: Stack, doc: JobDocument) -> None:
        self.stack = stack
        self.message: HostJob = stack.host(doc, workers=2)
        self.processes = [self._start(n) for n in (1, 2)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        start = StartTrainer(
            job=JOB,
            document=self.message.document,
            term=self.message.term,
            worker=WorkerId(f"job-w{number}"),
            leader=self.message.shards[0],
            secret=SECRET,
        )
        process = subprocess.Popen([sys.executable, "-c", RUN], stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(encode(start))
        process.stdin.close()
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def stack() -> Iterator[Stack]:
    stack = Stack(2)
    yield stack
    stack.close()


def test_one_that_is_ended_finishes_its_lease_and_gives_nothing_back(stack: Stack) -> None:
    def events(what: str) -> list[Any]:
        return [e for e in stack.leader.events if e.what == what]

    doc = JobDocument(
        id=JOB,
        task="mlp",
        task_args={"hidden": [64]},
        data=Data(source="digits"),
        iterations=1_000_000,
        batch=Batch(global_=64),
        checkpoint=Checkpoint(every_s=0.0),
        evaluate=Evaluate(every=0, at_end=False),
    )
    trainers = Trainers(stack, doc)
    try:
        rows = stack.leader.rows
        eventually(lambda: len(rows) > 20 and len(rows[-1].workers) == 2, END_S, "two at work")
        trainers.processes[1].send_signal(signal.SIGTERM)
        assert trainers.processes[1].wait(END_S) == 0
        eventually(lambda: bool(events("worker_left")), END_S, "its leaving")
        count = len(rows)
        eventually(lambda: len(rows) > count + 20, END_S, "the other one goes on")
        assert [row.iteration for row in rows] == list(range(len(rows)))
        assert not events("worker_lost")
        assert trainers.processes[0].poll() is None
    finally:
        trainers.close()
