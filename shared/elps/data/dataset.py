"""What a data set is to elps, and those that the built-in sources give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError

Indices = NDArray[np.int64]


@runtime_checkable
class Dataset(Protocol):
    """Samples that can be fetched by number. The same numbers always give the same samples, in
    every process.
    """

    def __len__(self) -> int:
        """Number of samples, at least 1."""

    def get(self, indices: Indices) -> Any:
        """The batch of these samples, in this order: whatever the task takes. `indices` is of shape
        (batch,).
        """


@dataclass(frozen=True)
class Scaling:
    """``(x - shift) * factor`` by column; see `elps.data.scaling`."""

    shift: NDArray[Any]
    factor: NDArray[Any]


@dataclass(frozen=True)
class Samples:
    """Features and targets in arrays; a batch is ``(x, y)`` as fresh arrays.

    Dense `x` has shape (rows, …), in memory or mapped; sparse `x` is a `scipy.sparse.csr_array`,
    and so is that of a batch. Floats of a batch are in the job's dtype; whole-number targets stay
    int64.
    """

    x: Any
    y: NDArray[Any]
    dtype: np.dtype[Any]
    origin: str
    """File or source, for messages."""
    rows: Indices | None = None
    """The rows that belong to this part; None is all of them."""
    scaling: Scaling | None = None
    watch: bool = False
    """Look for NaN and infinity in each batch: the source was too large to be looked through at the
    start.
    """

    @property
    def sparse(self) -> bool:
        """Whether batches have csr features."""
        return not isinstance(self.x, np.ndarray)

    @property
    def labels(self) -> NDArray[Any]:
        """Targets of the whole source, the other part's included, so that both parts see the same
        classes.
        """
        return self.y

    def __len__(self) -> int:
        return int(self.x.shape[0]) if self.rows is None else int(self.rows.size)

    def get(self, indices: Indices) -> tuple[Any, NDArray[Any]]:
        """Features and targets of these samples."""
        rows = indices if self.rows is None else self.rows[indices]
        y = self.y[rows]
        y = y.astype(self.dtype if y.dtype.kind == "f" else np.int64, copy=False)
        if self.sparse:
            return self.x[rows], y
        x = np.ascontiguousarray(self.x[rows], dtype=self.dtype)
        if self.scaling is not None:
            np.subtract(x, self.scaling.shift, out=x)
            np.multiply(x, self.scaling.factor, out=x)
        if self.watch and not np.isfinite(x).all():
            bad = rows[~np.isfinite(x.reshape(x.shape[0], -1)).all(axis=1)]
            raise TaskError(
                f"{self.origin}: row {int(bad[0])} has NaN or infinity in it; remove or repair such rows"
            )
        return x, y

    def part(self, rows: Indices) -> Self:
        """These rows alone."""
        return replace(self, rows=rows)

    def scaled(self, scaling: Scaling) -> Self:
        """With dense features scaled."""
        return replace(self, scaling=scaling)


@dataclass(frozen=True)
class Subset:
    """Some samples of another data set."""

    base: Dataset
    rows: Indices

    def __len__(self) -> int:
        return int(self.rows.size)

    def get(self, indices: Indices) -> Any:
        """The batch of these samples."""
        return self.base.get(self.rows[indices])
