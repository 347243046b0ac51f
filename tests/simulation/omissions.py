"""Rules that can be left out of a simulation. Each must be found within so many seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulation.injecting import Change
from simulation.plans import Act

from elps.psshard.core.part import Part, Verdict
from elps.psshard.lead import Lead
from elps.psshard.peers import Peers
from elps.scheduler.core.core import Core
from elps.scheduler.outbox import Outbox


@dataclass(frozen=True)
class Omission:
    """A rule left out."""

    what: str
    changes: Sequence[Change]
    acts: Sequence[Act] = ()
    """There is more of this than usual."""
    seeds: Sequence[int] = range(40)
    """Among which one must be bad."""


def _said_once(messages: Callable[..., Any]) -> Callable[..., Any]:
    def once(core: Core, now: Any) -> Any:
        said = core.__dict__.setdefault("said_once", [])
        due = [send for send in messages(core, now) if send not in said]
        said.extend(due)
        return due

    return once


def _no_overlap(part: Part, *args: Any, offer: Any = Part.offer) -> Any:
    verdict = offer(part, *args)
    p = part._partitions.get(args[3])
    if verdict is Verdict.HAVE_IT and p is not None and p.version == args[1] and not p.advancing:
        p.adding[args[1]] += 1
        return Verdict.ACCEPT
    return verdict


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _not_done(*_: Any) -> None:
    """In place of work that goes on."""


OMISSIONS = {
    "said once": Omission(
        "an order that is lost is not repeated",
        [(Core, "messages", _said_once(Core.messages))],
        (),
        range(9, 40),
    ),
    "links are silent": Omission(
        "a leader does not say again what was lost with a link",
        [(Lead, "_restored", _nothing)],
        (),
        range(10, 40),
    ),
    "links are not made": Omission(
        "a leader dials no other shard",
        [(Peers, "know", _nothing)],
        (),
        range(40),
    ),
    "keys stay": Omission(
        "the keys of killed jobs are not removed",
        [(Outbox, "_removal_loop", _not_done)],
        (Act.END,),
        range(40),
    ),
    "no overlap": Omission(
        "an interval counts twice",
        [(Part, "offer", _no_overlap)],
        (Act.RESET,),
        range(65, 100),
    ),
}
