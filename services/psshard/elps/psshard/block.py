"""The arrays behind one partition: two versions of the values, optimizer state, and the sum being collected.

Version *v* is in ``values[v % 2]``: writing *v+1* overwrites *v-1* and nothing else. A block belongs to who holds the
partition; when the partition moves, or an epoch begins at the version that is here, the block goes over as it is.

Threads: at most one adds or writes at a time, under the block's lock. Who may read which version is decided by
`elps.psshard.core.part`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps import optim
from elps.contracts.job import JobDocument
from elps.optim.schedule import factor
from elps.psshard.core.part import Advance
from elps.psshard.untrained import Untrained
from elps.stream.interval import Interval

Array = NDArray[Any]
VALUES = "values"
_APART_BYTES = 256
"""Between the arrays of a block: at distances of whole pages they would compete for the same lines of the cache."""

Tell = Callable[[Advance, Array], None]


class Sealed(Exception):
    """The block's arrays belong to a newer term; whoever still meant to work on it stops."""


class Block:
    """One partition of `size` elements."""

    def __init__(
        self,
        document: JobDocument,
        size: int,
        iterations: int,
        untrained: Untrained | None = None,
    ) -> None:
        self._document, self._iterations = document, iterations
        self._untrained = untrained or Untrained((), 0, size)
        self.dtype = np.dtype(document.dtype)
        self.size = size
        names = optim.state_names(document.optimizer)
        arrays = self._arrays(3 + len(names))
        self._values = (arrays[0], arrays[1])
        self._sum = arrays[2]
        self._state = dict(zip(names, arrays[3:], strict=True))
        self._lock = threading.Lock()
        self._filled = False  #: whether the sum holds anything of this iteration
        self._slots: list[tuple[Interval, Array]] = []
        self._version, self._steps = -1, 0  #: newest version written, and steps behind it
        self._first = -1  #: version that the values came at
        self._factor = 1.0  #: on the gradient of the newest step
        #: of the iterations behind the newest version, as far as they were here
        self._skips: set[Interval] = set()
        self._tells: list[Tell] = []  #: are told each sum
        self._sealed = False

    def _arrays(self, number: int) -> list[Array]:
        stride = self.size + _APART_BYTES // self.dtype.itemsize
        whole = np.zeros(stride * number, self.dtype)
        return [whole[i * stride :][: self.size] for i in range(number)]

    def heirloom(self) -> Block:
        """A block for the epoch to come, with the versions that are here; this one is sealed, its sum forgotten.

        Waits for what is being added or written just now. Who receives a sum for a copy does so without the lock, so
        the heir gets an array of its own for that.
        """
        with self._lock:
            self._sealed, self._tells = True, []
            heir = copy(self)  # with the same values and state, under the same lock
            heir._sealed, heir._filled, heir._slots, heir._tells = False, False, [], []
            heir._sum, heir._skips = np.zeros_like(self._sum), set(self._skips)
            heir._untrained = self._untrained.afresh()
            return heir

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return self._sum.nbytes * (3 + len(self._state))

    @property
    def array_names(self) -> list[str]:
        """The arrays that make up a version: its values and the optimizer's state."""
        return [VALUES, *self._state]

    def values(self, version: int) -> Array:
        """A view of a version's values."""
        return self._values[version % 2]

    def load(self, version: int, steps: int, arrays: Mapping[str, Array]) -> None:
        """Take values and state as they were at `version`; absent state stays as it is: zero at first."""
        with self._lock:
            np.copyto(self.values(version), arrays[VALUES])
            for name, array in self._state.items():
                if name in arrays:
                    np.copyto(array, arrays[name])
            self._version, self._steps, self._first = version, steps, version

    def readable(self, version: int) -> Array:
        """A version's values to be sent; they stay as they are until the version after the next is written."""
        return self.values(version)

    def copy_into(self, version: int, into: Array) -> None:
        """Copy a version's values out."""
        np.copyto(into, self.values(version))

    def add(self, _iteration: int, interval: Interval, gradient: Array | None) -> float:
        """Add an accepted gradient sum; under `deterministic` keep it until its iteration is complete.

        Returns the seconds that it took, without those in which others were at work on the block.
        """
        if gradient is None:
            return 0.0
        with self._lock:
            if self._sealed:
                raise Sealed
            began = time.monotonic()
            if self._document.deterministic:
                self._slots.append((interval, gradient.copy()))
            else:
                self._add(interval, gradient)
            return time.monotonic() - began

    def _add(self, interval: Interval, gradient: Array) -> None:
        trained = self._untrained.trained
        if self._filled:
            optim.add_into(self._sum[:trained], gradient[:trained])
        else:
            optim.copy_into(self._sum[:trained], gradient[:trained])
        if trained < self.size:
            self._untrained.add(self._sum, interval, gradient, first=not self._filled)
        self._filled = True

    def norm(self, advance: Advance) -> float:
        """Euclidean norm of the mean gradient of a complete iteration, of what is trained; 0 if nothing is counted."""
        with self._lock:
            self._gather(advance)
            if not advance.count:
                return 0.0
            return optim.norm(self._sum[: self._untrained.trained]) / advance.count

    def _gather(self, advance: Advance) -> None:
        """All that was accepted is in the sum. To be called again does nothing."""
        if self._sealed:
            raise Sealed
        for interval, gradient in sorted(self._slots, key=lambda slot: slot[0]):
            self._add(interval, gradient)
        self._slots.clear()
        if advance.count and not self._filled:
            self._sum[:] = 0
            self._untrained.nothing(self._sum, self.values(advance.iteration), advance.count)
            self._filled = True

    def write(self, advance: Advance) -> float:
        """Write the next version from the sum and return the learning rate used; 0 when no step was taken."""
        with self._lock:
            self._gather(advance)
            lr = self._step(advance)
            for tell in self._tells:
                tell(advance, self._sum)
            return lr

    def array(self, name: str, version: int) -> Array:
        """Where the values of a version go, or an array of the state, to be filled by who follows another block."""
        return self.values(version) if name == VALUES else self._state[name]

    @property
    def total(self) -> Array:
        """The sum, to be filled by who follows another block."""
        return self._sum

    def at(self, version: int, steps: int, skips: Iterable[Interval] = ()) -> None:
        """All arrays have been filled as they were at `version`, with these skips behind it."""
        with self._lock:
            self._version, self._steps, self._first = version, steps, version
            self._skips = set(skips)

    def follow(self, advance: Advance) -> None:
        """Take the step that the owner of the partition took, from the same sum."""
        with self._lock:
            if self._sealed:
                raise Sealed
            self._step(advance)

    def _step(self, advance: Advance) -> float:
        old, new = self.values(advance.iteration), self.values(advance.iteration + 1)
        self._filled = False
        self._version, self._steps = advance.iteration + 1, advance.step
        self._factor = advance.factor
        self._skips.update(advance.skipped)
        if not advance.count:
            np.copyto(new, old)
            return 0.0
        spec = self._document.optimizer
        lr = spec.lr * factor(self._document.schedule, advance.step, self._iterations)
        part = slice(self._untrained.trained)
        state = {name: array[part] for name, array in self._state.items()}
        scale = advance.factor / advance.count
        optim.apply(spec, self._sum[part], scale, old[part], new[part], state, lr, advance.step)
        self._untrained.step(self._sum, advance.count, new)
        return lr

    def copy(self, version: int) -> dict[str, Array]:
        """Copies of the values at `version` and of the state, which must be of the same version."""
        with self._lock:
            return self._copy(version)

    def _copy(self, version: int) -> dict[str, Array]:
        arrays = {name: array.copy() for name, array in self._state.items()}
        return {VALUES: self.values(version).copy(), **arrays}

    def tell(self, tell: Tell) -> tuple[int, int, list[Interval], dict[str, Array]]:
        """A copy of the newest version: its number, the steps and skips behind it, the arrays.

        From then on `tell` gets each sum. It is called under the block's lock, and has to copy what it wants to keep.
        """
        with self._lock:
            self._tells = [*self._tells, tell]
            return self._version, self._steps, sorted(self._skips), self._copy(self._version)

    def tell_no_more(self, tell: Tell) -> None:
        """End it; others' are left alone."""
        with self._lock:
            self._tells = [other for other in self._tells if other != tell]

    @property
    def skips(self) -> list[Interval]:
        """Skips of the iterations behind the newest version, in order, as far as those were here or its owner told."""
        with self._lock:
            return sorted(self._skips)

    @property
    def factor(self) -> float:
        """What the gradient of the step to the newest version was multiplied by."""
        with self._lock:
            return self._factor

    @property
    def oldest(self) -> int:
        """The oldest version that can still be read."""
        with self._lock:
            return max(self._version - 1, self._first)

    def applied(self) -> tuple[Interval, ...] | None:
        """What is in the values of the iterations from the newest version on; None under ``bsp``, where nothing is."""
        return None

    def newest(self) -> tuple[int, int]:
        """Newest version written, and the steps behind it."""
        with self._lock:
            return self._version, self._steps
