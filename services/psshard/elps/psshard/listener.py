"""The shard's listening socket: every connection shakes hands and is served by a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import structlog

from elps.contracts.errors import ElpsError, SetupError
from elps.contracts.ids import JobId
from elps.wire.connection import SOCKET_BUFFER_BYTES, Connection
from elps.wire.handshake import Hello, welcome

MAX_CONNECTIONS = 2048
"""Beyond it a connection is closed at once: threads are bounded."""
MAX_HANDSHAKES = 128
"""At once; a bound of their own, so that strangers who say nothing cannot keep the job's processes out."""
SHORTAGE_S = 0.1
"""Pause after an accept that failed, for want of descriptors say."""

log = structlog.get_logger()


class Listener:
    """Accepts connections until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        secret_of: Callable[[JobId], str | None],
        check: Callable[[Hello], None],
        serve: Callable[[Connection, Hello], None],
    ) -> None:
        self._secret_of, self._check, self._serve = secret_of, check, serve
        self._lock = threading.Lock()
        self._open: dict[Connection, None] = {}  #: in the order in which they came
        self._shaking = 0  #: connections whose handshake is not over
        self._closed = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        try:
            self._sock.bind((host, port))
        except OSError as error:
            raise SetupError(f"cannot listen on {host}:{port}: {error}; set ELPS_HOST") from None
        self._sock.listen(256)
        self.port: int = self._sock.getsockname()[1]
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                log.error("accept_failed", reason=str(error))
                self._closed.wait(SHORTAGE_S)
                continue
            with self._lock:
                full = len(self._open) >= MAX_CONNECTIONS or self._shaking >= MAX_HANDSHAKES
                self._shaking += not full
            if full:
                log.error("connection_refused", reason="too many are open")
                sock.close()
                continue
            try:
                threading.Thread(target=self._run, args=(sock,), name="conn", daemon=True).start()
            except RuntimeError as error:
                log.error("connection_refused", reason=str(error))
                sock.close()
                with self._lock:
                    self._shaking -= 1

    def _run(self, sock: socket.socket) -> None:
        connection = None
        try:
            try:
                connection, hello = welcome(sock, self._secret_of, self._check)
            finally:
                with self._lock:
                    self._shaking -= 1
                    if connection is not None:
                        self._open[connection] = None
            if self._closed.is_set():  # meanwhile: `close` may not have seen this connection
                return
            self._serve(connection, hello)
        except (ElpsError, TimeoutError) as error:
            log.info(
                "connection_ended", peer=connection.peer if connection else "?", reason=str(error)
            )
        except Exception:
            log.exception("connection_failed", peer=connection.peer if connection else "?")
        finally:
            with self._lock:
                if connection is not None:
                    self._open.pop(connection, None)
            if connection is not None:
                connection.close()

    @property
    def connections(self) -> int:
        """Connections open now, those that are shaking hands included."""
        with self._lock:
            return len(self._open) + self._shaking

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._closed.set()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            connection.close()
