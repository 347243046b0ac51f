"""Whole numbers in messages and records, all of them bounded: what is read must also be fit to be written."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

LARGEST = 2**53
"""Exact in every reader of JSON; and whoever adds to it stays within the 64 bits that can be written."""

Natural = Annotated[int, Meta(ge=0, le=LARGEST)]
Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
"""What a sender may get wrong without harm is looked at by whoever uses it."""
Port = Annotated[int, Meta(ge=0, le=65_535)]
Ownership = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""`Epoch.n`, as frames have it."""
