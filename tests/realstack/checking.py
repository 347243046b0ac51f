"""What the rows of a finished job say, held against the plain loop and the sample stream."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
from realstack.training import TOLERANCE, Training, plain_loop

from elps.contracts.state import JobRecord
from elps.stream.geometry import Geometry

IN_A_BEAT = 30
"""Iterations that a leader may have done, and told of, since its last heartbeat when it died."""


async def assert_rows_fit(training: Training, record: JobRecord) -> None:
    """Each row counts just the samples of its iteration, with the loss that the plain loop has there.

    A row may be missing: the broker was away, or the leader died with it. It may lack its loss once for a trainer that
    went when it had pushed and not told. None comes twice but for iterations that were done again, of which the job's
    record tells.
    """
    manifest = await training.manifest()
    assert manifest is not None
    stream = Geometry(manifest.samples, manifest.batch)
    expected = await asyncio.to_thread(plain_loop, training.document)
    bound = TOLERANCE[training.document.dtype]
    for row in training.rows:
        assert row.samples == stream.iteration(row.iteration).size, row
        assert row.skipped == 0, row
        if row.loss is not None:
            np.testing.assert_allclose(
                row.loss, expected.losses[row.iteration], rtol=bound, atol=bound, err_msg=str(row)
            )
    unknown = [row.iteration for row in training.rows if row.loss is None]
    assert len(unknown) <= record.workers_named, f"no loss of iterations {unknown}"
    times = Counter((row.term, row.iteration) for row in training.rows)
    twice = [
        at for at, n in times.items() if n > 1
    ]  # a job may go back to a checkpoint within a term
    assert sum(times[at] - 1 for at in twice) <= record.progress.redone_iterations, (
        f"told twice under one term: {twice}; {await training.story()}"
    )
    again = len(training.rows) - len({row.iteration for row in training.rows})
    assert again <= record.progress.redone_iterations + IN_A_BEAT * (record.terms - 1), (
        f"{again} iterations told twice, {record.progress.redone_iterations} counted;"
        f" {await training.story()}"
    )
