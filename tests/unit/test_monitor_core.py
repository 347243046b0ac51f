"""Members, logs, the feed of events, and what is let in at all."""

from __future__ import annotations

import random
import tracemalloc

import orjson
import pytest
from monitor_messages import bare_beat

from elps.contracts.codec import encode
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import AgentId, JobId, WorkerId
from elps.contracts.messages import AgentBeat, JobEvent, SchedulerBeat
from elps.contracts.requests import Query
from elps.contracts.telemetry import LogLines
from elps.monitor.core import feed as feed_module
from elps.monitor.core import intake, logs
from elps.monitor.core.feed import Feed
from elps.monitor.core.logs import JobLog, Logs
from elps.monitor.core.members import FORGET_S, Members


def liveness(members: Members, now_s: float) -> list[str]:
    return [found for _, found, _ in members.shards.listed(now_s)]


# --- members ---


def test_a_member_is_lost_when_it_was_silent_too_long_by_the_receivers_clock() -> None:
    members = Members(lost_s=5.0)
    members.take(bare_beat(1), 100.0)
    assert liveness(members, 105.0) == ["alive"]
    assert liveness(members, 105.1) == ["lost"]
    members.take(bare_beat(2), 106.0)
    assert liveness(members, 106.0) == ["alive"]


def test_late_and_doubled_beats_are_dropped_and_keep_nobody_alive() -> None:
    members = Members(lost_s=5.0)
    assert members.take(bare_beat(7), 0.0)
    assert not members.take(bare_beat(7), 4.0)
    assert not members.take(bare_beat(6), 4.0)
    assert liveness(members, 6.0) == ["lost"]


def test_a_restarted_member_counts_from_the_start_and_its_past_does_not_come_back() -> None:
    members = Members(lost_s=5.0)
    members.take(bare_beat(900, incarnation="old"), 0.0)
    assert members.take(bare_beat(1, incarnation="new"), 1.0)
    assert not members.take(bare_beat(901, incarnation="old"), 2.0)
    found = members.shards.get("shard-1")
    assert found is not None
    assert found.beat.incarnation == "new"


def test_who_left_is_forgotten_soon_and_who_was_lost_later() -> None:
    members = Members(lost_s=5.0)
    members.take(bare_beat(1, shard="left", leaving=True), 0.0)
    members.take(bare_beat(1, shard="lost"), 0.0)
    assert liveness(members, 1.0) == ["leaving", "alive"]
    members.forget(6.0)
    assert liveness(members, 6.0) == ["lost"]
    members.forget(FORGET_S + 1)
    assert len(members.shards) == 0


def test_members_are_bounded_and_the_stalest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elps.monitor.core.members.MAX_MEMBERS", 3)
    members = Members(lost_s=5.0)
    for i in range(5):
        members.take(bare_beat(1, shard=f"s{i}"), float(i))
    assert [m.beat.shard for m, _, _ in members.shards.listed(5.0)] == ["s2", "s3", "s4"]


# --- logs ---


def test_lines_are_numbered_in_the_order_of_arrival_and_read_from_any_number() -> None:
    log = JobLog()
    log.add("w1", 1.0, ["a", "b"])
    log.add("w2", 2.0, ["c"])
    assert [(line.n, line.worker, line.text) for line in log.since(1, 10, 10**6)] == [
        (1, "w1", "b"),
        (2, "w2", "c"),
    ]
    assert log.since(3, 10, 10**6) == []
    assert log.since(10**9, 10, 10**6) == []


def test_a_job_keeps_its_newest_lines_within_lines_and_bytes() -> None:
    log = JobLog()
    log.add("w", 0.0, [str(i) for i in range(logs.MAX_LINES + 10)])
    assert len(log.lines) == logs.MAX_LINES
    assert log.lines[0].n == 10
    log.add("w", 0.0, ["\x00" * logs.MAX_LINE_CHARACTERS] * 200)
    assert log.size_bytes <= logs.MAX_JOB_BYTES
    assert log.size_bytes == sum(line.size_bytes for line in log.lines)


def test_a_long_line_is_cut_and_says_so() -> None:
    log = JobLog()
    log.add("w", 0.0, ["x" * 1_000_000])
    assert log.lines[0].text.endswith("… (1000000 characters)")
    assert len(log.lines[0].text) < logs.MAX_LINE_CHARACTERS + 40


def test_an_answer_holds_at_least_one_line_and_no_more_than_its_bytes() -> None:
    log = JobLog()
    log.add("w", 0.0, ["x" * 100] * 50)
    assert len(log.since(0, 1000, 1)) == 1
    assert len(log.since(0, 1000, 102 * 10)) == 10


