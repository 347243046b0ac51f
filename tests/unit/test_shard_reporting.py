"""What a leader tells of its job."""

from __future__ import annotations

import asyncio

from elps.contracts.epoch import Term
from elps.contracts.ids import JobId
from elps.contracts.job import JobDocument
from elps.contracts.messages import HostJob
from elps.contracts.state import Progress
from elps.contracts.texts import REASON_CHARACTERS
from elps.psshard.bridge import Bridge
from elps.psshard.reporting import Reporter
from elps.storage.memory import MemoryStore


async def test_an_event_names_its_term_and_its_reason_is_bounded() -> None:
    host = HostJob(
        job=JobId("j"),
        document=JobDocument(task="softmax", iterations=1),
        term=Term(7, 1),
        secret="",
        shards=[],
        workers=[],
        progress=Progress(),
    )
    bridge = Bridge(MemoryStore(), asyncio.get_running_loop())
    Reporter(host, bridge).event("worker_lost", "signal 9" + "x" * 100_000 + "the end")
    _, [event], _ = bridge.take()
    assert event.term == 7
    assert len(event.reason) <= REASON_CHARACTERS
    assert event.reason.startswith("signal 9")
    assert event.reason.endswith("the end")
