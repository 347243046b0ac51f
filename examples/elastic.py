"""Watch a job grow, shrink and change its shards while it trains: what `make elastic` does after `make up`.

A twin of the job trains undisturbed beside it, with one worker and one shard; both must end with the same accuracy.
Every line that begins with ``$`` is a command that you can type yourself.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from demo import elps

FILE = str(Path(__file__).with_name("elastic.toml"))
STEPS = ((1, 1), (3, 1), (3, 2), (3, 3), (1, 3), (1, 1))
"""Workers and shards, one size after the other."""
LOOK_S, STAY_S, WAIT_S = 0.2, 1.5, 60.0


def job(name: str) -> dict[str, Any]:
    """What the monitor knows of a job."""
    found: dict[str, Any] = json.loads(elps("show", name, "--json", show=False))
    return found


def has(name: str, workers: int, shards: int) -> bool:
    """Whether a job trains at this size."""
    found = job(name)
    if found["state"] in ("finished", "failed", "killed"):
        sys.exit(f"elastic: {name} has {found['state']} too early: {found['reason']}")
    size = len(found["ready"]), len(found["holders"])
    return size == (workers, shards) and found["state"] == "running" and not found["moving"]


def show(name: str) -> None:
    """One line on how a job stands."""
    found = job(name)
    loss = f"{found['loss']:.5f}" if found["loss"] is not None else "not known"
    rate = found["samples_per_s"] or 0
    print(
        f"  iteration {found['iteration']} of {found['iterations']}: trained by {len(found['ready'])},"
        f" parameters on {', '.join(found['holders'])}; {rate:.0f} samples/s, loss {loss}",
        flush=True,
    )


def resize(name: str, workers: int, shards: int) -> None:
    """Ask for a size, and wait until the job has it."""
    elps("scale", name, "--workers", str(workers), "--shards", str(shards))
    began = time.monotonic()
    while not has(name, workers, shards):
        if time.monotonic() - began > WAIT_S:
            sys.exit(f"elastic: {name} has not come to {workers} workers and {shards} shards")
        time.sleep(LOOK_S)
    time.sleep(STAY_S)
    show(name)


def main() -> None:
    """Train the twins, change one of them, compare."""
    stamp = time.strftime("%H%M%S")
    steady, elastic = f"steady-{stamp}", f"elastic-{stamp}"
    fixed = ["workers.max=1", "shards.max=1"]
    elps("submit", FILE, "--set", f'id="{steady}"', *(x for f in fixed for x in ("--set", f)))
    elps("submit", FILE, "--set", f'id="{elastic}"')
    for workers, shards in STEPS:
        resize(elastic, workers, shards)
    for name in (elastic, steady):
        elps("watch", name)
    ended = {name: job(name) for name in (steady, elastic)}
    print()
    for name, found in ended.items():
        accuracy, loss = found["metrics"]["accuracy"], found["metrics"]["loss"]
        print(f"  {name}: accuracy {accuracy:.6f}, loss {loss:.9f} on the held-out samples")
    first, second = (found["metrics"] for found in ended.values())
    same = first["accuracy"] == second["accuracy"] and abs(first["loss"] - second["loss"]) < 1e-6
    redone = ended[elastic]["redone_iterations"]
    if not same or redone:
        sys.exit(f"elastic: they should be the same ({redone} iterations were computed twice)")
    print(f"ok   {len(STEPS)} sizes, nothing lost, nothing computed twice: the same result")


if __name__ == "__main__":
    main()
