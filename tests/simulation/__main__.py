"""``python -m simulation SEED [TO]``, in the folder `tests`: tell a seed's story, or which of several are bad."""

from __future__ import annotations

import sys
import time

from simulation.running import simulate


def main() -> None:
    first = int(sys.argv[1])
    if len(sys.argv) == 2:
        print(simulate(first).told)
        return
    bad = 0
    for seed in range(first, int(sys.argv[2])):
        began = time.process_time()
        outcome = simulate(seed)
        took = time.process_time() - began
        print(
            f"{seed}: {outcome.took_s:.0f} s, waited {outcome.waited_s:.1f}, took {took:.2f} s",
            *outcome.faults,
        )
        bad += bool(outcome.faults)
    print(f"{bad} are bad")


main()
