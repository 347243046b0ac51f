"""When versions are checkpointed. At most one checkpoint is being written at a time."""

from __future__ import annotations

from elps.psshard.core.commands import WriteCheckpoint
from elps.psshard.core.rules import Rules


class Saving:
    """The checkpoints of one job under one epoch."""

    def __init__(self, rules: Rules, newest: int | None, now: float) -> None:
        self._rules = rules
        self.newest = newest  #: version of the newest valid one
        self.writing: int | None = None  #: version under way; its manifest is not in the store
        self._wanted = False  #: the next boundary is to be checkpointed
        self._at = now  #: when the newest was valid or last wanted, monotonic s

    def reached(self, version: int) -> None:
        """The job is at a version: its number may ask for a checkpoint."""
        every = self._rules.checkpoint_every
        self._wanted |= every > 0 and version % every == 0

    def look(self, now: float) -> None:
        """Time passed while training: it may ask for a checkpoint."""
        every_s = self._rules.checkpoint_every_s
        if every_s > 0 and self.writing is None and now - self._at >= every_s:
            self._wanted, self._at = True, now

    @property
    def wants(self) -> bool:
        """Whether a checkpoint would be begun at the next boundary."""
        return self._wanted and self.writing is None

    def lacks(self, version: int) -> bool:
        """Whether resting at a version needs a checkpoint that is not there."""
        return version not in (0, self.newest)  # version 0 comes again as it came

    def begin(self, version: int, *, whatever: bool = False) -> list[WriteCheckpoint]:
        """Begin to write a version if it is wanted (or `whatever`) and nothing is being written.

        No partition may have left the version, and the gate must not let it before every shard has heard of this.
        """
        if self.writing is not None or not (self._wanted or whatever) or not self.lacks(version):
            return []
        self.writing, self._wanted = version, False
        return [WriteCheckpoint(version)]

    def again(self) -> list[WriteCheckpoint]:
        """What to say again when a link comes back."""
        return [WriteCheckpoint(self.writing)] if self.writing is not None else []

    def written(self, version: int, now: float) -> None:
        """A manifest is in the store."""
        if version == self.writing:
            self.writing, self.newest, self._at = None, version, now

    def abandoned(self, version: int) -> None:
        """A checkpoint cannot be written any more; the next boundary gets one instead."""
        if version == self.writing:
            self.writing, self._wanted = None, True
