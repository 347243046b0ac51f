"""Push and pull of 64 MB of float32 as a ratio to a bare loopback copy in the same run; kernels; whole iterations."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
from lone_shard import halves, lone_shard
from measuring import MIB, BarePeer, arguments, emit, in_turns, median, say
from private_stack import Iterations, idle_job, in_stack, private_stack, run_job

from elps import optim
from elps.client.control import Client
from elps.contracts.job import Optimizer
from elps.stream.interval import Interval
from elps.wire.frames import Status
from elps.worker.trainer.shards import Pushing, Shards

SIZE_BYTES = 64_000_000
AIM = 0.7
"""Share of a bare copy's speed that a push and a pull shall have."""


class Worker:
    """A trainer's side of the data plane, one step at a time."""

    def __init__(self, shards: Shards, elements: int) -> None:
        self.shards = shards
        self.params = np.ones(elements, np.float32)
        self.gradient = np.full(elements, 1e-3, np.float32)
        self.t, self._ticket = 0, 0
        if shards.push_values(self.params) is not Status.OK:
            raise RuntimeError("the first values were refused")

    def push(self, interval: Interval) -> float:
        """Seconds from the first byte to the shard's acknowledgement."""
        began = time.perf_counter()
        status = Pushing(self.shards, self.t, interval, self.gradient, staged=False).finish()
        took = time.perf_counter() - began
        if status is not Status.OK:
            raise RuntimeError(f"the push of {interval} was answered {status.name}")
        return took

    def push_first(self) -> float:
        """Half of the iteration's samples: received and put into the sum."""
        return self.push(halves(self.t)[0])

    def push_last(self) -> float:
        """The other half: received, added, and the optimizer's step taken."""
        took = self.push(halves(self.t)[1])
        self.t += 1
        return took

    def pull(self) -> float:
        """Seconds for the newest version, which is complete."""
        self._ticket += 1
        began = time.perf_counter()
        pulled = self.shards.pull(self.t, self._ticket, self.params)
        took = time.perf_counter() - began
        if pulled.status is not Status.OK:
            raise RuntimeError(f"the pull of version {self.t} was answered {pulled.status.name}")
        return took