def test_over_all_jobs_the_largest_log_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 10_000)
    kept = Logs()
    kept.add("small", "w", 0.0, ["precious"])
    for _ in range(100):
        kept.add("large", "w", 0.0, ["x" * 1_000])
        assert kept.size_bytes <= 10_000
    assert [line.text for line in kept.get("small").lines] == ["precious"]
    kept.forget("large")
    assert kept.size_bytes == kept.get("small").weight_bytes


def test_short_lines_weigh_what_they_take() -> None:
    kept = Logs()
    texts = [[f"{i}" for i in range(n, n + 100)] for n in range(100_000, 104_000, 100)]
    tracemalloc.start()
    try:
        for n, some in enumerate(texts):
            kept.add("j", "w", float(n), [text + "." for text in some])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 < kept.size_bytes / taken < 2


# --- feed ---


def event(what: str = "running", job: str = "j") -> JobEvent:
    return JobEvent(job=JobId(job), what=what, at=1.0)


def test_a_reader_goes_on_after_the_event_it_saw_last() -> None:
    feed = Feed("r")
    feed.add(event("a"))
    seen = feed.add(event("b"))
    feed.add(event("c"))
    place, missed = feed.place(seen.id)
    assert not missed
    assert [e.what for e in feed.since(place)] == ["c"]


def test_a_new_reader_begins_with_what_comes() -> None:
    feed = Feed("r")
    feed.add(event())
    assert feed.place(None) == (1, False)
    assert feed.since(1) == []


@pytest.mark.parametrize(
    "last", ["other-0", "r-", "r-99", "r--1", "r-1e3", "", "r-" + "9" * 40, "r-²"]
)
def test_a_reader_of_another_run_or_with_nonsense_gets_all_and_is_told(last: str) -> None:
    feed = Feed("r")
    feed.add(event("a"))
    assert feed.place(last) == (0, True)


def test_a_reader_that_fell_behind_the_ring_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed("r")
    first = feed.add(event("first")).id
    for _ in range(feed_module.MAX_EVENTS + 1):
        feed.add(event())
    place, missed = feed.place(first)
    assert missed
    assert place < feed.oldest
    assert len(feed.since(place)) == feed_module.MAX_EVENTS


def test_a_reader_goes_on_over_a_restart_and_is_told_that_something_may_lie_between() -> None:
    before = Feed("r1")
    seen = [before.add(event(what)) for what in ("a", "b", "c")]
    feed = Feed("r2")
    feed.add(event("d"))
    feed.restore(feed_module.unpack(feed_module.pack(before.since(0))))
    place, missed = feed.place(seen[1].id)
    assert missed
    assert [e.what for e in feed.since(place)] == ["c", "d"]
    assert feed.place("r2-0") == (1, False)
    assert [e.what for e in feed.since(feed.oldest)] == ["a", "b", "c", "d"]
    assert feed.add(event("e")).id == "r2-1"


def test_after_a_kill_a_reader_goes_on_behind_what_was_kept_and_gets_nothing_twice() -> None:
    first, second = Feed("r1"), Feed("r2")
    for what in ("a", "b", "c"):
        first.add(event(what))
    second.restore(first.since(0)[:2])  # the newest was not saved any more
    for what in ("d", "e"):
        second.add(event(what))
    third = Feed("r3")
    third.restore(second.since(second.oldest)[:3])
    third.add(event("f"))

    def told(last: str) -> list[str]:
        place, missed = third.place(last)
        assert missed
        return [e.what for e in third.since(place)]

    assert told("r1-2") == ["d", "f"]
    assert told("r2-1") == ["f"]
    assert told("r2-start") == ["d", "f"]
    assert told("r9-0") == ["a", "b", "d", "f"]


def test_a_reader_that_has_seen_nothing_yet_goes_on_where_it_began() -> None:
    feed = Feed("r")
    at_first = feed.newest
    feed.add(event("a"))
    later = feed.newest
    feed.add(event("b"))
    assert feed.place(at_first) == (0, False)
    assert feed.place(later) == (1, False)


def test_what_is_told_page_by_page_is_the_whole() -> None:
    feed = Feed("r")
    for n in range(25):
        feed.add(event(str(n)))
    told, place = list[str](), 3
    while place < feed.next:
        page, place = feed.page(place, 10)
        assert len(page) <= 10
        told += [e.what for e in page]
    assert told == [str(n) for n in range(3, 25)]


def test_events_of_earlier_runs_take_the_room_that_is_left() -> None:
    before, feed = Feed("r1"), Feed("r2")
    for n in range(feed_module.MAX_EVENTS):
        before.add(event(f"old-{n}"))
    feed.add(event("new"))
    feed.restore(before.since(0))
    held = [e.what for e in feed.since(feed.oldest)]
    assert len(held) == feed_module.MAX_EVENTS
    assert (held[0], held[-1]) == ("old-1", "new")


