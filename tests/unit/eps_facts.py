"""Facts about jobs and slots for tests of the policy `eps`, and the sizes that it decides upon."""

from __future__ import annotations

from typing import Any

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.eps import Eps
from elps.scheduler.core.policy import (
    AgentFact,
    Facts,
    HeldFact,
    QueuedFact,
    ShardFact,
)

PLENTY = tuple(ShardFact(ShardId(f"s{n}"), 9, 9, 0) for n in range(3))
LINEAR = tuple((n, float(n)) for n in (1, 2, 4))
NO_USE = ((1, 1.0), (2, 1.0), (4, 1.0))
"""Rates that do not grow with the workers."""


def queued(job: str, least: int = 1, most: int = 1, **fields: Any) -> QueuedFact:
    return QueuedFact(JobId(job), Size(min=1, max=1), Size(min=least, max=most), **fields)


def held(job: str, workers: int, least: int = 1, most: int = 8, **fields: Any) -> HeldFact:
    more = {"fed": True, "calm_s": 100.0, **fields}
    return HeldFact(JobId(job), workers, Size(min=least, max=most), 1, Size(min=1, max=1), **more)


def facts(slots: int, free: int, *jobs: QueuedFact | HeldFact, **fields: Any) -> Facts:
    return Facts(
        shards=fields.pop("shards", PLENTY),
        agents=tuple(AgentFact(AgentId(f"a{n}"), 1, int(n < free), 0) for n in range(slots)),
        queued=tuple(j for j in jobs if isinstance(j, QueuedFact)),
        running=(),
        held=tuple(j for j in jobs if isinstance(j, HeldFact)),
        **fields,
    )


def sizes(decided: Facts) -> dict[str, int]:
    """What jobs are to have after a decision."""
    decision = Eps().decide(decided)
    return {
        **{j.job: j.workers for j in decided.held},
        **{r.job: r.workers for r in decision.resizes},
        **{s.job: len(s.agents) for s in decision.starts},
    }
