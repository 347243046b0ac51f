"""Whether a stack is healthy, asked of its monitor."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elps.local.services import AGENT, SHARD, kind_of

ASK_S = 2.0
MAX_BYTES = 16 * 1024 * 1024
NEEDED_PARTS = ("broker", "store", "scheduler")
"""Parts that must be well by themselves. Shards and workers are looked at one by one instead: a member that was ended a
minute ago is still reported as lost, and does not make a new stack unhealthy."""


@dataclass(frozen=True)
class Health:
    """What the monitor says."""

    answered: bool
    status: str
    """``ok``, ``degraded``, or what kept it from answering."""
    details: dict[str, str] = field(default_factory=dict)
    """Part to what is wrong with it."""
    members: dict[str, int] = field(default_factory=dict)
    """Live shards and agents, with their pids."""

    def missing(self, expected: Mapping[str, int]) -> list[str]:
        """What keeps a stack with these processes (name to pid) from being healthy; empty when it is."""
        if not self.answered:
            return [f"monitor: {self.status}"]
        wrong = [f"{part}: {self.details[part]}" for part in NEEDED_PARTS if part in self.details]
        if self.status != "ok" and not self.details:
            wrong.append(f"monitor: {self.status}")
        return wrong + [
            f"{name}: the monitor has not heard of it yet"
            for name, pid in expected.items()
            if kind_of(name) in (SHARD, AGENT) and self.members.get(name) != pid
        ]


def ask(url: str, token: str | None = None) -> Health:
    """Ask the monitor at `url`."""
    try:
        report = _get(url + "/healthz", token)
        listed = _get(url + "/api/shards", token), _get(url + "/api/workers", token)
    except (OSError, ValueError) as error:
        return Health(False, f"does not answer at {url} ({getattr(error, 'reason', error)})")
    parts = report.get("parts") or {}
    details = {
        name: str(part.get("detail", ""))
        for name, part in parts.items()
        if part.get("status") != "ok"
    }
    members = dict(_live(listed[0].get("shards", ()), "shard"))
    members |= dict(_live(listed[1].get("workers", ()), "agent"))
    return Health(True, str(report.get("status")), details, members)


def _live(rows: Iterable[Mapping[str, Any]], key: str) -> Iterable[tuple[str, int]]:
    return ((str(row[key]), int(row["pid"])) for row in rows if row.get("liveness") == "alive")


def _get(url: str, token: str | None) -> dict[str, Any]:
    """The JSON at `url`; that of an unhappy status too, since it says what is wrong."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=ASK_S) as answer:
            body = answer.read(MAX_BYTES)
    except urllib.error.HTTPError as error:
        body = error.read(MAX_BYTES)
        if error.code != 503:
            raise OSError(f"{error.code} {error.reason}") from None
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"{url}: expected an object")
    return found
