"""Watch a job grow, shrink and survive kills while it trains: what `make elastic` does after `make up`.

A twin of the job trains undisturbed beside it, with one worker and one shard; both must end with the same accuracy.
Every line that begins with ``$`` is a command that you can type yourself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from demo import LOOK_S, WAIT_S, elps, job, until

from elps.client.http import MonitorHttp
from elps.local.find import find_stack

FILE = str(Path(__file__).with_name("elastic.toml"))
GROWN = ((1, 1), (3, 1), (3, 2), (3, 3))
SHRUNK = ((1, 2), (1, 1))
"""Workers and shards, one size after the other; while it is large, some of what it runs on is killed."""
STAY_S = 1.5


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


def kill(pid: int, what: str) -> None:
    """End a process without a warning."""
    print(f"\n$ kill -9 {pid}    # {what}", flush=True)
    os.kill(pid, signal.SIGKILL)


def kill_some(name: str) -> None:
    """Kill a worker's process, and a shard that holds a third of the parameters."""
    stack = find_stack(Path.cwd(), os.environ)
    assert stack.monitor_url is not None
    monitor = MonitorHttp(stack.monitor_url)
    trainers = [t for agent in monitor.workers()["workers"] for t in agent["trainers"]]
    victim = next(t for t in trainers if t["job"] == name and t["state"] == "running")
    kill(victim["pid"], f"worker {victim['worker']}")
    until(lambda: victim["worker"] not in job(name)["ready"] and has(name, 3, 3), "another worker")
    show(name)
    until(lambda: bool(job(name)["replicas"] == "every partition has one"), "replicas")
    found = job(name)
    lost = next(s for s in found["holders"] if s != found["leader"])
    shards = {shard["shard"]: shard for shard in monitor.shards()["shards"]}
    kill(shards[lost]["pid"], f"{lost}, which holds a part of the parameters")
    until(lambda: lost not in job(name)["holders"] and has(name, 3, 2), "the others to go on")
    time.sleep(STAY_S)
    show(name)


def main() -> None:
    """Train the twins, change one of them, compare."""
    stamp = time.strftime("%H%M%S")
    steady, elastic = f"steady-{stamp}", f"elastic-{stamp}"
    fixed = ["workers.max=1", "shards.max=1", "replicas=0"]
    elps("submit", FILE, "--set", f'id="{steady}"', *(x for f in fixed for x in ("--set", f)))
    elps("submit", FILE, "--set", f'id="{elastic}"')
    for workers, shards in GROWN:
        resize(elastic, workers, shards)
    kill_some(elastic)
    for workers, shards in SHRUNK:
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
    if not same or redone > 1:
        sys.exit(f"elastic: they should be the same ({redone} iterations were computed twice)")
    sizes = len(GROWN) + len(SHRUNK)
    print(f"ok   {sizes} sizes, a worker and a shard killed, nothing lost: the same result")


if __name__ == "__main__":
    main()
