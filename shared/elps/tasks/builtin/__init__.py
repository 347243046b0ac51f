"""The tasks that come with elps: numpy models on dense or csr features, in the dtype of the job."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from elps.tasks.builtin.perceptron import Perceptron
from elps.tasks.builtin.regression import Linear, Logistic, Softmax, SupportVector

__all__ = ["TASKS", "Linear", "Logistic", "Perceptron", "Softmax", "SupportVector", "source_hash"]

TASKS: dict[str, Any] = {
    "linear": Linear,
    "logistic": Logistic,
    "softmax": Softmax,
    "svm": SupportVector,
    "mlp": Perceptron,
}
"""Name in the job's document to class; ``task_args`` are the arguments of the class."""


@functools.cache
def source_hash() -> str:
    """sha256 over the source of the built-in tasks."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
