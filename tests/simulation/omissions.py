"""Rules that can be left out of a simulation. Each must be found within so many seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulation.injecting import Change

from elps.contracts.messages import BatchPlan, DirectJob, HostJob
from elps.psshard.core.part import Advance, Part
from elps.psshard.hosting import Hosting
from elps.psshard.lead import Lead
from elps.psshard.peers import Peers
from elps.scheduler.core import orders, watch
from elps.scheduler.core.core import Core
from elps.scheduler.core.pool import Pool
from elps.scheduler.outbox import Outbox
from elps.worker.core.roster import Roster


@dataclass(frozen=True)
class Omission:
    """A rule left out."""

    what: str
    changes: Sequence[Change]
    seeds: Sequence[int] = field(default_factory=tuple)
    """Among which one must be bad; the first is known to be."""


def _said_once(messages: Callable[..., Any]) -> Callable[..., Any]:
    def once(core: Core, now: Any) -> Any:
        said = core.__dict__.setdefault("said_once", [])
        due = [send for send in messages(core, now) if send not in said]
        said.extend(due)
        return due

    return once


def _any_term(hosting: Hosting, message: DirectJob | BatchPlan) -> Lead | None:
    hosted = hosting._jobs.get(message.job)
    return hosted.lead if hosted is not None else None


def _hosts_anything(hosting: Hosting, message: HostJob) -> bool:
    return False


def _no_gate(part: Part, partition: Any, due: Any = Part.due) -> Advance | None:
    part.gate = 10**9
    return due(part, partition)  # type: ignore[no-any-return]


def _no_overlap(part: Part, *args: Any, offer: Any = Part.offer) -> Any:
    from elps.psshard.core.part import Verdict

    verdict = offer(part, *args)
    p = part._partitions.get(args[3])
    if verdict is Verdict.HAVE_IT and p is not None and p.version == args[1] and not p.advancing:
        p.adding += 1
        return Verdict.ACCEPT
    return verdict


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_commands(*_: Any, **__: Any) -> list[Any]:
    return []


def _told_new_processes(pool: Any, record: Any, allocation: Any, reign: Any, addresses: Any) -> Any:
    import msgspec

    there = {s: pool.shards[s].incarnation for s in allocation.shards}
    allocation = msgspec.structs.replace(allocation, incarnations=there)
    return _host(pool, record, allocation, reign, addresses)


_host = orders._host

OMISSIONS = {
    "said once": Omission(
        "an order that is lost is not repeated",
        [(Core, "messages", _said_once(Core.messages))],
    ),
    "no fence for directions": Omission(
        "a shard takes directions of another term",
        [(Hosting, "_led", _any_term)],
    ),
    "no fence for terms": Omission(
        "a shard takes up a term that is over",
        [(Hosting, "_refuse", _hosts_anything)],
    ),
    "older trainers stay": Omission(
        "an agent does not end the trainers of an older term",
        [(Roster, "_supersede", _no_commands)],
    ),
    "late starts count": Omission(
        "an agent forgets at once whom it was to stop",
        [(Roster, "_remember", _nothing)],
    ),
    "links are silent": Omission(
        "a leader does not say again what was lost with a link",
        [(Lead, "_restored", _nothing)],
    ),
    "shards are not known anew": Omission(
        "a leader does not dial shards that came later",
        [(Peers, "know", _nothing)],
    ),
    "no ghosts": Omission(
        "a slot is free as soon as it is taken back",
        [(Pool, "take_back", _nothing)],
    ),
    "keys stay": Omission(
        "the keys of killed jobs are not removed",
        [(Outbox, "_removal_loop", _nothing)],
    ),
    "deaf": Omission(
        "a scheduler that heard nobody counts everybody as lost",
        [(Pool, "forgive", _nothing)],
    ),
    "no gate": Omission(
        "a version is left before it is safe everywhere",
        [(Part, "due", _no_gate)],
    ),
    "no overlap": Omission(
        "an interval counts twice",
        [(Part, "offer", _no_overlap)],
    ),
    "new processes": Omission(
        "a shard's new process is taken for the one that held a part",
        [(orders, "_host", _told_new_processes)],
    ),
    "nobody is stranded": Omission(
        "a pause waits for ever for a worker that nobody can give",
        [(watch, "_stranded", _nothing)],
    ),
}
