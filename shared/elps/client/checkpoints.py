"""A job's trained parameters, read from its newest checkpoint in the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.errors import ElpsError
from elps.contracts.ids import JobId, parse_job_id
from elps.contracts.state import JobRecord, JobState
from elps.storage.checkpoints import DamagedCheckpoint, all_manifests, load_values
from elps.storage.port import Store


class NoCheckpoint(ElpsError):
    """There is nothing to read; the text says what to do."""


@dataclass(frozen=True)
class Trained:
    """Parameters by name, and where they come from."""

    job: JobId
    task: str
    iteration: int
    """Iterations that they have behind them."""
    values: dict[str, NDArray[Any]]
    """In the task's own shapes and the job's dtype."""
    damaged: tuple[str, ...] = ()
    """What is wrong with newer checkpoints that had to be passed over; empty as a rule."""


async def read_newest(store: Store, job: str) -> Trained:
    """The newest valid checkpoint of a job; `NoCheckpoint` when there is no such job or it has none."""
    job_id = parse_job_id(job)
    body = await store.hash_get(topology.JOB_INDEX, job_id)
    record = None if body is None else decode(body, JobRecord)
    if record is None or record.deleted_at is not None:
        raise NoCheckpoint(f"there is no job {job_id}: `elps jobs` lists them")
    damaged: list[str] = []
    for manifest in await all_manifests(store, job_id, record.first_term):
        try:
            values = await load_values(store, manifest)
        except DamagedCheckpoint as error:
            damaged.append(str(error))
            continue
        return Trained(job_id, record.document.task, manifest.iteration, values, tuple(damaged))
    raise NoCheckpoint("; ".join(damaged) if damaged else _why_none(record))


def _why_none(record: JobRecord) -> str:
    if record.state is JobState.KILLED:
        return f"job {record.id} was killed, and its checkpoints were removed with it"
    if record.state.ended:
        return f"job {record.id} is {record.state.value} and left no checkpoint"
    every_s = record.document.checkpoint.every_s
    cadence = (
        f"it writes one every {every_s:g} s"
        if every_s
        else "it writes one when it is paused or ends"
    )
    return (
        f"job {record.id} is {record.state.value} and has no checkpoint yet: {cadence}; "
        f"`elps pause {record.id}` writes one"
    )
