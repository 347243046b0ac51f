"""What a shard lets in of the orders that come to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_contracts_bounds import BAD_IDS, newest, set_in

from elps.contracts.codec import decode
from elps.contracts.errors import InvalidDocument
from elps.contracts.messages import ShardCommand
from elps.psshard.intake import read_order

ORDERS = ("HostJob", "DropJob", "DirectJob", "BatchPlan")


def body(order: Any) -> bytes:
    return json.dumps(order).encode()


@pytest.mark.parametrize("name", ORDERS)
def test_a_sound_order_is_read(name: str) -> None:
    order = body(newest(name))
    assert read_order(order) == decode(order, ShardCommand)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize("name", ORDERS)
def test_a_job_whose_id_is_none_is_refused(name: str, bad: str) -> None:
    """It would be a part of routing keys, and the shard would end with the first that the broker does not take."""
    with pytest.raises(InvalidDocument, match=r"job: .*is not an identifier"):
        read_order(body(newest(name) | {"job": bad}))


@pytest.mark.parametrize("bad", BAD_IDS)
def test_shards_and_workers_whose_ids_are_none_are_refused(bad: str) -> None:
    order = newest("HostJob")
    set_in(order, "shards.0.shard", bad)
    order["workers"] = [bad]
    with pytest.raises(InvalidDocument) as caught:
        read_order(body(order))
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["shard", "worker"]


def test_a_job_that_nobody_leads_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="nobody leads"):
        read_order(body(newest("HostJob") | {"shards": []}))


def test_a_port_that_is_none_is_refused() -> None:
    order = newest("HostJob")
    order["shards"][0]["port"] = 65_536
    with pytest.raises(InvalidDocument, match="port"):
        read_order(body(order))
