"""A trained job held against the plain loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import reference
from jobs import Job

from elps.contracts.codec import encode
from elps.contracts.job import JobDocument, Pool
from elps.stream.interval import Interval

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
"""What the order of additions may make over some hundred iterations."""

_known: dict[bytes, reference.Reference] = {}


async def plain(
    document: JobDocument, env: Mapping[str, str], skips: Iterable[Interval] = ()
) -> reference.Reference:
    """What the plain loop gives. Computed once for documents that differ only in who works on them."""
    nobody = msgspec.structs.replace(document, id=None, workers=Pool(), shards=Pool())
    key = encode([nobody, [list(s) for s in skips], env.get("ELPS_DATA_PATH", "")])
    if key not in _known:
        _known[key] = await asyncio.to_thread(reference.run, nobody, env, skips=list(skips))
    return _known[key]


def assert_close(got: Any, expected: Any, dtype: str) -> None:
    """Within the tolerance of the dtype."""
    at = TOLERANCE[dtype]
    np.testing.assert_allclose(
        np.asarray(got, float), np.asarray(expected, float), rtol=at, atol=at
    )


async def assert_trained_as_plain_loop(
    job: Job,
    env: Mapping[str, str],
    *,
    document: JobDocument | None = None,
    skips: Iterable[Interval] = (),
    timeout_s: float = 40.0,
) -> reference.Reference:
    """Follow a job to its end and compare all that it gave, however often parts of it were done again.

    Rows and events that a leader had not sent when it died are lost. `document`: as the plain loop is to run it.
    """
    record = await job.finished(timeout_s)
    expected = await plain(document or job.document, env, list(skips))
    dtype = job.document.dtype
    assert record.progress.iteration == record.progress.iterations == expected.iterations
    assert (await job.manifest()).iteration == expected.iterations
    assert_close(await job.flat(), expected.flat(), dtype)
    losses = {row.iteration: row.loss for row in job.rows}
    assert_close([*losses.values()], [expected.losses[t] for t in losses], dtype)
    for event in job.told("evaluated"):
        assert event.iteration is not None
        if event.iteration not in expected.evaluations:  # in place of one that a leader took along
            assert record.terms > 1
            continue
        metrics = expected.evaluations[event.iteration]
        assert event.metrics.keys() == metrics.keys()
        assert_close([event.metrics[name] for name in metrics], [*metrics.values()], dtype)
    if expected.evaluations:
        last = max(expected.evaluations)
        assert record.progress.metrics_iteration == last
        metrics = expected.evaluations[last]
        assert_close(
            [record.progress.metrics[name] for name in metrics], [*metrics.values()], dtype
        )
    return expected


async def assert_equal_to_plain_loop(
    job: Job, env: Mapping[str, str], **how: Any
) -> reference.Reference:
    """The same, and all of it was told, once."""
    expected = await assert_trained_as_plain_loop(job, env, **how)
    assert [r.iteration for r in job.rows] == list(range(expected.iterations))
    assert [e.iteration for e in job.told("evaluated")] == sorted(expected.evaluations)
    assert (await job.record()).progress.redone_iterations == 0
    return expected
