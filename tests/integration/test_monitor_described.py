"""The monitor's HTTP interface is what its description says: schemathesis draws requests from it and checks answers.

Its plugin for pytest is off (`pyproject.toml`), since every run of any test would import it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from monitor_served import Stack, record, running
from rows import iteration_row

from elps.contracts import topology
from elps.contracts.codec import encode

FEW, MANY = 3, 60
"""Requests of each operation, drawn from what its description allows, and as many from what it does not."""
TOKEN = "open sesame"
BOUND_S = 40.0
PATHS = 12
STREAM = "/api/events"
"""Has no end, so that only the beginning of its answers can be checked."""

requests = pytest.importorskip("requests")
schemathesis = pytest.importorskip("schemathesis")
GenerationMode = schemathesis.GenerationMode


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Schemathesis imports most of itself when used first: here nothing else is under way, nor left to collect."""
    gc.collect()
    importlib.import_module("schemathesis.specs.openapi.schemas")


@contextmanager
def served(env: dict[str, str] | None = None) -> Iterator[str]:
    """The address of a monitor in a thread of its own, which knows a job ``j``."""
    ready, done, found = threading.Event(), threading.Event(), list[str]()

    async def serve() -> None:
        async with running({"ELPS_LOST_S": "3600"} | (env or {})) as stack:
            await fill(stack)
            found.append(stack.monitor.url)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    try:
        assert ready.wait(BOUND_S)
        yield found[0]
    finally:
        done.set()
        thread.join(BOUND_S)


async def fill(stack: Stack) -> None:
    """A job of which the store knows as well, so that it stays however long it takes."""
    await stack.store.hash_put(topology.JOB_INDEX, "j", encode(record()))
    await stack.change(record())
    await stack.beats(stack.monitor.desk.version)
    await stack.rows("j", *(iteration_row(i, workers=2) for i in range(5)))
    await stack.explains("j", "it waits")
    await stack.settled()


class Asked:
    """Sends what is drawn, and checks what comes back."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self.statuses: dict[str, set[int]] = {}

    def operations(self) -> Iterator[Any]:
        schema = schemathesis.openapi.from_url(f"{self.url}/openapi.json")
        for found in schema.get_all_operations():
            yield found.ok()

    def send(self, case: Any) -> None:
        if case.path == STREAM:
            status = self.begin(case)
        else:
            response = case.call_and_validate(
                base_url=self.url, headers=self.headers, timeout=BOUND_S
            )
            status = response.status_code
        self.statuses.setdefault(case.path, set()).add(status)

    def begin(self, case: Any) -> int:
        """Ask for a stream, and read its beginning."""
        asked = case.as_transport_kwargs(base_url=self.url, headers=self.headers)
        with requests.request(**asked, stream=True, timeout=BOUND_S) as response:
            if response.status_code == 200:
                assert response.headers["content-type"].startswith("text/event-stream")
                assert next(response.iter_lines()).startswith(b"retry: ")
            else:
                case.validate_response(response)
            return int(response.status_code)


def check(operation: Any, mode: Any, asked: Asked, examples: int) -> None:
    @settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def sent(case: Any) -> None:
        asked.send(case)
        if mode is GenerationMode.POSITIVE and "job" in case.path_parameters:
            case.path_parameters["job"] = "j"  # no id that is drawn is that of a job
            asked.send(case)

    sent()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.thorough)])
def test_answers_are_as_described_to_whatever_is_asked(examples: int) -> None:
    with served() as url:
        asked = Asked(url)
        for operation in asked.operations():
            check(operation, GenerationMode.POSITIVE, asked, examples)
            if any(operation.iter_parameters()):
                check(operation, GenerationMode.NEGATIVE, asked, examples)
    assert len(asked.statuses) == PATHS
    assert asked.statuses[STREAM] == {200, 422}
    assert {200, 422} <= asked.statuses["/api/jobs/{job}/iterations"] <= {200, 404, 422}


def test_with_a_token_the_description_says_what_is_denied_without_it() -> None:
    with served({"ELPS_TOKEN": TOKEN}) as url:
        asked, denied = Asked(url, TOKEN), Asked(url)
        for operation in asked.operations():
            check(operation, GenerationMode.POSITIVE, asked, 2)
            check(operation, GenerationMode.POSITIVE, denied, 1)
    told_to_all = {"/healthz", "/"}
    assert {path for path, found in denied.statuses.items() if found != {401}} == told_to_all
    assert not any(401 in found for found in asked.statuses.values())
