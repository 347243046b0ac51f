"""Train three jobs on the running stack, watch each of them, show the results: what `make demo` does after `make up`.

Every line that begins with ``$`` is a command that you can type yourself.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOOK_S, WAIT_S = 0.2, 60.0
ELPS = str(Path(sys.executable).with_name("elps"))

JOBS = (
    ("digits.toml", "a perceptron reads handwritten digits", "accuracy", 0.96),
    ("breast_cancer.toml", "logistic regression tells tumours apart", "accuracy", 0.94),
    (
        "user_task/ridge_waves.toml",
        "a task of a user's own: robust regression of a wave",
        "near",
        0.9,
    ),
)


def elps(*arguments: str, show: bool = True) -> str:
    """Run one command; its output goes to the screen, or is returned when it is not shown."""
    if show:
        print(f"\n$ elps {shlex.join(arguments)}", flush=True)
    done = subprocess.run([ELPS, *arguments], stdout=None if show else subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"demo: elps {arguments[0]} ended with exit code {done.returncode}")
    return done.stdout or ""


def job(name: str) -> dict[str, Any]:
    """What the monitor knows of a job."""
    found: dict[str, Any] = json.loads(elps("show", name, "--json", show=False))
    return found


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something to come about."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > WAIT_S:
            sys.exit(f"demo: waited {WAIT_S:g} s in vain for {what}")
        time.sleep(LOOK_S)


def main() -> None:
    """Submit all, watch all, judge all."""
    stamp = time.strftime("%H%M%S")
    names = [f"{Path(file).stem.replace('_', '-')}-{stamp}" for file, *_ in JOBS]
    for name, (file, what, *_) in zip(names, JOBS, strict=True):
        print(f"\n{what}", end="", flush=True)
        elps("submit", str(HERE / file), "--set", f"id={json.dumps(name)}")
    for name in names:
        elps("watch", name)
    elps("jobs")
    failed = False
    print()
    for name, (_, what, metric, least) in zip(names, JOBS, strict=True):
        value = job(name)["metrics"][metric]
        good = value >= least
        failed |= not good
        print(
            f"{'ok ' if good else 'BAD'}  {what}: {metric} {value:.4f}, at least {least} expected"
        )
    print(
        f"""
The stack is still up. How to go on:
  elps show {names[0]}                     everything about a job
  elps export {names[0]} -o model.safetensors
  elps submit my_job.toml --watch             README.md has an annotated job file
  make status · make down
(elps is .venv/bin/elps; `source .venv/bin/activate` puts it on the path.)"""
    )
    sys.exit(failed)


if __name__ == "__main__":
    main()
