"""The shard's settings, and the addresses that follow from them."""

from __future__ import annotations

import ipaddress
import os
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from elps.contracts.errors import SetupError
from elps.contracts.ids import id_problem
from elps.runtime.settings import Secret

LOOPBACK = "127.0.0.1"
AMQP_PORT = 5672
RESOLVE_S = 5.0
"""The connection to the broker has resolved the same name a moment ago: whoever takes this long is out of order."""

Resolve = Callable[..., list[Any]]
"""As `socket.getaddrinfo`."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Read from ``ELPS_SHARD_ID`` and the like."""

    amqp_url: Secret = Secret("")
    """Where the broker is, and with that who can be a peer. Empty: within this process."""
    host: Annotated[str, Meta(max_length=253)] = ""
    """Address on which the data plane listens; when empty, the one by which this host reaches the broker."""
    advertise: Annotated[str, Meta(max_length=253)] = ""
    """Address under which trainers and other shards reach it; when empty, the one on which it listens."""
    data_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """0 takes any free port."""
    shard_id: str = ""
    """Drawn when empty."""
    shard_slots: Annotated[int, Meta(ge=1, le=4096)] = 4
    """Jobs it takes part in at once."""
    beat_s: Annotated[float, Meta(gt=0, le=60)] = 1.0
    leave_s: Annotated[float, Meta(ge=0, le=3600)] = 45.0
    """How long a shard that is asked to end waits for its jobs to be checkpointed and taken away."""
    shard_slowdown: str = ""
    """How its adding and updating is slowed, to emulate another machine (`elps.balance.slowdown`)."""

    def __post_init__(self) -> None:
        if self.shard_id and (problem := id_problem(self.shard_id)):
            raise ValueError(f"ELPS_SHARD_ID: {problem}")
        if _is_wildcard(self.advertise):
            raise ValueError(
                f"ELPS_ADVERTISE: {self.advertise} is no address that others can connect to"
            )


def drawn_id() -> str:
    """An id for a shard that was given none."""
    name = "".join(c if c.isalnum() and c.isascii() else "-" for c in socket.gethostname())[:24]
    return f"{name.strip('-') or 'shard'}-{os.getpid()}-{secrets.token_hex(3)}"


class Addresses(NamedTuple):
    """Of the data plane."""

    listen: str
    advertise: str
    """Never one that stands for all addresses."""


def addresses(settings: Settings, reached_from: Callable[[int], str]) -> Addresses:
    """Where to listen and under which address to be reached.

    `reached_from` gives the local address by which the broker is reached, in a family of `socket`'s; it is asked only
    where the settings do not say.
    """
    if settings.host and not _is_wildcard(settings.host):
        return Addresses(settings.host, settings.advertise or settings.host)
    if not settings.host:
        own = reached_from(socket.AF_UNSPEC)
        return Addresses(own, settings.advertise or own)
    # Linux's socket on `::` takes IPv4 too, one on 0.0.0.0 takes nothing else.
    family = socket.AF_UNSPEC if ":" in settings.host else socket.AF_INET
    return Addresses(settings.host, settings.advertise or reached_from(family))


def own_address(
    url: str,
    family: int = socket.AF_UNSPEC,
    *,
    resolve: Resolve = socket.getaddrinfo,
    source: Callable[[int, Any], str] | None = None,
    timeout_s: float = RESOLVE_S,
) -> str:
    """The local address by which this host reaches the broker at `url`; `LOOPBACK` when that is on this host.

    Whoever can reach the broker can, as a rule, reach this address too. Blocks for `timeout_s` at most, since a name
    may have to be resolved. Raises `SetupError` when there is no such address.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or AMQP_PORT
    except ValueError as error:
        raise SetupError(f"ELPS_AMQP_URL is no URL: {error}") from None
    if not host:
        return LOOPBACK
    reasons = []
    for kind, *_, address in _resolved(resolve, host, port, family, timeout_s):
        try:
            own = (source or _source)(kind, address)
        except OSError as error:
            reasons.append(f"{address[0]}: {error.strerror or error}")
            continue
        parsed = ipaddress.ip_address(own)
        if parsed.is_loopback:
            return LOOPBACK
        if parsed.version == 6 and parsed.is_link_local:
            reasons.append(f"{address[0]}: reached by {own}, which means nothing on other hosts")
            continue
        return own
    raise _unknown("; ".join(reasons) or f"{host} has no address")


def _resolved(
    resolve: Resolve, host: str, port: int, family: int, timeout_s: float
) -> list[tuple[Any, ...]]:
    """`resolve`, in a thread that nobody waits for beyond the time-out: the resolver has none that we can set."""
    answers: queue.Queue[list[tuple[Any, ...]] | OSError] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(resolve(host, port, family, socket.SOCK_DGRAM))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError(str(error)))

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise _unknown(
            f"the broker's name {host} was not resolved within {timeout_s:g} s"
        ) from None
    if isinstance(answer, OSError):
        raise _unknown(f"the broker's name {host}: {answer.strerror or answer}")
    return answer


def _source(family: int, address: Any) -> str:
    """The address that the kernel would send from; nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a host."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def _unknown(reason: str) -> SetupError:
    return SetupError(
        f"cannot tell at which address other hosts reach this shard ({reason}): set ELPS_HOST to it"
    )
