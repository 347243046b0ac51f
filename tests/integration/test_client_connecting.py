"""A program that has nothing of elps but its client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest
import structlog

from elps.client import connect
from elps.contracts.errors import RetryLater
from elps.local.ports import free_ports

pytestmark = pytest.mark.integration

BOUND_S = 50.0
PROGRAM = """
import asyncio, sys
from elps.client import connect

async def main():
    async with connect(sys.argv[1], connect_s=30.0) as client:
        async with client.follow("nobody") as stream:
            print(await stream.next(timeout_s=0.01))

asyncio.run(main())
"""


async def test_a_program_hears_nothing_that_it_has_not_asked_for(fresh_amqp_url: str) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, fresh_amqp_url, stdout=pipe, stderr=pipe
    )
    async with asyncio.timeout(BOUND_S):
        out, err = await process.communicate()
    assert (process.returncode, out.decode(), err.decode()) == (0, "None\n", "")


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    configured, known = structlog.is_configured(), structlog.get_config()
    yield
    if configured:
        structlog.configure(**known)
    else:
        structlog.reset_defaults()


async def test_a_broker_that_is_not_there_is_told_of_in_bounded_time(
    logging_as_before: None,
) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{free_ports(1)[0]}/"
    with pytest.raises(RetryLater, match=r"127\.0\.0\.1"):
        async with asyncio.timeout(BOUND_S), connect(url, connect_s=0.5):
            raise AssertionError("there is none")
