"""Calling a user's task: it gets read-only parameters and fresh batches, and what it returns is
checked to the letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from elps.contracts.errors import TaskError
from elps.contracts.job import JobDocument
from elps.data.dataset import Dataset
from elps.data.failing import UserCode
from elps.stream.interval import Interval
from elps.stream.order import Order, init_rng, sample_rng
from elps.tasks.calling import Call, Emit, number
from elps.tasks.layout import Floats, Layout
from elps.tasks.task import SampleRngs, arguments_of

MAX_METRICS = 100
MAX_METRIC_CHARS = 100


@dataclass(frozen=True)
class OpenJob:
    """A job that is ready to compute. Everything that raises through the user's fault raises
    `TaskError`.
    """

    document: JobDocument
    task: Any
    train: Dataset
    test: Dataset | None
    layout: Layout
    fingerprint: str
    """Digest of the data and of the sample order; equal in all trainers of a job."""
    code_hash: str
    """Digest of the source of the task's module, and of the data source's if it has one."""
    start: Callable[[], Mapping[str, Any]] | None = None
    """Reads the first parameters, where they do not come from the task."""

    @property
    def samples(self) -> int:
        """Samples in the training part: the length of a pass."""
        return len(self.train)

    @property
    def test_samples(self) -> int:
        """Samples in the test part; 0 without one."""
        return len(self.test) if self.test is not None else 0

    def order(self) -> Order:
        """The order of the job's sample stream."""
        return Order(self.document.seed, self.samples)

    def initial(self) -> Floats:
        """The parameters of version 0, shape (layout.size,); the same whoever computes them."""
        if self.start is not None:
            arrays = self.start()
        else:
            with UserCode(f"{self.name}: init"):
                arrays = self.task.init(init_rng(self.document.seed))
        flat = np.zeros(self.layout.size, self.layout.dtype)
        try:
            self.layout.pack(arrays, flat)
        except TaskError as error:
            raise TaskError(
                f"{self.name}: init gave other parameters than a moment ago: {error}"
            ) from error
        for name, view in self.layout.views(flat).items():
            if not np.isfinite(view).all():
                raise TaskError(
                    f"{self.name}: init gave NaN or infinity in parameter {name!r} (as {self.layout.dtype})"
                )
        return flat

    def gradient(
        self,
        params: Floats,
        interval: Interval,
        order: Order,
        grad_out: Floats,
        emit: Emit | None = None,
    ) -> float:
        """Sum of loss and gradient over an interval of the sample stream; the gradient overwrites
        `grad_out`. In place of a gradient stands what the interval gives to the state's next value:
        with the rule ``mean`` that is the value times the samples, else the value.

        `params` and `grad_out` are of shape (layout.size,) and share no memory; the interval lies
        in one pass and, with a granule, begins at one. `emit(name)` is called once for each
        parameter, as soon as its part of `grad_out` is final and while others may still be
        computed; what it raises goes through. NaN and infinity are returned as they are.
        """
        parameters = self.layout.views(params)
        places = self.layout.views(grad_out, writable=True)
        pass_, lo = divmod(interval.lo, self.samples)
        if lo + interval.size > self.samples:
            raise ValueError(f"{interval} lies in more than one pass of {self.samples} samples")
        loss = 0.0
        pieces = list(self._pieces(interval.lo - lo, interval))
        for at, piece in enumerate(pieces):
            _, indices = order.indices(piece)
            with UserCode(f"{self.name}: data of samples {piece}"):
                batch = self.train.get(indices)
            call = self._call(piece, dict(parameters), batch, self._rng(pass_, piece, indices))
            loss += call.run(places, at > 0, emit if at == len(pieces) - 1 else None)
        if not pieces:
            grad_out.fill(0)
            for name in places if emit is not None else ():
                emit(name)  # type: ignore[misc]  # not None here
        return loss

    def evaluate(self, params: Floats, lo: int, hi: int) -> dict[str, float]:
        """Metrics summed over the test samples lo … hi-1; the loss when the task has no `evaluate`.

        With a granule, one call for each of its multiples.
        """
        if self.test is None or not 0 <= lo <= hi <= self.test_samples:
            raise ValueError(f"no test samples {lo} to {hi}: there are {self.test_samples}")
        sums: dict[str, float] = {}
        for piece in self._pieces(0, Interval(lo, hi)):
            with UserCode(f"{self.name}: data of test samples {piece}"):
                batch = self.test.get(np.arange(piece.lo, piece.hi, dtype=np.int64))
            for metric, value in self._metrics(
                dict(self.layout.views(params)), batch, piece
            ).items():
                sums[metric] = sums.get(metric, 0.0) + value
        return sums

    def _metrics(self, params: dict[str, Floats], batch: Any, piece: Interval) -> dict[str, float]:
        if not callable(getattr(self.task, "evaluate", None)):
            indices = np.arange(piece.lo, piece.hi, dtype=np.int64)
            call = self._call(piece, params, batch, self._rng(0, piece, indices))
            scratch = self.layout.views(
                np.empty(self.layout.size, self.layout.dtype), writable=True
            )
            return {"loss": call.run(scratch, False, None)}
        where = f"{self.name}: evaluate on test samples {piece}"
        with UserCode(where):
            metrics = self.task.evaluate(params, batch)
        if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
            raise TaskError(
                f"{where} returned {type(metrics).__name__}; expected a dict of metric to sum over the samples"
            )
        if len(metrics) > MAX_METRICS or any(not _plain(name) for name in metrics):
            raise TaskError(
                f"{where} returned {len(metrics)} metrics; expected at most {MAX_METRICS}, their names of at most "
                f"{MAX_METRIC_CHARS} printable characters: they travel with the job's state"
            )
        return {name: number(value, f"{where}: metric {name!r}") for name, value in metrics.items()}

    def _pieces(self, start: int, interval: Interval) -> Iterator[Interval]:
        """The interval whole, or cut at the multiples of the granule counted from `start`."""
        granule = self.document.batch.granule
        lo = interval.lo
        while lo < interval.hi:
            hi = interval.hi
            if granule > 1:
                hi = min(hi, start + ((lo - start) // granule + 1) * granule)
            yield Interval(lo, hi)
            lo = hi

    def _rng(self, pass_: int, piece: Interval, indices: Any) -> Any:
        if not self.takes_rng:
            return None
        if self.document.batch.granule == 1:
            return SampleRngs(self.document.seed, pass_, indices)
        return sample_rng(
            self.document.seed, pass_, piece.lo % self.samples // self.document.batch.granule
        )

    @cached_property
    def name(self) -> str:
        """The task, for messages."""
        return f"task {self.document.task!r}"

    @cached_property
    def streams(self) -> bool:
        """Whether the gradient comes in parts."""
        return self.method == "grad_stream"

    @cached_property
    def method(self) -> str:
        """The task's gradient function: of those it has, the one that moves the least."""
        known = ("grad_into", "grad_stream")
        return next((m for m in known if callable(getattr(self.task, m, None))), "loss_and_grad")

    @cached_property
    def takes_rng(self) -> bool:
        """Whether the gradient function wants random generators."""
        return "rng" in arguments_of(getattr(self.task, self.method))

    def _call(self, piece: Interval, params: dict[str, Floats], batch: Any, rng: Any) -> Call:
        extra = {"rng": rng} if self.takes_rng else {}
        where = f"{self.name}: {self.method} on samples {piece}"
        rules = self.layout.rules
        return Call(self.task, self.method, where, piece.size, rules, params, batch, extra)


def _plain(name: str) -> bool:
    return 0 < len(name) <= MAX_METRIC_CHARS and name.isprintable()
