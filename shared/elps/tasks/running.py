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
from elps.tasks.layout import Floats, Layout
from elps.tasks.task import SampleRngs, arguments_of

Emit = Callable[[str], None]

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
        `grad_out`.

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
            call = _Call(self, piece, dict(parameters), batch, self._rng(pass_, piece, indices))
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
            call = _Call(self, piece, params, batch, self._rng(0, piece, indices))
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
        return {
            name: _number(value, f"{where}: metric {name!r}") for name, value in metrics.items()
        }

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
        return callable(getattr(self.task, "grad_stream", None))

    @cached_property
    def takes_rng(self) -> bool:
        """Whether the gradient function wants random generators."""
        return "rng" in arguments_of(
            self.task.grad_stream if self.streams else self.task.loss_and_grad
        )


@dataclass(frozen=True)
class _Call:
    """One call of the task's gradient function."""

    job: OpenJob
    samples: Interval
    params: dict[str, Floats]
    batch: Any
    rng: Any

    def run(self, places: Mapping[str, Floats], add: bool, emit: Emit | None) -> float:
        """Copy the gradients to their places, or add them there; return the loss sum."""
        extra = {"rng": self.rng} if self.job.takes_rng else {}
        if self.job.streams:
            return self._stream(places, add, emit, extra)
        with UserCode(self._where):
            result = self.job.task.loss_and_grad(self.params, self.batch, **extra)
        if (
            not isinstance(result, tuple | list)
            or len(result) != 2
            or not isinstance(result[1], Mapping)
        ):
            raise TaskError(
                f"{self._where} returned {_shape_of(result)}; expected (loss sum, dict of parameter to gradient sum)"
            )
        loss, gradients = result
        value = _number(loss, f"{self._where}: the loss")
        self._check_names(set(gradients), places)
        for name, place in places.items():
            self._put(name, gradients[name], place, add)
            if emit is not None:
                emit(name)
        return value

    def _stream(
        self, places: Mapping[str, Floats], add: bool, emit: Emit | None, extra: dict[str, Any]
    ) -> float:
        done: set[Any] = set()
        with UserCode(self._where):
            stream = iter(self.job.task.grad_stream(self.params, self.batch, **extra))
        while True:
            with UserCode(self._where):
                item = _next_of(stream)
            if isinstance(item, _End):
                self._check_names(done, places)
                return _number(item.value, f"{self._where}: the loss")
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise TaskError(
                    f"{self._where} yielded {_shape_of(item)}; expected (parameter, gradient sum)"
                )
            name, gradient = item
            if name not in places or name in done:
                problem = "yielded twice" if name in done else "no parameter of init"
                raise TaskError(
                    f"{self._where}: {name!r:.300} is {problem}; expected {_names(places.keys() - done)}"
                )
            done.add(name)
            self._put(name, gradient, places[name], add)
            if emit is not None:
                emit(name)

    def _put(self, name: str, gradient: Any, place: Floats, add: bool) -> None:
        array = gradient
        if not isinstance(array, np.ndarray):
            with UserCode(f"{self._where}: gradient of {name!r}"):
                array = np.asarray(gradient)
        if array.dtype.kind not in "fiu":
            raise TaskError(
                f"{self._where}: gradient of {name!r} is of {array.dtype}, expected {place.dtype}"
            )
        if array.shape != place.shape:
            raise TaskError(
                f"{self._where}: gradient of {name!r} has shape {array.shape}, expected {place.shape} as the parameter"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            if add:
                np.add(place, array, out=place, casting="unsafe")
            else:
                np.copyto(place, array, casting="unsafe")

    def _check_names(self, given: set[Any], places: Mapping[str, Floats]) -> None:
        if given == places.keys():
            return
        missing, extra = places.keys() - given, given - places.keys()
        lines = [f"no gradient for {_names(missing)}"] if missing else []
        lines += [f"{_names(extra)} not among the parameters of init"] if extra else []
        raise TaskError(
            f"{self._where}: {'; '.join(lines)}; expected one for each of {_names(places.keys())}"
        )

    @cached_property
    def _where(self) -> str:
        method = "grad_stream" if self.job.streams else "loss_and_grad"
        return f"{self.job.name}: {method} on samples {self.samples}"


@dataclass(frozen=True)
class _End:
    """What a generator returned."""

    value: Any


def _next_of(stream: Iterator[Any]) -> Any:
    try:
        return next(stream)
    except StopIteration as end:
        return _End(end.value)


def _plain(name: str) -> bool:
    return 0 < len(name) <= MAX_METRIC_CHARS and name.isprintable()


def _number(value: Any, what: str) -> float:
    """A loss or metric as a float; an array of one element will do, a text or None will not."""
    with UserCode(what):
        array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise TaskError(
            f"{what} is {_shape_of(value)}; expected one real number, the sum over the samples"
        )
    return float(array.reshape(()))


def _shape_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple ({', '.join(type(v).__name__ for v in value)})"
    return f"{value!r:.80} ({type(value).__name__})"


def _names(names: Any) -> str:
    listed = sorted(map(repr, names))
    return ", ".join(listed[:10]) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
