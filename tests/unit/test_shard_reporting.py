"""What a leader tells of its job."""

from __future__ import annotations

import asyncio

import pytest

from elps.contracts.epoch import Term
from elps.contracts.ids import JobId
from elps.contracts.job import Feedback, JobDocument
from elps.contracts.messages import HostJob
from elps.contracts.state import Progress
from elps.contracts.texts import REASON_CHARACTERS
from elps.psshard.bridge import Bridge
from elps.psshard.core.commands import IterationDone
from elps.psshard.core.rules import Rules
from elps.psshard.core.throttle import MOST_S
from elps.psshard.reporting import Reporter
from elps.storage.checkpoints import Manifest
from elps.storage.memory import MemoryStore
from elps.stream.geometry import Geometry


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


@pytest.mark.parametrize(
    ("heard", "stored", "shown"), [(None, 20, 20), (10, 20, 20), (20, 10, 20), (None, None, None)]
)
async def test_the_newest_evaluation_is_shown_also_if_only_the_checkpoint_tells_of_it(
    heard: int | None, stored: int | None, shown: int | None
) -> None:
    """A leader that was cut off from the broker has evaluated and written; another goes on from there."""
    host = HostJob(
        job=JobId("j"), document=JobDocument(task="softmax", iterations=20), term=Term(2, 1),
        secret="", shards=[], workers=[],
        progress=Progress(metrics_iteration=heard, metrics={"at": heard}),
    )  # fmt: skip
    manifest = Manifest(
        job=JobId("j"), name="1.1-20", term=1, iteration=20, at=0.0, layout={}, dtype="float32",
        partitions=[], samples=40, batch=4, granule=1, test_samples=9, skips=[], fingerprint="f",
        code_hash="c", metrics={"at": stored}, metrics_iteration=stored,
    )  # fmt: skip
    reporter = Reporter(host, Bridge(MemoryStore(), asyncio.get_running_loop()))
    reporter.opened(Rules(Geometry(40, 4), 20), manifest)
    assert reporter.progress.metrics_iteration == shown
    assert reporter.progress.metrics == {"at": shown}


async def test_a_checkpoint_counts_as_late_after_the_rests_of_its_writers_or_once_somebody_waits() -> (
    None
):
    host = HostJob(
        job=JobId("j"), document=JobDocument(task="softmax", iterations=20), term=Term(2, 1),
        secret="", shards=[], workers=[], progress=Progress(),
    )  # fmt: skip
    reporter = Reporter(host, Bridge(MemoryStore(), asyncio.get_running_loop()))
    reporter.saving(7, 100.0)
    assert reporter.lag(100.0 + MOST_S, 5.0, "") == ""
    late = "checkpoint of version 7 is not in the store after"
    assert reporter.lag(106.0, 5.0, "refused") == f"{late} 6 s: refused"
    assert reporter.lag(106.0 + MOST_S, 5.0, "") == f"{late} 66 s"
    reporter.saving(7, 120.0, hurry=True)
    reporter.saving(7, 124.0, hurry=True)
    assert reporter.lag(125.0, 5.0, "") == ""
    assert reporter.lag(126.0, 5.0, "") == f"{late} 6 s"
    reporter.saving(None, 126.0)
    assert reporter.lag(200.0, 5.0, "") == ""


@pytest.mark.parametrize(
    ("wanted", "at"),
    [
        (Feedback(iterations=3), [3]),
        (Feedback(passes=0.5), [5]),
        (Feedback(iterations=7, passes=0.2), [2, 7]),
        (Feedback(), [10]),
        (Feedback(seconds=1e9), []),
    ],
)
async def test_the_scheduler_hears_of_early_feedback_at_once(
    wanted: Feedback, at: list[int]
) -> None:
    document = JobDocument(task="softmax", iterations=20, feedback=wanted)
    host = HostJob(
        job=JobId("j"), document=document, term=Term(1, 1), secret="", shards=[], workers=[],
        progress=Progress(),
    )  # fmt: skip
    bridge = Bridge(MemoryStore(), asyncio.get_running_loop())
    reporter = Reporter(host, bridge)
    reporter.opened(Rules(Geometry(40, 4), 20), None)
    beats = []
    for n in range(20):
        done = IterationDone(n, count=4, skipped=0, loss=1.0, duration_s=0.1, timings={})
        reporter.iteration_done(done, plan=1, n=0)
        await asyncio.sleep(0)  # the bridge wakes the loop by a call of its own
        _, _, beat = bridge.take()
        beats += [n + 1] * beat
    assert beats == at
