"""The HTTP connections: nobody keeps one who neither asks nor reads.

uvicorn gives a client that says nothing, or a half of a request, all the time there is, and one that does not read its
answer as well. A few hundred of them and nobody else would be answered any more.
"""

from __future__ import annotations

import asyncio
import socket

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

log = structlog.get_logger(__name__)

REQUEST_S = 10.0
"""From the beginning of a connection, or the end of an answer, until the next request is there."""
STALLED_S = 60.0
"""What is to be sent may wait so long for a client that takes nothing of it; the system holds some MiB besides."""
LOOK_S = 1.0
REFUSED_FACTOR = 2
"""So many times as many connections as are answered stay open, to be told that there are too many; not more."""


class BoundedProtocol(H11Protocol):
    """uvicorn's, with an end to each wait for the client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As in uvicorn, and begin to look."""
        super().connection_made(transport)
        self._since = self.loop.time()  #: of what is waited for now
        self._unsent = 0  #: bytes, at the last look
        self._request: object = None  #: that had come by then
        self._took = False  #: whether the client has taken so much since that there is more to send
        self._looking = self.loop.call_later(LOOK_S, self._look)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a host that is gone acknowledges nothing
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALLED_S * 1000))
        most = self.limit_concurrency
        if most is not None and len(self.connections) > REFUSED_FACTOR * most:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """As in uvicorn, and look no more."""
        self._looking.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """As in uvicorn, and note it."""
        self._took = True
        super().resume_writing()

    def _look(self) -> None:
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn says that there always is one
        answering = cycle is not None and not cycle.response_complete
        goes_on = self._took or unsent < self._unsent or cycle is not self._request
        if goes_on or (answering and not unsent):
            self._since = now
        bound_s = STALLED_S if unsent else REQUEST_S
        self._unsent, self._request, self._took = unsent, cycle, False
        if now - self._since > bound_s:
            why = "it takes nothing" if unsent else "no request came"
            log.info("connection_ended", client=self.client, why=why, after_s=bound_s)
            self.transport.abort()
            return
        self._looking = self.loop.call_later(LOOK_S, self._look)
