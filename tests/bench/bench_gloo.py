"""Whole iterations beside an all-reduce: gloo and a step of SGD, and an elps job of the same size, in turns.

Both have two workers on this machine, then four, which speak over its loopback, and the same to do: take a fixed
gradient of float32 from where it lies, add it up over the workers, take the step. Of n workers each sends 2(n-1)/n
times its gradient round a ring, and receives as much, but always sends once to the shards and receives once from them,
and so do the shards: two workers are the worst case of a parameter server. Under gloo every worker keeps all
parameters; the elps job has its two shards in processes of their own, checks each gradient, and keeps two versions.
Measured only where torch can be imported; it is no dependency.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from typing import Any

from measuring import arguments, emit, in_turns, median, say
from private_stack import Iterations, idle_job, in_stack, private_stack, run_job

from elps.local.ports import free_ports
from elps.local.record import StackRecord

WORKERS, SHARDS = (2, 4), 2
AIM = 1.2
"""Times an iteration under gloo."""
WARM_UP = 5
GRADIENT, RATE = 1e-6, 0.01
WAIT_S = 120.0
INSTALL = ".venv/bin/pip install -e '.[torch]'"
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Reducer:
    """A worker under gloo, in a process of its own."""

    def __init__(self, rank: int, of: int, port: int) -> None:
        self._pipe, theirs = get_context("spawn").Pipe()
        self._process: BaseProcess = get_context("spawn").Process(
            target=_reduce, args=(theirs, rank, of, port), daemon=True
        )
        self._process.start()
        theirs.close()

    def begin(self, elements: int, iterations: int) -> None:
        """Have so many iterations made; all workers must be told the same."""
        self._pipe.send((elements, iterations))

    def times(self) -> list[float]:
        """Seconds of each iteration."""
        if not self._pipe.poll(WAIT_S):
            raise TimeoutError(f"a worker under gloo has said nothing for {WAIT_S:g} s")
        try:
            found: list[float] = self._pipe.recv()
        except EOFError:
            raise RuntimeError("a worker under gloo has ended: see its words above") from None
        return found

    def close(self) -> None:
        """End it."""
        self._pipe.close()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()


def _reduce(pipe: Pipe, rank: int, of: int, port: int) -> None:
    """That process."""
    os.environ |= THREADS | {"GLOO_SOCKET_IFNAME": "lo"}
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=of)
    held: dict[int, tuple[Any, Any, Any]] = {}
    try:
        while True:
            elements, iterations = pipe.recv()
            if elements not in held:
                fixed = torch.full((elements,), GRADIENT)
                held[elements] = fixed, torch.zeros(elements), torch.zeros(elements)
            fixed, values, gradient = held[elements]
            values.zero_()
            dist.barrier()
            took, before = [], time.perf_counter()
            for _ in range(iterations):
                gradient.copy_(fixed)
                dist.all_reduce(gradient)
                values.add_(gradient, alpha=-RATE / of)
                now = time.perf_counter()
                took.append(now - before)
                before = now
            made = values[-1].item() / (-RATE * GRADIENT)
            if abs(made - iterations) > 0.01 * iterations:
                raise RuntimeError(f"{iterations} iterations have made as much as {made:.2f}")
            pipe.send(took)
    except EOFError:  # the benchmark is through
        dist.destroy_process_group()


@contextmanager
def reducers(count: int) -> Iterator[list[Reducer]]:
    """All workers under gloo."""
    port = free_ports(1)[0]
    with ExitStack() as ending:
        started = []
        for rank in range(count):
            started.append(Reducer(rank, count, port))
            ending.callback(started[-1].close)
        yield started


def by_gloo(workers: list[Reducer], megabytes: int, iterations: int) -> float:
    """Seconds of an iteration, median."""
    for worker in workers:
        worker.begin(megabytes * 250_000, iterations + WARM_UP)
    took = [worker.times() for worker in workers]
    return median(took[0][WARM_UP:])


def by_elps(
    record: StackRecord, count: int, megabytes: int, iterations: int, name: str
) -> Iterations:
    """All iterations of a job but the first ones."""
    job = idle_job(name, megabytes * 250_000, iterations + WARM_UP, count)
    job |= {"shards": {"min": SHARDS, "max": SHARDS}}
    job["optimizer"]["lr"] = RATE
    told = in_stack(record, partial(run_job, document=job))
    return Iterations.of(told.rows, WARM_UP)


def measure(
    record: StackRecord, workers: list[Reducer], megabytes: int, iterations: int, times: int
) -> None:
    """One size."""
    made: list[Iterations] = []

    def elps() -> float:
        name = f"beside-gloo-{len(workers)}-{megabytes}-{len(made)}"
        made.append(by_elps(record, len(workers), megabytes, iterations, name))
        return median(made[-1].duration_s)

    gloo = partial(by_gloo, workers, megabytes, iterations)
    took = in_turns(times, {"gloo": gloo, "elps": elps})
    phases = {
        phase: round(median([v for job in made[1:] for v in job.phases_s[phase]]) * 1e3, 2)
        for phase in made[0].phases_s
    }
    about: dict[str, Any] = {"megabytes": megabytes, "workers": len(workers), "turns": times}
    about |= {"iterations": iterations, "torch": importlib.import_module("torch").__version__}
    size = f"{megabytes}mb_{len(workers)}_workers"
    emit(f"gloo.all_reduce_{size}", median(took["gloo"]) * 1e3, "ms", **about)
    emit(
        f"gloo.elps_{size}",
        median(took["elps"]) * 1e3,
        "ms",
        ratio=median([a / b for a, b in zip(took["elps"], took["gloo"], strict=True)]),
        to="an all-reduce by gloo and a step of SGD on every worker, by turns",
        aim=AIM,
        shards=SHARDS,
        ms=phases,
        **about,
    )


def main() -> None:
    """Run all, where torch is there."""
    options = arguments(__doc__ or "")
    if importlib.util.find_spec("torch") is None:
        skipped = f"torch is not installed; it comes with: {INSTALL}"
        print(json.dumps({"name": "gloo", "skipped": skipped}))
        return
    times, seconds = (9, 6.0) if options.full else (5, 3.0)
    with private_stack(max(WORKERS), SHARDS) as record:
        for count in WORKERS:
            with reducers(count) as workers:
                for megabytes in (1, 16, 64, 256) if options.full else (16, 64):
                    say(f"gloo: {count} workers, {megabytes} MB, {times} turns")
                    iterations = round(max(10, min(400, seconds / (megabytes * 0.0015))))
                    measure(record, workers, megabytes, iterations, times)


if __name__ == "__main__":
    main()
