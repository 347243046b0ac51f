"""How far the job is to go: its end, which an early stop brings nearer, and the boundary at which it pauses."""

from __future__ import annotations


class Goal:
    """Versions that training goes up to and not beyond."""

    def __init__(self, iterations: int) -> None:
        self.end = iterations  #: only ever falls
        self.reason = "all iterations are done"  #: why it ends there
        self.boundary: int | None = None  #: version at which the job pauses; None: it goes on
        self.resting = False  #: it has paused there
        self.halt: int | None = None  #: version at which it stands still for a new map
        self.save: int | None = None  #: version that is to be checkpointed before it is left

    def reaches(self, version: int) -> bool:
        """Whether the job comes to this version."""
        return version <= self.end and (self.boundary is None or version <= self.boundary)

    def passes(self, version: int) -> bool:
        """Whether the job goes beyond this version: whether the iteration of this number is to be computed."""
        bounds = (self.end, self.boundary, self.halt, self.save)
        return all(bound is None or version < bound for bound in bounds)

    def halts(self, version: int) -> bool:
        """Whether it only stands still at this version, to go on in a moment."""
        return self.halt == version and self.reaches(version + 1)

    def stop(self, version: int, reason: str) -> None:
        """End at a version that is not beyond the end."""
        if version < self.end:
            self.end, self.reason = version, reason

    def pause(self, version: int) -> None:
        """Rest at a version; a pause asked for before holds."""
        if self.boundary is None:
            self.boundary = version

    def resume(self) -> None:
        """Go on."""
        self.boundary, self.resting = None, False
