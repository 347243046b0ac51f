"""When versions are checkpointed. At most one checkpoint is being written at a time.

The store may lose what was in it. So a job comes to rest on a checkpoint only when that was found there a moment ago.
"""

from __future__ import annotations

import math

from elps.psshard.core.commands import FindCheckpoint, WriteCheckpoint
from elps.psshard.core.rules import Rules

SURE_S = 1.0
"""A checkpoint that was in the store so long ago counts as being there."""


class Saving:
    """The checkpoints of one job under one epoch."""

    def __init__(self, rules: Rules, newest: int | None, now: float) -> None:
        self._rules = rules
        self.newest = newest  #: version of the newest valid one
        self.writing: int | None = None  #: version under way; its manifest is not in the store
        self._hurried = False  #: whether it was said that something waits for what is under way
        self.seeking: int | None = None  #: version that is looked for in the store
        self._found_at = -math.inf  #: when the newest was seen there last, monotonic s
        self._wanted = False  #: the next boundary is to be checkpointed
        self._at = now  #: when the newest was valid or last wanted, monotonic s

    def reached(self, version: int) -> list[WriteCheckpoint]:
        """The job is at a version: its number may ask for a checkpoint, which the one before it is not to hold up."""
        every = self._rules.checkpoint_every
        self._wanted |= every > 0 and version % every == 0
        return self.hurry() if self._wanted else []

    def look(self, now: float) -> list[WriteCheckpoint]:
        """Time passed while training: it may ask for a checkpoint, once the one before it is written."""
        every_s = self._rules.checkpoint_every_s
        if every_s <= 0 or now - self._at < every_s:
            return []
        if self.writing is None:
            self._wanted, self._at = True, now
        return self.hurry()

    @property
    def wants(self) -> bool:
        """Whether a checkpoint would be begun at the next boundary."""
        return self._wanted and self.writing is None

    def lacks(self, version: int) -> bool:
        """Whether resting at a version needs a checkpoint that is not there."""
        return version not in (0, self.newest)  # version 0 comes again as it came

    def find(self, version: int, now: float) -> list[FindCheckpoint]:
        """What to ask before resting at a version that is not lacking."""
        if version == 0 or self.seeking is not None or now - self._found_at <= SURE_S:
            return []
        self.seeking = version
        return [FindCheckpoint(version)]

    def found(self, version: int, there: bool, now: float) -> None:
        """The newest checkpoint was looked for."""
        if version != self.seeking:
            return
        self.seeking, self._found_at = None, now if there else -math.inf
        if not there and self.newest == version:
            self.newest = None

    def begin(self, version: int, *, whatever: bool = False) -> list[WriteCheckpoint]:
        """Begin to write a version if it is wanted (or `whatever`) and nothing is being written.

        No partition may have left the version, and the gate must not let it before every shard has heard of this.
        """
        if self.writing is not None or not (self._wanted or whatever) or not self.lacks(version):
            return []
        self.writing, self._wanted, self._hurried = version, False, whatever
        return [WriteCheckpoint(version, hurry=whatever)]

    def hurry(self) -> list[WriteCheckpoint]:
        """Something waits for the checkpoint under way, if there is one: what to say, once."""
        if self.writing is None or self._hurried:
            return []
        self._hurried = True
        return [WriteCheckpoint(self.writing, hurry=True)]

    def again(self) -> list[WriteCheckpoint]:
        """What to say again when a link comes back."""
        if self.writing is None:
            return []
        return [WriteCheckpoint(self.writing, hurry=self._hurried)]

    def written(self, version: int, now: float) -> None:
        """A manifest is in the store."""
        if version == self.writing:
            self.writing, self.newest, self._at = None, version, now
            self._found_at = now

    def abandoned(self, version: int) -> None:
        """A checkpoint cannot be written any more; the next boundary gets one instead."""
        if version == self.writing:
            self.writing, self._wanted = None, True
