"""What `elps doctor` reads of real servers, whatever is wrong with them, and what it says of a whole stack."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from redis.asyncio import Redis

from elps.cli.main import main
from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.requests import Reply
from elps.doctor import broker as doctor_broker
from elps.doctor.broker import read_broker
from elps.doctor.core import broker as of_broker
from elps.doctor.core import store as of_store
from elps.doctor.core.finding import worst
from elps.doctor.machine import read_machine
from elps.doctor.store import read_store
from elps.local.broker import PrivateBroker
from elps.local.find import StackInfo
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import DEAD_QUEUE, Delivery, Queue

CLOSED = "127.0.0.1:1"
"""Nobody listens there."""


@pytest.fixture(autouse=True)
def patient_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at twice is the same both times here."""
    monkeypatch.setattr(doctor_broker, "APART_S", 0.1)
    monkeypatch.setattr(doctor_broker, "BLOCKED_WAIT_S", 0.1)


@pytest.fixture
async def bus(fresh_amqp_url: str) -> AsyncIterator[AmqpBus]:
    bus = await AmqpBus.connect(fresh_amqp_url, name="test")
    yield bus
    await bus.close()


async def ignore(_: Delivery) -> None:
    """A scheduler that takes everything and says nothing."""


JOBS = Queue(topology.SCHEDULER_JOBS_QUEUE, ((topology.JOBS, "#"),), durable=True)


def at(url: str, place: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, place, parts.path, "", ""))


# --- broker ---


async def test_a_broker_that_is_served_is_well(fresh_amqp_url: str, bus: AmqpBus) -> None:
    async def answer(delivery: Delivery) -> None:
        assert delivery.routing_key == topology.POLICY
        await bus.respond(delivery, encode(Reply(ok=True)))

    await bus.subscribe(JOBS, answer)
    reading = await read_broker(fresh_amqp_url)
    assert (reading.error, reading.product, reading.blocked) == ("", "RabbitMQ", False)
    assert reading.answered
    assert (reading.denied, reading.stuck) == ({}, {})
    assert [f for f in of_broker.judge(reading) if f.status != "ok"] == []