def test_events_whose_texts_are_too_large_are_kept_from_the_newest_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "MAX_PACKED_BYTES", 64 * 1024)
    rng, feed = random.Random(5), Feed("r")
    for n in range(200):
        feed.add(JobEvent(job=JobId("j"), what=str(n), at=1.0, reason=rng.randbytes(900).hex()))
    body = feed_module.pack(feed.since(0))
    assert len(body) <= 64 * 1024
    kept = feed_module.unpack(body)
    assert 10 < len(kept) < 200
    assert kept == feed.since(feed.next - len(kept))
    with pytest.raises(InvalidDocument, match="events kept"):
        feed_module.unpack(body[:100])


# --- what is let in ---


GOOD_ROW = {
    "iteration": 1,
    "passes": 0.1,
    "samples": 8,
    "skipped": 0,
    "loss": 0.5,
    "duration_s": 0.1,
    "at": 1.0,
    "term": 1,
    "plan": 1,
    "lr": 0.1,
    "workers": [],
}


def rows_body(job: str = "j", **fields: object) -> bytes:
    return orjson.dumps({"type": "iterations", "job": job, "rows": [GOOD_ROW | fields]})


def test_good_messages_are_read() -> None:
    assert intake.read_beat(encode(bare_beat(1))) == bare_beat(1)
    agent = AgentBeat(
        agent=AgentId("a"),
        incarnation="i",
        seq=1,
        host="h",
        pid=1,
        slots=1,
        trainers=[],
        version="1",
    )
    assert intake.read_beat(encode(agent)) == agent
    scheduler = SchedulerBeat(incarnation="i", seq=1, host="h", pid=1, jobs={}, version="1")
    assert intake.read_beat(encode(scheduler)) == scheduler
    assert intake.read_event(encode(event())) == event()
    lines = LogLines(job=JobId("j"), worker=WorkerId("j-w1"), at=1.0, lines=["é", "\x1b[1m"])
    assert intake.read_telemetry(encode(lines)) == lines
    assert intake.read_telemetry(rows_body())


HOSTILE = [
    b"",
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.",
    b"null",
    b"[]",
    b"{}",
    b'{"type":"nothing"}',
    b'{"type":["shard"]}',
    b"[" * 2000 + b"]" * 2000,
    b"\xff\xfe",
    b'{"type":"iterations","job":"j","rows":null}',
    b"x" * (5 * 1024 * 1024),
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda b: repr(b[:24]))
@pytest.mark.parametrize(
    "read",
    [
        intake.read_beat,
        intake.read_event,
        intake.read_telemetry,
        intake.read_record,
        intake.read_query,
    ],
)
def test_bytes_that_are_no_message_are_refused_with_a_reason(read, body: bytes) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidDocument) as caught:
        read(body)
    assert caught.value.problems


@pytest.mark.parametrize(
    "job", ["", "a/b", "../x", "a.#", "*", "job:1", "x" * 300, "jöb", "a b", "a\n"]
)
def test_ids_that_are_none_are_refused_everywhere(job: str) -> None:
    with pytest.raises(InvalidDocument):
        intake.read_telemetry(rows_body(job))
    with pytest.raises(InvalidDocument):
        intake.read_event(orjson.dumps({"type": "event", "job": job, "what": "running", "at": 1.0}))
    with pytest.raises(InvalidDocument):
        intake.read_query(orjson.dumps({"what": "job", "job": job}))


@pytest.mark.parametrize(
    "fields",
    [
        {"iteration": -1},
        {"iteration": 2**60},
        {"iteration": 1.5},
        {"term": -3},
        {"samples": -8},
        {"loss": "0.3"},
        {"workers": [{"worker": "x" * 1000}]},
        {"workers": None},
    ],
    ids=str,
)
def test_rows_with_senseless_numbers_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidDocument):
        intake.read_telemetry(rows_body(**fields))


def test_an_event_cannot_carry_another_jobs_record_or_a_name_with_line_breaks() -> None:
    with pytest.raises(InvalidDocument):
        intake.read_event(
            orjson.dumps({"type": "event", "job": "j", "what": "x\nevent: forged", "at": 1.0})
        )
    metrics = {f"m{i}": 1.0 for i in range(1000)}
    with pytest.raises(InvalidDocument):
        intake.read_event(
            encode(JobEvent(job=JobId("j"), what="evaluated", at=1.0, metrics=metrics))
        )


def test_a_query_out_of_range_is_refused_with_every_problem() -> None:
    with pytest.raises(InvalidDocument) as caught:
        intake.check_query(Query(what="iterations", since=-1, limit=0))
    assert len(caught.value.problems) == 3
