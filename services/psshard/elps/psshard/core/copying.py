"""Copies that are made together, whether to move partitions or to replicate them: how far they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from elps.contracts.ids import ShardId
from elps.psshard.core.commands import Move


@dataclass
class Wave:
    """What is copied under one number, and how far the copies are."""

    number: int
    moves: tuple[Move, ...]
    progress_at: float  #: monotonic s; of the last progress, or since when there should be some
    #: target to (version all its copies hold, -1: not all there; how many have more)
    at: dict[ShardId, tuple[int, int]] = field(init=False)
    behind: bool = field(init=False, default=True)  #: a copy lacks the version looked at last

    def __post_init__(self) -> None:
        self.at = {move.target: (-1, 0) for move in self.moves}

    def holds(self, version: int) -> bool:
        """Whether all copies hold this version, or a newer one."""
        return all(held >= version for held, _ in self.at.values())

    def lacking(self, version: int) -> str:
        """Where copies do not hold a version, for people."""
        return ", ".join(sorted(s for s, (held, _) in self.at.items() if held < version))

    def followed(self, shard: ShardId, have: int, version: int, now: float) -> None:
        """A target tells how far its copies are: all hold `version`, and `have` of them more; see `Followed`."""
        if shard in self.at and (version, have) > self.at[shard]:
            self.at[shard], self.progress_at = (version, have), now

    def stalled_s(self, version: int, now: float) -> float:
        """For how long copies that do not hold this version have made no progress."""
        was_behind, self.behind = self.behind, not self.holds(version)
        if self.behind and not was_behind:
            self.progress_at = now
        return now - self.progress_at if self.behind else 0.0
