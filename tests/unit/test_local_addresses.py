"""Which addresses a stack takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from elps.contracts.errors import SetupError
from elps.local import servers
from elps.local.ports import Reservations
from elps.local.record import StackRecord, new_record
from elps.local.servers import choose_addresses, monitor_address


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports on which somebody listens."""
    ports: set[int] = set()
    monkeypatch.setattr(servers, "is_free", lambda port, _host="": port not in ports)
    return ports


@pytest.fixture
def reservations() -> Iterator[Reservations]:
    with Reservations() as reservations:
        yield reservations


def chosen(record: StackRecord, env: Mapping[str, str], *, fresh: bool = True) -> StackRecord:
    with Reservations() as reservations:
        choose_addresses(record, env, fresh=fresh, reservations=reservations, say=lambda _: None)
    return record


@pytest.mark.usefixtures("taken")
def test_ports_are_kept_from_one_start_to_the_next() -> None:
    record = chosen(new_record(), {"ELPS_MONITOR_PORT": "21999"})
    before = (record.amqp_url, record.redis_url, record.monitor_url)
    again = chosen(record, {})
    assert (again.amqp_url, again.redis_url, again.monitor_url) == before


def test_a_port_that_somebody_took_meanwhile_is_given_up(taken: set[int]) -> None:
    record = chosen(new_record(), {"ELPS_MONITOR_PORT": "21998"})
    assert record.broker_ports is not None
    old = record.broker_ports.epmd
    taken |= {old, 21998}
    again = chosen(record, {})
    assert again.broker_ports is not None
    assert again.broker_ports.epmd != old
    assert again.monitor_port != 21998


@pytest.mark.usefixtures("taken")
def test_servers_of_the_environment_are_used_and_none_is_ours() -> None:
    env = {
        "ELPS_AMQP_URL": "amqp://there/",
        "ELPS_REDIS_URL": "redis://there/3",
        "ELPS_MONITOR_PORT": "0",
    }
    record = chosen(new_record(), env)
    assert (record.broker_ports, record.store_port) == (None, None)
    assert (record.amqp_url, record.redis_url) == ("amqp://there/", "redis://there/3")
    assert record.monitor_port > 0


def test_a_running_stack_keeps_its_addresses_and_refuses_others() -> None:
    record = new_record()
    record.amqp_url, record.redis_url, record.monitor_port = "amqp://a/", "redis://b/", 1
    assert chosen(record, {"ELPS_AMQP_URL": "amqp://a/"}, fresh=False).monitor_port == 1
    with pytest.raises(SetupError, match="make down"):
        chosen(record, {"ELPS_REDIS_URL": "redis://else/"}, fresh=False)


@pytest.mark.usefixtures("taken")
def test_two_stacks_that_start_in_the_same_second_take_two_ports(
    reservations: Reservations,
) -> None:
    record = new_record()
    record.monitor_port = 21997
    with Reservations() as other:
        assert other.take(21997)
        _, port = monitor_address(record, {}, reservations, lambda _: None)
        assert port != 21997
    assert reservations.take(21997)


@pytest.mark.parametrize("port", ["x", "-1", "70000"])
def test_a_port_that_is_none_is_refused(port: str, reservations: Reservations) -> None:
    with pytest.raises(SetupError, match="ELPS_MONITOR_PORT"):
        monitor_address(new_record(), {"ELPS_MONITOR_PORT": port}, reservations, lambda _: None)


def test_a_port_that_is_asked_for_and_taken_is_an_error(
    taken: set[int], reservations: Reservations
) -> None:
    taken.add(21996)
    with pytest.raises(SetupError, match="somebody listens there"):
        monitor_address(new_record(), {"ELPS_MONITOR_PORT": "21996"}, reservations, lambda _: None)
