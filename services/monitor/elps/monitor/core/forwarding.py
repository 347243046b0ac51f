"""What the scheduler needs of a batch of rows, to decide the coming batches of a job's workers.

Nothing of it is kept.
"""

from __future__ import annotations

from elps.contracts.messages import (
    IterationRows,
    IterationTiming,
    IterationTimings,
    TelemetryMessage,
)

NEWEST = 4
"""Rows passed on of one message: those of very short iterations come many at once, and say much the same."""


def timings_of(message: TelemetryMessage) -> IterationTimings | None:
    """The newest timings in a message; None if nobody waits for any."""
    if not isinstance(message, IterationRows) or not message.balanced or not message.rows:
        return None
    term = message.rows[-1].term
    return IterationTimings(
        job=message.job,
        term=term,
        rows=[
            IterationTiming(iteration=row.iteration, workers=row.workers)
            for row in message.rows[-NEWEST:]
            if row.term == term
        ],
    )
