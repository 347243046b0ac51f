"""What happened to a job lately: its record's changes of state and the events that the monitor holds, as one story."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from elps.cli.listing import first_line
from elps.cli.progress import tell
from elps.contracts.answers import Event
from elps.contracts.state import Change

NEWEST_CHANGES = 10
"""Changes of state shown, beside the first."""
NEWEST_OF_A_KIND = 3
"""Of every other kind of event: a job that is evaluated all the time does not drown what else happened to it."""


@dataclass(frozen=True)
class Told:
    """One line of the story."""

    at: float
    """Unix time, s; 0 for a line that stands for several."""
    text: str


def since(submitted_at: float | None, events: Iterable[Any]) -> list[Any]:
    """Events as the monitor gives them, without those of an earlier job that had the id and was deleted."""
    return [e for e in events if submitted_at is None or e.get("at", submitted_at) >= submitted_at]


def lately(changes: list[Change], events: Iterable[Event]) -> list[Told]:
    """The story in order of time, however late its parts were heard of, each of them once.

    A change of state is known from the record, which outlives the monitor, and from an event with the same time.
    """
    states = {(c.at, c.state): f"{c.state.value}: {c.reason}" for c in changes}
    others: dict[str, dict[tuple[float, str], None]] = {}
    for event in events:
        if event.state is not None:
            states.setdefault((event.at, event.state), f"{event.state.value}: {event.reason}")
        else:
            others.setdefault(event.what, {})[event.at, tell(event)] = None
    life = sorted((Told(at, first_line(text)) for (at, _), text in states.items()), key=_time)
    found = life[-NEWEST_CHANGES:]
    for kind in others.values():
        found += [Told(at, first_line(text)) for at, text in sorted(kind)[-NEWEST_OF_A_KIND:]]
    found.sort(key=_time)
    if len(life) > NEWEST_CHANGES:
        between = len(life) - 1 - NEWEST_CHANGES
        left_out = [Told(0.0, f"… {between} changes of state between, see --json")]
        found = [life[0], *(left_out if between else []), *found]
    return found


def _time(told: Told) -> float:
    return told.at