async def test_a_scheduler_that_takes_messages_and_answers_none_is_found(
    fresh_amqp_url: str, bus: AmqpBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is counted as waiting in its queue."""
    monkeypatch.setattr(doctor_broker, "STEP_S", 1.0)
    await bus.subscribe(JOBS, ignore)
    reading = await read_broker(fresh_amqp_url)
    wrong = {f.check: f for f in of_broker.judge(reading) if f.status != "ok"}
    assert list(wrong) == ["scheduler answers"]
    assert wrong["scheduler answers"].status == "problem"


async def test_of_an_empty_broker_only_the_scheduler_is_missed(fresh_amqp_url: str) -> None:
    findings = list(of_broker.judge(await read_broker(fresh_amqp_url)))
    wrong = [(f.check, f.status) for f in findings if f.status != "ok"]
    assert wrong == [(f"queue {JOBS.name}", "warning")]


async def test_messages_that_nobody_takes_and_dead_letters_are_found(
    fresh_amqp_url: str, bus: AmqpBus
) -> None:
    subscription = await bus.subscribe(JOBS, ignore)
    await subscription.cancel()
    await bus.publish(topology.JOBS, topology.SUBMIT, b"{}", must_route=True)
    await bus.publish(DEAD_QUEUE, "", b"{}", must_route=True)
    reading = await read_broker(fresh_amqp_url)
    findings = {f.check: f for f in of_broker.judge(reading)}
    assert findings[f"queue {JOBS.name}"].status == "problem"
    assert "start the scheduler" in findings[f"queue {JOBS.name}"].todo


async def test_a_user_who_may_not_is_told_of_the_step_that_was_refused(
    shared_broker: PrivateBroker, fresh_amqp_url: str, bus: AmqpBus
) -> None:
    host = urlsplit(fresh_amqp_url)
    name, word = f"reader-{secrets.token_hex(4)}", secrets.token_hex(8)
    vhost = host.path.lstrip("/")
    shared_broker._evaluate(
        f'{{rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{word}">>, <<"elps">>), '
        f'rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"{vhost}">>, '
        '<<"^$">>, <<"^$">>, <<".*">>, <<"elps">>)}'
    )
    reading = await read_broker(at(fresh_amqp_url, f"{name}:{word}@{host.hostname}:{host.port}"))
    assert "declare a queue" in reading.denied
    assert word not in repr(reading)
    wrong = await read_broker(at(fresh_amqp_url, f"{name}:no@{host.hostname}:{host.port}"))
    assert wrong.refused
    assert [f.check for f in of_broker.judge(wrong)] == ["broker"]


async def test_a_broker_that_is_away_is_told_with_what_to_do() -> None:
    reading = await read_broker(f"amqp://u:secret@{CLOSED}/")
    assert reading.error
    assert not reading.refused
    assert "secret" not in repr(reading)


# --- store ---


async def test_a_store_as_the_local_stack_starts_it_is_well(fresh_redis_url: str) -> None:
    reading = await read_store(fresh_redis_url)
    assert (reading.error, reading.denied, reading.refuses) == ("", {}, "")
    assert reading.strays == ()
    assert reading.clock_off_s is not None
    assert abs(reading.clock_off_s) < 60
    assert [f for f in of_store.judge(reading) if f.status != "ok"] == []


async def test_keys_without_a_record_are_found_and_nothing_is_changed(fresh_redis_url: str) -> None:
    client = Redis.from_url(fresh_redis_url)
    await client.hset(topology.JOB_INDEX, "known", b"x")
    for job in ("known", "stray"):
        await client.set(f"elps:job:{job}:term", b"1")
    before = await client.dbsize()
    reading = await read_store(fresh_redis_url)
    assert reading.strays == ("stray",)
    assert await client.dbsize() == before
    await client.aclose()


async def test_a_user_of_the_store_who_may_not_is_told_of_the_commands(
    fresh_redis_url: str,
) -> None:
    client, name = Redis.from_url(fresh_redis_url), f"reader-{secrets.token_hex(4)}"
    await client.execute_command(
        "ACL", "SETUSER", name, "on", ">word", "~*", "+@read", "+ping", "+select", "+client"
    )
    host = urlsplit(fresh_redis_url)
    reading = await read_store(at(fresh_redis_url, f"{name}:word@{host.hostname}:{host.port}"))
    assert {"EVAL", "SETRANGE", "UNLINK", "INFO"} <= set(reading.denied)
    assert "GET" not in reading.denied
    assert reading.strays is None
    findings = list(of_store.judge(reading))
    assert worst(findings) == "problem"
    wrong = await read_store(at(fresh_redis_url, f"{name}:no@{host.hostname}:{host.port}"))
    assert wrong.refused
    await client.execute_command("ACL", "DELUSER", name)
    await client.aclose()


async def test_a_store_that_is_away_is_told_with_what_to_do() -> None:
    reading = await read_store(f"redis://:secret@{CLOSED}/0")
    assert reading.error
    assert "secret" not in repr(reading)


# --- the whole ---


def test_folders_are_looked_at_as_the_settings_name_them(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tmp_path / "stack.json").write_text("{}")
    (tmp_path / "stack.json").chmod(0o644)
    env = {"ELPS_TASK_PATH": f"{tasks}:{tmp_path / 'gone'}", "ELPS_LOG_DIR": str(tmp_path)}
    found = {folder.path: folder for folder in read_machine(None, env).folders}
    assert found[str(tasks)].there
    assert not found[str(tmp_path / "gone")].there
    assert found[str(tmp_path)].written
    assert (found[str(tmp_path)].total_bytes or 0) > 0
    home = tmp_path / ".elps"
    home.mkdir()
    local = read_machine(StackInfo("", "", "", home), {}).folders[0]
    assert (local.path, local.open_to_others) == (str(home), False)


@pytest.mark.parametrize("as_json", [False, True])
def test_with_everything_away_the_command_says_so_and_ends_with_1(
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELPS_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("ELPS_AMQP_URL", f"amqp://u:secret@{CLOSED}/")
    monkeypatch.setenv("ELPS_REDIS_URL", f"redis://:secret@{CLOSED}/0")
    monkeypatch.setenv("ELPS_MONITOR_URL", f"http://{CLOSED}")
    assert main(["doctor", *(["--json"] if as_json else [])]) == 1
    said = capsys.readouterr().out
    assert "secret" not in said
    if as_json:
        report = json.loads(said)
        wrong = [check["check"] for check in report["checks"] if check["status"] == "problem"]
        assert report["status"] == "problem"
    else:
        lines = [line.split() for line in said.splitlines()]
        wrong = [words[1] for words in lines if words[0] == "problem"]
        assert said.splitlines()[-1].startswith("3 problems")
        assert said.count("→") >= 3
    assert wrong == ["broker", "store", "monitor"]


def test_without_a_stack_the_machine_is_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELPS_HOME", str(tmp_path / "none"))
    for name in ("ELPS_AMQP_URL", "ELPS_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "no stack was found" in said
    assert "open files" in said
