"""All services in one process, with services written for the test."""

from __future__ import annotations

import asyncio

import pytest

from elps.cli.composing import ServiceEnded, composed, installed_services, members
from elps.cli.stack import leaves
from elps.contracts.errors import SetupError
from elps.messaging.port import Delivery, Queue
from elps.runtime.service import Context


class Recorder:
    """A service that says in `told` what happens to it."""

    def __init__(self, context: Context, told: list[str]) -> None:
        self.context, self.told, self.serves = context, told, asyncio.Event()
        self.name = (
            context.env.get("ELPS_SHARD_ID") or context.env.get("ELPS_AGENT_ID") or "scheduler"
        )

    async def run(self, stop: asyncio.Event) -> None:
        async def take(delivery: Delivery) -> None:
            self.told.append(f"{self.name} got {delivery.body.decode()}")

        await self.context.bus.subscribe(Queue(f"q.{self.name}", (("elps.events", "#"),)), take)
        self.told.append(f"{self.name} serves")
        self.serves.set()
        await stop.wait()
        self.told.append(f"{self.name} leaves")


async def test_members_have_their_own_names_and_leave_workers_first() -> None:
    told: list[str] = []
    serving: dict[str, asyncio.Event] = {}

    def create(context: Context) -> Recorder:
        service = Recorder(context, told)
        serving[service.name] = service.serves
        return service

    services = dict.fromkeys(("scheduler", "psshard", "worker"), create)
    async with composed(members(2, 1), services, {"ELPS_BEAT_S": "1"}) as tree:
        async with asyncio.timeout(5):
            for started in serving.values():
                await started.wait()
        await tree.bus.publish("elps.events", "job.a.b", b"hello")
    assert told[:4] == ["scheduler serves", "shard-1 serves", "agent-1 serves", "agent-2 serves"]
    assert sorted(told[4:8]) == [
        f"{n} got hello" for n in ("agent-1", "agent-2", "scheduler", "shard-1")
    ]
    assert [line for line in told if line.endswith("leaves")] == [
        "agent-1 leaves",
        "agent-2 leaves",
        "shard-1 leaves",
        "scheduler leaves",
    ]


@pytest.mark.parametrize("error", [None, RuntimeError("boom"), SetupError("port taken")])
async def test_a_service_that_ends_by_itself_ends_everything_with_its_reason(
    error: Exception | None,
) -> None:
    class Ending(Recorder):
        async def run(self, stop: asyncio.Event) -> None:
            if error is not None:
                raise error

    told: list[str] = []
    services = {
        "scheduler": lambda c: Recorder(c, told),
        "worker": lambda c: Recorder(c, told),
        "psshard": lambda c: Ending(c, told),
    }
    with pytest.raises(BaseExceptionGroup) as caught:
        async with composed(members(1, 1), services, {}), asyncio.timeout(5):
            await asyncio.Event().wait()
    [leaf] = [e for e in leaves(caught.value) if not isinstance(e, asyncio.CancelledError)]
    assert isinstance(leaf, SetupError if isinstance(error, SetupError) else ServiceEnded)
    assert "port taken" in str(leaf) or "shard-1" in str(leaf)
    assert told[-2:] == ["agent-1 leaves", "scheduler leaves"]


async def test_a_missing_service_is_named() -> None:
    with pytest.raises(SetupError, match="no service psshard, scheduler, worker"):
        async with composed(members(1, 1), {}, {}):
            pass


def test_the_monitor_takes_part_only_when_asked_for() -> None:
    assert "monitor" not in {m.service for m in members(1, 1)}
    [monitor] = [m for m in members(1, 1, monitor_port=8750) if m.service == "monitor"]
    assert monitor.env == {"ELPS_MONITOR_PORT": "8750"}


def test_only_the_services_asked_for_are_imported() -> None:
    assert list(installed_services({"worker"})) == ["worker"]
    assert installed_services({"nothing"}) == {}
