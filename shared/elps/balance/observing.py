"""What is known of one iteration: what each worker reports, and the same by rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray
from elps.contracts.ids import WorkerId


class Observation(NamedTuple):
    """One worker in one iteration, as reported. Whatever is not known is None; nothing needs to be plausible."""

    worker: WorkerId
    samples: float | None
    """Size of its batch; 0 when it sat the iteration out."""
    compute_s: float | None = None
    """Time in the task, without any waiting."""
    pull_s: float | None = None
    """Time in which parameters really moved; waiting for the version to be complete is in `wait_s`."""
    push_s: float | None = None
    wait_s: float | None = None
    cpu_process: float | None = None
    """Processor time the trainer can have, in cores. Measured at the barrier, as the next two: so it is the *current*
    value for the iteration that is decided now."""
    cpu_host: float | None = None
    """Processor time free on its host, in cores."""
    memory: float | None = None
    """Memory available to it, in bytes."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Availability right now, one row per worker, NaN where unknown."""

    cpu_process: FloatArray
    cpu_host: FloatArray
    memory: FloatArray

    @property
    def series(self) -> FloatArray:
        """All of it, ``(3, workers)``."""
        return np.stack([self.cpu_process, self.cpu_host, self.memory])


@dataclass(frozen=True, slots=True)
class Readings:
    """One iteration by rows, cleaned; NaN where nothing is known or nothing is believed (`Screen` says what is)."""

    samples: FloatArray
    compute_s: FloatArray
    pull_s: FloatArray
    """0 where a compute time is known, but not this; so is `push_s`."""
    push_s: FloatArray
    current: Circumstances
    changed: BoolArray
    """Workers whose machine is another than it was: what was learned of their speed before is void."""

    @property
    def per_sample_s(self) -> FloatArray:
        """Seconds for a sample, NaN where there is no believable measurement."""
        return self.compute_s / self.samples


_FIELDS = len(Observation._fields) - 1


def by_rows(
    observations: Sequence[Observation], row_of: Mapping[WorkerId, int], rows: int
) -> FloatArray:
    """The fields of `observations` but the first, ``(8, rows)``, as they are; NaN where nothing was reported.

    Workers without a row are passed over; of two reports of one worker the later counts.
    """
    table = np.full((_FIELDS, rows), np.nan)
    at = [row_of.get(o[0], -1) for o in observations]
    if not at:
        return table
    where = np.array(at, dtype=np.int64)
    told = np.array(list(zip(*observations, strict=True))[1:], dtype=np.float64)
    known = where >= 0
    table[:, where[known]] = told[:, known]
    return table
