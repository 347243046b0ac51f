"""Where a shard listens and what address it gives to others."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from elps.contracts.errors import SetupError
from elps.psshard.settings import LOOPBACK, Addresses, Settings, addresses, own_address
from elps.runtime.settings import read

V4, V6 = socket.AF_INET, socket.AF_INET6
BROKER = "amqp://elps:secret@broker.example/elps"


def found(*hosts: str) -> Any:
    """A resolver that knows these addresses of any name, in this order."""

    def resolve(_: str, port: int, family: int, kind: int) -> list[Any]:
        known = [(V6 if ":" in host else V4, host) for host in hosts]
        return [(f, kind, 17, "", (host, port)) for f, host in known if family in (0, f)]

    return resolve


def routed(**routes: str) -> Any:
    """What the kernel would send from, by the broker's address; without one there is no route."""

    def source(_: int, address: Any) -> str:
        try:
            return routes[address[0]]
        except KeyError:
            raise OSError(101, "Network is unreachable") from None

    return source


def settings(**env: str) -> Settings:
    return read(Settings, {f"ELPS_{name.upper()}": value for name, value in env.items()})


def reached(family: int) -> str:
    return "10.1.2.3" if family == V4 else "fd00::3"


def test_without_settings_a_shard_listens_where_it_reaches_the_broker_and_says_so() -> None:
    assert addresses(settings(), reached) == Addresses("fd00::3", "fd00::3")


def test_a_host_that_is_set_wins_and_nobody_is_asked() -> None:
    def asked(_: int) -> str:
        raise AssertionError("asked")

    assert addresses(settings(host="10.9.9.9"), asked) == Addresses("10.9.9.9", "10.9.9.9")
    told = settings(host="0.0.0.0", advertise="shard.example")
    assert addresses(told, asked) == Addresses("0.0.0.0", "shard.example")
    told = settings(host="10.9.9.9", advertise="shard.example")
    assert addresses(told, asked) == Addresses("10.9.9.9", "shard.example")


def test_an_address_that_stands_for_all_is_listened_on_and_never_given_to_others() -> None:
    assert addresses(settings(host="0.0.0.0"), reached) == Addresses("0.0.0.0", "10.1.2.3")
    assert addresses(settings(host="::"), reached) == Addresses("::", "fd00::3")
    with pytest.raises(SetupError, match=r"ELPS_ADVERTISE: 0\.0\.0\.0"):
        settings(advertise="0.0.0.0")


def test_what_is_given_to_others_may_be_set_alone() -> None:
    assert addresses(settings(advertise="nat.example"), reached) == Addresses(
        "fd00::3", "nat.example"
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "amqp:///",
        "amqp://127.0.0.1:5672/",
        "amqp://user:p%40ss@127.0.1.1:20001/vhost",
        "amqp://[::1]:5672/",
        "amqp://localhost/",
    ],
)
def test_a_broker_on_this_hosts_loopback_or_none_means_the_loopback(url: str) -> None:
    assert own_address(url) == LOOPBACK


def test_the_first_address_of_the_broker_that_has_a_route_decides() -> None:
    resolve = found("2001:db8::5", "192.0.2.5", "198.51.100.5")
    source = routed(**{"192.0.2.5": "192.0.2.77", "198.51.100.5": "198.51.100.77"})
    assert own_address(BROKER, resolve=resolve, source=source) == "192.0.2.77"
    source = routed(**{"2001:db8::5": "2001:db8::77", "192.0.2.5": "192.0.2.77"})
    assert own_address(BROKER, resolve=resolve, source=source) == "2001:db8::77"
    assert own_address(BROKER, V4, resolve=resolve, source=source) == "192.0.2.77"


def test_an_address_that_means_nothing_on_other_hosts_is_not_taken() -> None:
    resolve = found("fe80::5", "192.0.2.5")
    source = routed(**{"fe80::5": "fe80::77", "192.0.2.5": "192.0.2.77"})
    assert own_address(BROKER, resolve=resolve, source=source) == "192.0.2.77"
    with pytest.raises(SetupError, match="fe80::77, which means nothing on other hosts"):
        own_address(BROKER, V6, resolve=resolve, source=source)


def test_without_a_route_or_a_name_the_reason_and_the_way_out_are_told() -> None:
    with pytest.raises(SetupError, match=r"192\.0\.2\.5: Network is unreachable.*ELPS_HOST"):
        own_address(BROKER, resolve=found("192.0.2.5"), source=routed())
    with pytest.raises(SetupError, match=r"broker\.example has no address.*ELPS_HOST"):
        own_address(BROKER, V4, resolve=found("fd00::5"), source=routed())

    def unknown(*_: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(SetupError, match=r"broker\.example: Name or service.*ELPS_HOST"):
        own_address(BROKER, resolve=unknown)
    with pytest.raises(SetupError, match="no URL"):
        own_address("amqp://[::1")
    with pytest.raises(SetupError, match="no URL"):
        own_address("amqp://broker:none/")


def test_a_name_that_is_not_a_name_is_a_fault_of_the_set_up() -> None:
    with pytest.raises(SetupError, match="ELPS_HOST"):
        own_address(f"amqp://{'x' * 70}.example/")


def test_a_resolver_that_does_not_answer_is_not_waited_for() -> None:
    over = threading.Event()

    def hangs(*_: Any) -> list[Any]:
        over.wait(10.0)
        return []

    with pytest.raises(SetupError, match=r"not resolved within 0\.01 s.*ELPS_HOST"):
        own_address(BROKER, resolve=hangs, timeout_s=0.01)
    over.set()
