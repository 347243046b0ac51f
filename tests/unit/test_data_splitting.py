"""The held-out part."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.errors import TaskError
from elps.contracts.job import Data
from elps.data.opening import open_data
from elps.data.splitting import classes_to_stratify, split


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=200),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
    stratified=st.booleans(),
)
def test_every_sample_is_in_exactly_one_part_of_the_right_size(
    labels: list[int], fraction: float, seed: int, stratified: bool
) -> None:
    count = len(labels)
    classes = np.array(labels) if stratified else None
    if not 0 < round(count * fraction) < count:
        with pytest.raises(TaskError, match="both need at least 1"):
            split(count, classes, fraction, seed, "data")
        return
    train, test = split(count, classes, fraction, seed, "data")
    assert sorted([*train, *test]) == list(range(count))
    assert test.size == round(count * fraction)
    assert (np.diff(train) > 0).all()
    assert (np.diff(test) > 0).all()
    if classes is not None:
        for label in set(labels):
            share = (classes == label).sum() * test.size / count
            assert abs((classes[test] == label).sum() - share) < 1


def test_the_split_is_the_same_everywhere_for_a_seed() -> None:
    # Held by value: a change here would give workers of two versions different training parts.
    _, test = split(
        1797, open_data(Data(source="digits"), {}, "float32").train.labels, 0.2, 0, "digits"
    )
    digest = hashlib.sha256(test.astype("<i8").tobytes()).hexdigest()[:16]
    assert (test[:6].tolist(), digest) == ([6, 7, 11, 12, 16, 17], "bf7aac23b879ddcd")
    assert not np.array_equal(test, split(1797, None, 0.2, 0, "digits")[1])


def test_digits_keep_the_shares_of_their_classes() -> None:
    opened = open_data(Data(source="digits", test_fraction=0.2), {}, "float32")
    assert opened.test is not None
    assert (len(opened.train), len(opened.test)) == (1438, 359)
    counts = np.bincount(opened.test.get(np.arange(359))[1])
    assert counts.min() >= 34
    assert counts.max() <= 37


def test_ties_between_classes_are_broken_at_random() -> None:
    labels = np.repeat(np.arange(100), 2)
    _, test = split(200, labels, 0.25, 1, "data")
    assert len(set(labels[test] // 50)) == 2


def test_labels_that_are_no_classes_are_not_stratified() -> None:
    assert classes_to_stratify(np.array([0.5, 0.5, 1, 1])) is None
    assert classes_to_stratify(np.array([0, 0, 1])) is None
    assert classes_to_stratify(np.array([1e300, 1e300])) is None
    assert classes_to_stratify(np.zeros((4, 2))) is None
    assert classes_to_stratify(np.array([0.0, 0, 1, 1])).tolist() == [0, 0, 1, 1]  # type: ignore[union-attr]