def bulk(peer: BarePeer, repeats: int) -> None:
    """Push and pull at 64 MB, in turns with bare copies."""
    elements = SIZE_BYTES // 4
    source, target = np.ones(SIZE_BYTES, np.uint8).data, np.ones(SIZE_BYTES, np.uint8).data
    with lone_shard(elements) as shards:
        worker = Worker(shards, elements)
        took = in_turns(
            repeats,
            {
                "copy_256k": lambda: peer.give(source, MIB // 4, SIZE_BYTES),
                "push_first": worker.push_first,
                "copy_1m": lambda: peer.give(source, MIB, SIZE_BYTES),
                "push_last": worker.push_last,
                "drain_256k": lambda: peer.give(source, MIB // 4, MIB // 4),
                "copy_back_256k": lambda: peer.take(target, MIB // 4),
                "pull": worker.pull,
                "copy_back_1m": lambda: peer.take(target, MIB),
            },
        )
        if not np.isfinite(worker.params).all() or worker.params[0] == 1.0:
            raise RuntimeError("the pulled values are not those of training")
    about: dict[str, Any] = {"megabytes": 64, "dtype": "float32", "repeats": repeats}
    for name, values in took.items():
        if name.startswith("copy"):
            emit(f"data_plane.{name}", _gb_s(values), "GB/s", **about, what="bare loopback copy")
    what = "bare, into one buffer that stays in the cache: nothing is kept"
    emit("data_plane.drain_256k", _gb_s(took["drain_256k"]), "GB/s", **about, what=what)
    for name, what, peers in (
        ("push_first", "received and put into the sum", ("copy_256k", "copy_1m")),
        ("push_last", "received, added, SGD step taken", ("copy_256k", "copy_1m")),
        ("pull", "of a complete version", ("copy_back_256k", "copy_back_1m")),
    ):
        # Each turn by itself, so that a burst of other work on the machine meets both; the faster copy counts.
        ratio = min(
            median([copy / ours for copy, ours in zip(took[peer], took[name], strict=True)])
            for peer in peers
        )
        to = "the faster bare loopback copy, by turns"
        speed = _gb_s(took[name])
        emit(f"data_plane.{name}", speed, "GB/s", ratio=ratio, to=to, aim=AIM, **about, what=what)


def _gb_s(values: list[float]) -> float:
    return SIZE_BYTES / 1e9 / median(values)


def apply(repeats: int) -> None:
    """The shard's kernels on 64 MB in partitions of 1 MiB, in turns with a plain copy in memory."""
    elements, part = SIZE_BYTES // 4, MIB // 4
    acc, old, new = (np.ones(elements, np.float32) for _ in range(3))
    state = {name: np.zeros(elements, np.float32) for name in ("momentum", "m", "v")}
    optim.warm_up("float32")

    def step(spec: Optimizer) -> float:
        names = optim.state_names(spec)
        began = time.perf_counter()
        for lo in range(0, elements, part):
            s = slice(lo, min(lo + part, elements))
            views = {n: state[n][s] for n in names}
            optim.apply(spec, acc[s], 0.5, old[s], new[s], views, 0.01, 10)
        return time.perf_counter() - began

    def timed(kernel: str) -> float:
        began = time.perf_counter()
        for lo in range(0, elements, part):
            s = slice(lo, min(lo + part, elements))
            getattr(optim, kernel)(acc[s], old[s])
        return time.perf_counter() - began

    def copy() -> float:
        began = time.perf_counter()
        np.copyto(new, old)
        return time.perf_counter() - began

    took = in_turns(
        repeats,
        {
            "copy": copy,
            "add": lambda: timed("add_into"),
            "sgd": lambda: step(Optimizer(name="sgd")),
            "momentum": lambda: step(Optimizer(name="momentum")),
            "adam": lambda: step(Optimizer(name="adam")),
        },
    )
    base = median(took.pop("copy"))
    for name, values in took.items():
        emit(
            f"data_plane.apply_{name}",
            median(values) * 1e3,
            "ms",
            ratio=median(values) / base,
            to="a copy of 64 MB in memory",
            megabytes=64,
            repeats=repeats,
        )


async def whole(client: Client, peer: BarePeer, megabytes: list[int], seconds: float) -> None:
    """Whole iterations through real trainers, beside bare copies of the same bytes there and back."""
    for size in megabytes:
        size_bytes = size * 1_000_000
        source, target = np.ones(size_bytes, np.uint8).data, np.ones(size_bytes, np.uint8).data
        for workers in (1, 2):
            bare = [_there_and_back(peer, source, target) for _ in range(6)][1:]
            warm_up = 5
            iterations = warm_up + round(max(20, min(400, seconds / (size * 0.004))))
            job = idle_job(f"whole-{size}-{workers}", size_bytes // 4, iterations, workers)
            found = Iterations.of((await run_job(client, job)).rows, warm_up)
            bare += [_there_and_back(peer, source, target) for _ in range(5)]
            about: dict[str, Any] = {"workers": workers, "shards": 1, "optimizer": "sgd"}
            about["iterations"] = len(found.duration_s)
            about["ms"] = {p: round(median(v) * 1e3, 2) for p, v in found.phases_s.items()}
            emit(
                f"data_plane.iteration_{size}mb_{workers}w",
                median(found.duration_s) * 1e3,
                "ms",
                ratio=median(found.duration_s) / median(bare) / workers,
                to="bare copies of the same bytes, there and back for each worker",
                **about,
            )


def _there_and_back(peer: BarePeer, source: memoryview, target: memoryview) -> float:
    return peer.give(source, MIB, len(source)) + peer.take(target, MIB)


def main() -> None:
    """Run all."""
    options = arguments(__doc__ or "")
    repeats = 40 if options.full else 12
    with BarePeer() as peer:
        say("data plane: 64 MB push and pull beside bare copies")
        bulk(peer, repeats)
        say("data plane: kernels")
        apply(repeats)
        with private_stack(workers=2, shards=1) as record:
            say("data plane: whole iterations")
            seconds = 20.0 if options.full else 4.0
            in_stack(record, partial(whole, peer=peer, megabytes=[1, 16, 64], seconds=seconds))


if __name__ == "__main__":
    main()
