"""How long the writer of a checkpoint rests between two pieces, so that training keeps its pace.

To write takes the processor, the memory and the store from a training that may fill all of the machine. Spread out, it
costs the same, but no iteration much of it. Training does not wait for a checkpoint, so it may take its time: what a
crash in the meantime costs is what it would have cost a little earlier.
"""

from __future__ import annotations

SHARE = 0.04
"""Of the time in which a checkpoint is being written, this much is spent with writing."""
MOST_S = 60.0
"""Of resting in all: a checkpoint that takes minutes to write is not made to take 25 times as long."""


class Throttle:
    """The rests of one checkpoint on one shard."""

    def __init__(self) -> None:
        self._left_s = MOST_S

    def rest_s(self, worked_s: float) -> float:
        """Seconds to rest after having written for so long."""
        rest_s = min(max(0.0, worked_s) * (1 / SHARE - 1), self._left_s)
        self._left_s -= rest_s
        return rest_s
