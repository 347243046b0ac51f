"""The start and the end of a service process, with a real broker and store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import redis

from elps.local.store import PrivateStore

pytestmark = pytest.mark.integration

BOUND_S = 30.0

SERVICE = """
import asyncio, os, sys
from elps.messaging.port import Queue
from elps.runtime.main import run

class Echo:
    def __init__(self, context):
        self.context = context

    async def run(self, stop):
        async def answer(delivery):
            await self.context.bus.respond(delivery, delivery.body)
        await self.context.bus.subscribe(Queue("echo", (("elps.query", "#"),)), answer)
        await self.context.store.put("started", b"yes")
        assert await self.context.bus.request("elps.query", "x", b"ping") == b"ping"
        print("serving", flush=True)
        if os.environ.get("FAIL"):
            raise RuntimeError("cannot go on")
        await stop.wait()
        if os.environ.get("SLOW"):
            print("leaving", flush=True)
            await asyncio.sleep(60)
        print("left", flush=True)

run("echo", Echo)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def begin(**env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVICE],
            env={**{k: v for k, v in os.environ.items() if not k.startswith("ELPS_")}, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_service_serves_until_it_is_asked_to_end(
    start: Start, fresh_amqp_url: str, fresh_redis_url: str
) -> None:
    process = start(ELPS_AMQP_URL=fresh_amqp_url, ELPS_REDIS_URL=fresh_redis_url)
    assert line(process) == "serving"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, out) == (0, "left\n")
    events = [json.loads(text)["event"] for text in err.splitlines()]
    assert [e for e in events if e.startswith("s")] == [
        "service_starting",
        "service_started",
        "stopping",
        "service_stopped",
    ]
    assert "guest:guest" not in err


def test_a_second_signal_ends_it_at_once(
    start: Start, fresh_amqp_url: str, fresh_redis_url: str
) -> None:
    process = start(ELPS_AMQP_URL=fresh_amqp_url, ELPS_REDIS_URL=fresh_redis_url, SLOW="1")
    assert line(process) == "serving"
    process.send_signal(signal.SIGINT)
    assert line(process) == "leaving"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=BOUND_S)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_service_that_cannot_go_on_says_why(
    start: Start, fresh_amqp_url: str, fresh_redis_url: str
) -> None:
    process = start(ELPS_AMQP_URL=fresh_amqp_url, ELPS_REDIS_URL=fresh_redis_url, FAIL="1")
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "elps echo: RuntimeError: cannot go on"
    assert "service_failed" in err


def test_wrong_settings_are_one_clear_line(start: Start) -> None:
    process = start(ELPS_START_S="soon", ELPS_LOG_LEVEL="loud")
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 2
    (last,) = err.splitlines()
    assert last.startswith("elps echo: settings: ELPS_START_S: ")
    assert "'soon'" in last


def test_a_store_that_may_throw_parameters_away_is_refused_at_the_start(
    start: Start, fresh_amqp_url: str, private_store: PrivateStore
) -> None:
    with redis.Redis.from_url(private_store.url) as client:
        client.config_set("maxmemory", "64mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    process = start(ELPS_AMQP_URL=fresh_amqp_url, ELPS_REDIS_URL=private_store.url)
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 2
    last = err.splitlines()[-1]
    assert last.startswith("elps echo: store at ")
    assert "maxmemory-policy is allkeys-lru" in last
    assert "set it to noeviction" in last


@pytest.mark.parametrize("missing", ["store", "broker"])
def test_whoever_does_not_answer_is_named(start: Start, fresh_redis_url: str, missing: str) -> None:
    process = start(
        ELPS_AMQP_URL="amqp://guest:hunter2@127.0.0.1:1/",
        ELPS_REDIS_URL="redis://127.0.0.1:1/0" if missing == "store" else fresh_redis_url,
        ELPS_START_S="3.5",
    )
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 1
    assert f"the {missing} at" in err.splitlines()[-1] or f"{missing} at" in err.splitlines()[-1]
    waits = [
        entry for entry in map(json.loads, err.splitlines()[:-1]) if entry["event"] == "waiting_for"
    ]
    assert [entry["what"] for entry in waits] == [missing]
    assert "hunter2" not in err


def test_a_signal_while_it_waits_for_the_store_ends_it_in_order(start: Start) -> None:
    process = start(ELPS_REDIS_URL="redis://127.0.0.1:1/0")
    assert process.stderr is not None
    while "waiting_for" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=BOUND_S)
    assert process.returncode == 0
