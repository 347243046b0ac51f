"""A finding, and what several of them come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Status = Literal["ok", "warning", "problem"]
ORDER: tuple[Status, ...] = ("ok", "warning", "problem")


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    check: str
    status: Status
    """``warning``: it works, and may not for long, or not for all. ``problem``: something does not work."""
    found: str
    todo: str = ""
    """What to do about it; empty exactly when all is well."""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", found)


def warning(check: str, found: str, todo: str) -> Finding:
    """See `Finding.status`."""
    return Finding(check, "warning", found, todo)


def problem(check: str, found: str, todo: str) -> Finding:
    """See `Finding.status`."""
    return Finding(check, "problem", found, todo)


def worst(findings: Iterable[Finding]) -> Status:
    """The status of the whole."""
    return ORDER[max((ORDER.index(finding.status) for finding in findings), default=0)]


def numbers(version: str) -> tuple[int, ...] | None:
    """``3.10.8-rc.1`` as (3, 10, 8), to be compared; None when it does not begin with a number."""
    found: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found) or None


def size(count: int) -> str:
    """Bytes for people."""
    for unit, bound in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= bound:
            return f"{count / bound:.1f} {unit}"
    return f"{count} bytes"
