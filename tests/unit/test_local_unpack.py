"""Which packages are fetched."""

from __future__ import annotations

import pytest

from elps.contracts.errors import SetupError
from elps.local.unpack import closure, parse_depends

LISTING = """\
rabbitmq-server
  Depends: adduser
 |Depends: erlang-base
  Depends: <erlang-base-hipe>
  Depends: erlang-ssl
  Depends: logrotate
  Depends: <python3:any>
    python3
erlang-base
  Depends: libc6
 |Depends: libtinfo6
  Depends: libtinfo5
  PreDepends: dpkg-tool
erlang-ssl
  Depends: erlang-base
libtinfo6
libtinfo5
dpkg-tool
adduser
logrotate
"""


def test_alternatives_belong_together_and_virtual_packages_are_left_out() -> None:
    needs = parse_depends(LISTING)
    assert ["erlang-base"] in needs["rabbitmq-server"]
    assert ["libtinfo6", "libtinfo5"] in needs["erlang-base"]
    assert ["dpkg-tool"] in needs["erlang-base"]
    assert needs["libtinfo6"] == []


def test_a_bare_machine_gets_everything_that_is_needed_to_run() -> None:
    assert closure(parse_depends(LISTING), ["rabbitmq-server"], set()) == [
        "dpkg-tool",
        "erlang-base",
        "erlang-ssl",
        "libtinfo6",
        "rabbitmq-server",
    ]


def test_libraries_of_the_machine_are_used_but_never_its_erlang() -> None:
    installed = {"libtinfo5", "dpkg-tool", "erlang-base", "erlang-ssl", "rabbitmq-server"}
    assert closure(parse_depends(LISTING), ["rabbitmq-server"], installed) == [
        "erlang-base",
        "erlang-ssl",
        "rabbitmq-server",
    ]


def test_a_package_that_the_lists_lack_is_named() -> None:
    with pytest.raises(SetupError, match="redis-server"):
        closure(parse_depends(LISTING), ["redis-server"], set())
