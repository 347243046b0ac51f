"""The monitor's settings."""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec
from msgspec import Meta

from elps.runtime.settings import Secret


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Read from ``ELPS_HOST``, ``ELPS_MONITOR_PORT``, ``ELPS_TOKEN`` and ``ELPS_LOST_S``."""

    host: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    """Address to listen on."""
    monitor_port: Annotated[int, Meta(ge=0, le=65535)] = 8750
    """0 takes any free port."""
    token: Secret | None = None
    """Whoever asks over HTTP must show it: ``Authorization: Bearer …``."""
    lost_s: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    """A member silent for so long counts as lost."""

    def __post_init__(self) -> None:
        if not self.local and self.token is None:
            raise ValueError(
                f"ELPS_HOST {self.host} can be reached from other machines, which wants ELPS_TOKEN: set it to a long "
                "random text, or leave ELPS_HOST at 127.0.0.1"
            )
        if self.token is not None and (
            not self.token.reveal().isascii() or not self.token.reveal().isprintable()
        ):
            raise ValueError(
                "ELPS_TOKEN: expected printable ASCII, since it travels in an HTTP header"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name: it may stand for any address
            return False
