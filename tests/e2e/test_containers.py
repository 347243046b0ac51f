"""The image of deploy/Dockerfile, built and run: as nobody, on a file system that cannot be written to.

Wants podman and a base image, ELPS_TEST_BASE or the one that the Dockerfile names; says what is missing where it is
left out. Broker and store are those of the test run, reached over the host's network.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from elps.client.control import Client
from elps.contracts.requests import Query
from elps.local.ports import free_ports
from elps.messaging.amqp import AmqpBus

ROOT = Path(__file__).parents[2]
BASE = os.environ.get("ELPS_TEST_BASE") or "docker.io/library/python:3.11-slim"
PULL_S, BUILD_S, RUN_S, WAIT_S = 120, 1200, 60, 300
SERVICES = ("scheduler", "monitor", "shard", "worker")
CONFINED = (
    "--read-only", "--tmpfs", "/tmp:mode=1777", "--cap-drop", "all", "--security-opt", "no-new-privileges",
    "--network", "host",
)  # fmt: skip

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


def podman(*arguments: str, timeout_s: float = RUN_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, timeout=timeout_s, cwd=ROOT
    )


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    if podman("info").returncode:
        pytest.skip(f"podman does not work here: {podman('info').stderr.strip()[-300:]}")
    there = podman("image", "exists", BASE).returncode == 0
    if not there and podman("pull", "-q", BASE, timeout_s=PULL_S).returncode:
        pytest.skip(f"the base image {BASE} cannot be had; ELPS_TEST_BASE may name another")
    name = f"localhost/elps-test:{secrets.token_hex(4)}"
    made = podman(
        "build", "-q", "--format", "docker", "--build-arg", f"BASE={BASE}", "-f", "deploy/Dockerfile",
        "-t", name, ".", timeout_s=BUILD_S,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-4000:]
    yield name
    podman("rmi", "-f", name)


def start(image: str, name: str, env: dict[str, str]) -> str:
    given = [part for variable, value in env.items() for part in ("-e", f"{variable}={value}")]
    ran = podman("run", "-d", *CONFINED, *given, image, f"elps-{name}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def looked_at(container: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(podman("inspect", container).stdout)[0]
    return found


async def finished(client: Client, job: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while (state := (await client.query(Query(what="job", job=job)))["state"]) != "finished":
            assert state not in ("failed", "killed")
            await asyncio.sleep(1)


async def test_a_job_trains_in_containers_that_can_write_nowhere(
    image: str, fresh_amqp_url: str, fresh_redis_url: str
) -> None:
    env = {"ELPS_AMQP_URL": fresh_amqp_url, "ELPS_REDIS_URL": fresh_redis_url}
    env["ELPS_MONITOR_PORT"] = str(free_ports(1)[0])
    running: list[str] = []
    try:
        running += [start(image, name, env) for name in SERVICES]
        bus = await AmqpBus.connect(fresh_amqp_url, name="test")
        client = Client(bus, timeout_s=60)
        assert (
            await client.submit(
                {"id": "boxed", "task": "mlp", "data": {"source": "digits"}, "passes": 1}
            )
        ).ok
        await finished(client, "boxed")
        await bus.close()
        for container in running:
            assert podman("exec", container, "id", "-u").stdout.strip() == "10001"
            assert podman("exec", container, "touch", "/opt/elps/x").returncode != 0
            assert podman("exec", container, "python3", "-m", "elps.runtime.alive").returncode == 0
            healthy = podman("healthcheck", "run", container)  # as the image says it is found out
            assert healthy.returncode == 0, healthy.stdout + healthy.stderr
            ended = podman("stop", "-t", "60", container, timeout_s=90)
            assert ended.returncode == 0
            assert looked_at(container)["State"]["ExitCode"] == 0  # type: ignore[index]
    finally:
        for container in running:
            podman("rm", "-f", container)
