"""Iteration time of models of about 10,000 parameters with 2 workers and 1 shard, and the share of each phase."""

from __future__ import annotations

from functools import partial
from typing import Any

from measuring import BarePeer, arguments, emit, median, p90, say
from private_stack import Iterations, digits_job, idle_job, in_stack, private_stack, run_job

from elps.client.control import Client

WORKERS, PARAMETERS = 2, 10_000
WARM_UP = 50
MESSAGE_BYTES = 64
"""Of a bare round trip: about the size of a frame without a body."""


async def measure(client: Client, peer: BarePeer, repeats: int, iterations: int) -> None:
    """Run jobs of both kinds in turns, with bare round trips between them."""
    times: dict[str, list[Iterations]] = {"idle": [], "digits": []}
    pings, bulky = [], []
    for turn in range(repeats):
        for name in times:
            make: Any = partial(idle_job, size=PARAMETERS) if name == "idle" else digits_job
            pings.append(peer.round_trip(2000, MESSAGE_BYTES))
            bulky.append(peer.round_trip(500, PARAMETERS * 4))
            job = make(f"bench-{name}-{turn}", iterations=iterations + WARM_UP, workers=WORKERS)
            told = await run_job(client, job)
            times[name].append(Iterations.of(told.rows, WARM_UP))
    ping = median(pings)
    about: dict[str, Any] = {"workers": WORKERS, "shards": 1, "jobs": repeats}
    emit("iteration.bare_round_trip", ping * 1e6, "us", bytes=MESSAGE_BYTES, what="loopback TCP")
    emit("iteration.bare_bulk_round_trip", median(bulky) * 1e6, "us", bytes=PARAMETERS * 4)
    for name, found in times.items():
        about |= {"task": name, "parameters": PARAMETERS if name == "idle" else 10_210}
        durations = [d for one in found for d in one.duration_s]
        whole = median(durations)
        about["iterations"] = len(durations)
        to = f"a bare round trip of {MESSAGE_BYTES} bytes"
        emit(f"iteration.{name}", whole * 1e6, "us", ratio=whole / ping, to=to, **about)
        emit(
            f"iteration.{name}_p90",
            p90(durations) * 1e6,
            "us",
            ratio=p90(durations) / whole,
            to="the median",
            **about,
        )
        for phase in found[0].phases_s:
            value = median([v for one in found for v in one.phases_s[phase]])
            emit(
                f"iteration.{name}_{phase}",
                value * 1e6,
                "us",
                ratio=value / whole,
                to="the iteration",
                **about,
            )


def main() -> None:
    """Run all."""
    options = arguments(__doc__ or "")
    repeats, iterations = (10, 1000) if options.full else (3, 400)
    with BarePeer() as peer, private_stack(WORKERS, 1) as record:
        say("iteration: jobs of about 10,000 parameters")
        in_stack(record, partial(measure, peer=peer, repeats=repeats, iterations=iterations))


if __name__ == "__main__":
    main()
