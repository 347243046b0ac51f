"""What `elps doctor` thinks of what it reads."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.topology import DEAD, SCHEDULER_JOBS_QUEUE
from elps.doctor.core import readings as kinds
from elps.doctor.core.finding import Finding, numbers, size, worst
from elps.doctor.core.judging import judge
from elps.doctor.core.readings import (
    BrokerReading,
    FolderReading,
    MachineReading,
    MonitorReading,
    QueueReading,
    Readings,
    StoreReading,
)

GIB = 2**30
BROKER = BrokerReading(
    "amqp://u:***@b:5672/elps",
    product="RabbitMQ",
    version="3.10.8",
    queues={
        SCHEDULER_JOBS_QUEUE: (QueueReading(0, 1), QueueReading(0, 1)),
        DEAD: (QueueReading(0, 0), QueueReading(0, 0)),
    },
    answered=True,
)
STORE = StoreReading(
    "redis://:***@s:6379/0",
    info={
        "redis_version": "7.0.15",
        "role": "master",
        "maxmemory_policy": "noeviction",
        "aof_enabled": "1",
        "appendfsync": "everysec",
        "used_memory": str(GIB),
        "maxmemory": str(8 * GIB),
        "evicted_keys": "0",
    },
    clock_off_s=0.001,
    strays=(),
)
MONITOR = MonitorReading(
    "http://m:8750",
    version="1.2",
    parts={
        "scheduler": {"status": "ok", "detail": "1 there", "count": 1},
        "shards": {"status": "ok", "detail": "2 there", "count": 2},
        "workers": {"status": "ok", "detail": "4 there", "count": 4},
        "versions": {"status": "ok", "detail": "1.2", "count": 1},
        "clocks": {"status": "ok", "detail": "3 as the monitor's", "count": 3},
    },
    clock_off_s=0.4,
    clock_within_s=1.0,
)
FOLDER = FolderReading(
    "/srv/.elps", "data and logs, ELPS_HOME", True, free_bytes=90 * GIB, total_bytes=100 * GIB
)
MACHINE = MachineReading("1.2", open_files=20_000, folders=(FOLDER,))
WELL = Readings(MACHINE, "in /srv/.elps", found=True, broker=BROKER, store=STORE, monitor=MONITOR)


def found(check: str, readings: Readings) -> Finding:
    [finding] = [f for f in judge(readings) if f.check == check]
    return finding


def broker(**changes: Any) -> Readings:
    return replace(WELL, broker=replace(BROKER, **changes))


def store(**changes: Any) -> Readings:
    return replace(WELL, store=replace(STORE, **changes))


def info(**changes: str | None) -> Readings:
    facts = {**STORE.info, **changes}
    return store(info={name: fact for name, fact in facts.items() if fact is not None})


def monitor(**changes: Any) -> Readings:
    return replace(WELL, monitor=replace(MONITOR, **changes))


def part(name: str, **changes: Any) -> Readings:
    return monitor(parts={**MONITOR.parts, name: {**MONITOR.parts[name], **changes}})


def folder(**changes: Any) -> Readings:
    return replace(WELL, machine=replace(MACHINE, folders=(replace(FOLDER, **changes),)))


def queue(name: str, *moments: tuple[int, int]) -> Readings:
    before, after = (QueueReading(*moment) for moment in moments)
    return broker(queues={**BROKER.queues, name: (before, after)})


def test_of_a_stack_that_is_well_nothing_is_said_to_be_done() -> None:
    assert [f for f in judge(WELL) if f.status != "ok" or f.todo] == []
    assert worst(judge(WELL)) == "ok"


JOBS = f"queue {SCHEDULER_JOBS_QUEUE}"
FAULTS: list[tuple[Readings, str, str, str]] = [
    (Readings(MACHINE, "no stack was found", found=False), "stack", "problem", "make up"),
    # broker
    (broker(error="refused"), "broker", "problem", "start it"),
    (broker(error="no", refused=True), "broker", "problem", "ELPS_AMQP_URL"),
    (broker(version="3.9.27"), "broker version", "problem", "3.10"),
    (broker(version=""), "broker version", "warning", "3.10"),
    (broker(product="LavinMQ"), "broker version", "warning", "RabbitMQ"),
    (broker(blocked=True), "broker takes messages", "problem", "alarm"),
    (broker(denied={"bind": "403"}), "broker permissions", "problem", "set_permissions"),
    (broker(queues={SCHEDULER_JOBS_QUEUE: None}), JOBS, "warning", "elps-scheduler"),
    (queue(SCHEDULER_JOBS_QUEUE, (0, 1), (0, 0)), JOBS, "problem", "the scheduler"),
    (queue(SCHEDULER_JOBS_QUEUE, (5, 1), (5, 1)), JOBS, "warning", "log of the scheduler"),
    (broker(answered=False), "scheduler answers", "problem", "log"),
    (broker(stuck={"elps.x": "no answer"}), "queue elps.x", "problem", "restart the broker"),
    (queue(DEAD, (0, 0), (3, 0)), "dead letters", "warning", "x-elps-reason"),
    # store
    (store(error="refused"), "store", "problem", "start it"),
    (store(error="no", refused=True), "store", "problem", "ELPS_REDIS_URL"),
    (info(redis_version="5.0.14"), "store version", "problem", "Redis 7"),
    (info(redis_version="6.2.0"), "store version", "warning", "Redis 7"),
    (info(redis_version=None), "store version", "warning", "INFO"),
    (store(denied={"EVAL": "NOPERM"}), "store permissions", "problem", "ACL SETUSER"),
    (store(denied={"INFO": "NOPERM"}), "store permissions", "warning", "ACL SETUSER"),
    (store(refuses="OOM - raise"), "store takes values", "problem", "do as it says"),
    (info(role="slave"), "store takes values", "problem", "primary"),
    (info(aof_last_write_status="err"), "store takes values", "problem", "disk"),
    (info(maxmemory_policy="allkeys-lru"), "store memory policy", "problem", "noeviction"),
    (info(maxmemory_policy=None), "store memory policy", "warning", "noeviction"),
    (info(evicted_keys="7"), "store memory policy", "warning", "export"),
    (info(aof_enabled="0"), "store persistence", "problem", "appendonly yes"),
    (info(aof_enabled=None), "store persistence", "warning", "appendonly"),
    (info(aof_last_bgrewrite_status="err"), "store persistence", "warning", "disk"),
    (info(appendfsync="no"), "store persistence", "warning", "everysec"),
    (info(used_memory=str(7 * GIB)), "store memory", "warning", "elps delete"),
    (info(used_memory=str(8 * GIB)), "store memory", "problem", "elps delete"),
    (
        info(maxmemory="0", total_system_memory=str(GIB)),
        "store memory",
        "problem",
        "ELPS_KEEP_JOBS_S",
    ),
    (info(used_memory=None), "store memory", "warning", "INFO"),
    (store(strays=("old-1",)), "store keys", "warning", "unlink"),
    (store(clock_off_s=-5.0), "clock of the store's host", "warning", "chrony"),
    (store(clock_off_s=300.0), "clock of the store's host", "problem", "chrony"),
    # services
    (monitor(url=""), "monitor", "warning", "ELPS_MONITOR_URL"),
    (monitor(error="refused"), "monitor", "problem", "elps-monitor"),
    (monitor(parts={}), "services", "warning", "ELPS_TOKEN"),
    (part("scheduler", status="degraded", count=0), "scheduler", "problem", "elps-scheduler"),
    (part("shards", status="degraded", count=1), "shards", "warning", "elps-shard"),
    (part("workers", status="degraded", count=0), "workers", "problem", "elps-worker"),
    (part("versions", status="degraded", detail="1.1: s1; 1.2: m"), "versions", "warning", "one"),
    (monitor(version="1.1"), "versions", "warning", "one version"),
    (monitor(clock_off_s=-4.0), "clock of the monitor's host", "warning", "chrony"),
    (
        part("clocks", status="degraded", detail="h 9.0 s ahead"),
        "clocks of the services' hosts",
        "warning",
        "chrony",
    ),
    # machine
    (folder(there=False), "disk /srv/.elps", "problem", "make it"),
    (folder(usable=False), "disk /srv/.elps", "problem", "chown"),
    (folder(open_to_others=True), "disk /srv/.elps", "warning", "chmod 600"),
    (folder(free_bytes=GIB), "disk /srv/.elps", "warning", "free some"),
    (folder(free_bytes=GIB // 8), "disk /srv/.elps", "problem", "free some"),
    (replace(WELL, machine=replace(MACHINE, open_files=256)), "open files", "warning", "ulimit"),
]


def test_what_nobody_could_look_at_is_not_said_to_be_well() -> None:
    denied = store(denied={"SCAN": "NOPERM"}, strays=None)
    assert "store keys" not in [finding.check for finding in judge(denied)]


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [(5000, 3000, "warning"), (3000, 3000, "problem"), (40, 0, "problem")],
)
def test_a_question_behind_a_crowd_that_becomes_smaller_is_no_sign_of_a_fault(
    before: int, after: int, status: str
) -> None:
    waiting = {SCHEDULER_JOBS_QUEUE: (QueueReading(before, 1), QueueReading(after, 1))}
    found = {f.check: f for f in judge(broker(queues={**BROKER.queues, **waiting}, answered=False))}
    assert found["scheduler answers"].status == status


@pytest.mark.parametrize(
    ("readings", "check", "status", "todo"),
    FAULTS,
    ids=[f"{check}-{n}" for n, (_, check, _, _) in enumerate(FAULTS)],
)
def test_each_fault_is_found_as_the_only_one_with_what_to_do(
    readings: Readings, check: str, status: str, todo: str
) -> None:
    finding = found(check, readings)
    assert finding.status == status
    assert todo in finding.todo
    assert [f.check for f in judge(readings) if f.status != "ok"] == [check]
    assert worst(judge(readings)) == status


@pytest.mark.parametrize(
    "readings",
    [
        broker(version="4.1.0"),
        broker(version="3.13.0-rc.2"),
        info(redis_version="7.2.4", valkey_version="8.0.1"),
        info(redis_version="6.2.0", valkey_version="7.2.5"),
        store(clock_off_s=3.0, clock_within_s=1.5),
        store(strays=None),
        monitor(parts={name: p for name, p in MONITOR.parts.items() if name != "clocks"}),
        queue(SCHEDULER_JOBS_QUEUE, (500, 1), (20, 1)),
        folder(free_bytes=GIB, total_bytes=4 * GIB),
        folder(written=False, free_bytes=1),
    ],
)
def test_what_is_unusual_and_well_is_well(readings: Readings) -> None:
    assert worst(judge(readings)) == "ok"


def test_with_broker_and_store_away_the_rest_is_looked_at() -> None:
    away = replace(WELL, broker=replace(BROKER, error="no"), store=replace(STORE, error="no"))
    wrong = [f.check for f in judge(away) if f.status != "ok"]
    assert wrong == ["broker", "store"]
    assert "monitor" in [f.check for f in judge(away)]


def texts() -> st.SearchStrategy[str]:
    return st.text(max_size=12) | st.sampled_from(["ok", "0", "1", "no", "3.10.8", "master"])


facts = st.dictionaries(st.sampled_from(sorted(STORE.info)), st.integers(0, 2**40).map(str))
moments = st.builds(QueueReading, st.integers(0, 9), st.integers(0, 2))
brokers = st.builds(
    BrokerReading,
    texts(),
    error=texts(),
    refused=st.booleans(),
    product=texts(),
    version=texts(),
    blocked=st.booleans(),
    denied=st.dictionaries(texts(), texts(), max_size=2),
    queues=st.dictionaries(
        st.sampled_from([SCHEDULER_JOBS_QUEUE, DEAD]), st.none() | st.tuples(moments, moments)
    ),
)
offsets = st.none() | st.floats(-1e9, 1e9)
stores = st.builds(
    StoreReading,
    texts(),
    error=texts(),
    info=facts,
    denied=st.dictionaries(texts(), texts(), max_size=2),
    refuses=texts(),
    clock_off_s=offsets,
    strays=st.none() | st.lists(texts(), max_size=8).map(tuple),
)
monitors = st.builds(
    MonitorReading,
    texts(),
    error=texts(),
    version=texts(),
    parts=st.dictionaries(
        st.sampled_from(sorted(MONITOR.parts)),
        st.fixed_dictionaries({}, optional={"status": texts(), "count": st.integers(0, 3)}),
    ),
    clock_off_s=offsets,
)
folders = st.builds(
    FolderReading,
    texts(),
    texts(),
    st.booleans(),
    there=st.booleans(),
    usable=st.booleans(),
    free_bytes=st.none() | st.integers(0, 2**50),
    total_bytes=st.none() | st.integers(0, 2**50),
)


@given(
    st.builds(
        Readings,
        st.builds(MachineReading, texts(), st.none() | st.integers(0, 10**6), st.tuples(folders)),
        texts(),
        found=st.booleans(),
        broker=st.none() | brokers,
        store=st.none() | stores,
        monitor=st.none() | monitors,
    )
)
def test_whatever_is_read_each_finding_says_what_to_do_exactly_if_all_is_not_well(
    readings: Readings,
) -> None:
    findings = judge(readings)
    assert findings
    for finding in findings:
        assert finding.check
        assert bool(finding.todo) == (finding.status != "ok"), finding
    assert worst(findings) == max(
        (f.status for f in findings), key=["ok", "warning", "problem"].index
    )


def test_no_reading_shows_a_password() -> None:
    names = [f.name for kind in (BrokerReading, StoreReading) for f in fields(kind)]
    assert not [name for name in names if "url" in name], "only what is shown of an address is kept"
    assert kinds.__doc__


def test_versions_are_compared_as_numbers() -> None:
    assert numbers("3.10.8") == (3, 10, 8)
    assert numbers("4.0.0-rc.1") == (4, 0, 0)
    assert numbers("7.2.4") > numbers("7.0.15")  # type: ignore[operator]
    assert numbers("unknown") is None
    assert [size(n) for n in (5, 2048, 3 * 2**20, GIB)] == [
        "5 bytes",
        "2.0 KiB",
        "3.0 MiB",
        "1.0 GiB",
    ]
