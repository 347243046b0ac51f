"""Texts for people that travel with messages and are kept: how they stay of bounded size."""

from __future__ import annotations

REASON_CHARACTERS = 4000
"""Of the reason of a job's state or of an event, as it is kept and sent; the end of a trainer's output may be in it."""
LOGGED_CHARACTERS = 500
"""Of a reason in a line of a service's log, and one of many that a job's record tells."""


def shortened(text: str, length: int) -> str:
    """A text of at most `length` characters; what is cut is its middle, since both ends tell most."""
    if len(text) <= length:
        return text
    half = length // 2 - 2
    return f"{text[:half]} … {text[-half:]}"
