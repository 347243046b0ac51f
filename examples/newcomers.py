"""Watch newcomers get their early feedback from a full cluster: what `make newcomers` does after `make up`.

A long job has the whole cluster. Three configurations of another model arrive one after the other; each gets its first
results at once, from workers that the long job gives up while it trains. One of them is hopeless, and is killed by its
own rule; one is killed by hand; the long job takes back what they leave, and then all of them end.
Every line that begins with ``$`` is a command that you can type yourself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from demo import elps, job, until

from elps.client.http import MonitorHttp
from elps.local.find import find_stack

HERE = Path(__file__).parent
LONG, SHORT = str(HERE / "elastic.toml"), str(HERE / "newcomer.toml")
ENDED = ("finished", "failed", "killed")
ENDLESS = ("evaluate.every=200", "passes=100000")


def submit(file: str, name: str, *changes: str) -> None:
    """Hand a job in."""
    sets = [part for change in (f'id="{name}"', *changes) for part in ("--set", change)]
    elps("submit", file, *sets)


def fed(name: str) -> bool:
    """Whether a job has given its first results, or has ended over them."""
    found = job(name)
    return found["fed_at"] is not None or found["state"] in ENDED


def has_all(name: str, workers: int) -> bool:
    """Whether a job trains with so many workers."""
    return len(job(name)["ready"]) == workers


def show(name: str) -> float:
    """One line on a newcomer's first results; returns how long they took, in seconds."""
    found = job(name)
    if found["fed_at"] is None:
        sys.exit(
            f"newcomers: {name} has {found['state']} before its first results: {found['reason']}"
        )
    after = found["fed_at"] - found["submitted_at"]
    known = [(key, value) for key, value in found["metrics"].items() if value is not None]
    metrics = ", ".join(f"{key} {value:.4g}" for key, value in known) or "not finite"
    print(f"  {name}: first results {after:.2f} s after it was handed in: {metrics}", flush=True)
    return float(after)


def slots() -> int:
    """Worker slots of the whole stack."""
    stack = find_stack(Path.cwd(), os.environ)
    assert stack.monitor_url is not None
    return sum(agent["slots"] for agent in MonitorHttp(stack.monitor_url).workers()["workers"])


def main() -> None:
    """Fill the cluster, let newcomers arrive, keep one; the policy is afterwards as it was before."""
    stamp = time.strftime("%H%M%S")
    long = f"long-{stamp}"
    (before,) = json.loads(elps("policy", "--json", show=False))["lines"]
    elps("policy", "eps")  # early feedback first
    try:
        submit(LONG, long, f"workers.max={slots()}", "shards.max=2", "replicas=0", *ENDLESS)
        try:
            newcomers(long, {kind: f"{kind}-{stamp}" for kind in ("good", "hopeless", "slow")})
        finally:
            if job(long)["state"] not in ENDED:
                elps("kill", long, "--reason", "the demonstration is over")
    finally:
        elps("policy", before)


def newcomers(long: str, names: dict[str, str]) -> None:
    """Three of them, one after the other, beside a job that has the whole cluster."""
    everything = slots()
    until(
        lambda: has_all(long, everything) and fed(long),
        "the long job to have the cluster, and its first results",
    )
    elps("explain", long)
    latencies = []
    for kind, rate in (("good", 0.0005), ("hopeless", 1e6), ("slow", 1e-6)):
        submit(SHORT, names[kind], f"optimizer.lr={rate}")
        until(lambda: fed(names[kind]), f"the first results of {names[kind]}")  # noqa: B023 - called at once
        latencies.append(show(names[kind]))
    elps("kill", names["slow"], "--reason", "it learns too slowly")
    elps("explain", long)
    until(
        lambda: job(names["hopeless"])["state"] == "killed",
        "the hopeless one to be killed by its rule",
    )
    print(f"\n  {names['hopeless']}: {job(names['hopeless'])['reason']}", flush=True)
    elps("watch", names["good"])
    until(lambda: has_all(long, everything), "the long job to have all workers again")
    kept, accuracy = job(long), job(names["good"])["metrics"]["accuracy"]
    print(
        f"\nok   first results after {', '.join(f'{s:.2f}' for s in latencies)} s on a full cluster; the one that was "
        f"kept reads {accuracy:.1%} of the digits;\n     the long job was never stopped: "
        f"iteration {kept['iteration']}, {kept['redone_iterations']} computed twice"
    )
    if kept["redone_iterations"] or accuracy < 0.9:
        sys.exit("newcomers: that is not as it should be")


if __name__ == "__main__":
    main()
