"""A private broker and store answer as the stack and the tests need it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from elps.local.broker import PrivateBroker

pytestmark = pytest.mark.integration


def test_virtual_hosts_are_made_by_several_callers_at_once(shared_broker: PrivateBroker) -> None:
    names = [f"at-once-{n}" for n in range(16)]
    with ThreadPoolExecutor(8) as callers:
        urls = list(callers.map(shared_broker.new_virtual_host, names))
    assert urls == [shared_broker.url + name for name in names]
    assert set(names) <= set(shared_broker.control("list_vhosts").split())


def test_a_virtual_host_that_is_there_already_is_left_as_it_is(
    shared_broker: PrivateBroker,
) -> None:
    assert shared_broker.new_virtual_host("twice") == shared_broker.new_virtual_host("twice")
