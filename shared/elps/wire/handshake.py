"""How a connection begins: both sides prove that they know the job's secret, which never travels.

1. The server greets: magic, protocol version, 16 random bytes.
2. The client answers with its version and a hello (job, purpose, who it is), its own 16 random bytes and the
   HMAC-SHA256 of the hello and the server's bytes under the job's secret.
3. The server looks the job up, checks the proof and then the rest, and answers with the HMAC of the client's bytes, or
   with a refusal in words. Who has proved nothing is refused in the same words, bytes and time whether the job is there
   or not; as it may come in a moment, that means "later".

All of it is bounded in size and time; nothing of a connection is believed before step 3.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from elps.contracts.errors import ElpsError, ProtocolError, RetryLater
from elps.contracts.ids import JobId
from elps.wire.connection import SOCKET_BUFFER_BYTES, Connection
from elps.wire.frames import PROTOCOL_VERSION

HANDSHAKE_S = 5.0
MAX_HELLO_BYTES = 4096
MAX_REFUSAL_BYTES = 500
_GREETING = struct.Struct("<4sH16s")
_LENGTH = struct.Struct("<H")
_MAGIC = b"elps"
_NOBODYS = os.urandom(32).hex()
"""Stands for the secret of a job that is not here, so that its proof is checked in the same way."""
_UNPROVEN = "the job is not here (yet), or its secret is another one"

Purpose = Literal["lease", "push", "pull", "link", "feed"]


class Hello(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client says it is."""

    job: JobId
    purpose: Purpose
    sender: str
    """Worker or shard id."""
    term: int
    """Number of the term under which the sender was started."""


Code = Literal["later", "over", "no"]
"""Why a connection is refused: it may be taken in a moment; the caller's time is over; never."""


class Refused(ElpsError):
    """The other side does not take this connection; its reason is the text."""

    def __init__(self, reason: str, code: Code = "no") -> None:
        super().__init__(reason)
        self.code: Code = code


class _Unproven(Refused):
    """Of a client that has not proved itself; the text is for this side alone."""


def dial(
    host: str, port: int, hello: Hello, secret: str, *, peer: str, timeout_s: float = HANDSHAKE_S
) -> Connection:
    """Connect and shake hands. `RetryLater` when nobody answers, `Refused` when the answer is no."""
    try:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise RetryLater(f"{peer}: no socket: {error}") from None
    try:
        deadline = time.monotonic() + timeout_s
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        _connect(sock, host, port)
        magic, version, challenge = _GREETING.unpack(_read(sock, _GREETING.size, deadline))
        if magic != _MAGIC:
            raise ProtocolError(f"{peer} at {host}:{port} does not speak the protocol of elps")
        if version != PROTOCOL_VERSION:
            raise Refused(
                f"{peer} speaks version {version} of the protocol, this side {PROTOCOL_VERSION}: update the older one"
            )
        body, own = msgspec.json.encode(hello), os.urandom(16)
        sock.sendall(
            _GREETING.pack(_MAGIC, PROTOCOL_VERSION, own)
            + _LENGTH.pack(len(body))
            + body
            + _proof(secret, body + challenge)
        )
        answer = _read(sock, _LENGTH.unpack(_read(sock, _LENGTH.size, deadline))[0], deadline)
        if not hmac.compare_digest(answer, _proof(secret, own + challenge)):
            raise _refusal(f"{peer} at {host}:{port}", answer)
    except OSError as error:
        sock.close()
        late = isinstance(error, TimeoutError)
        how = f"did not answer within {timeout_s:g} s" if late else f"cannot be reached: {error}"
        raise RetryLater(f"{peer} at {host}:{port} {how}") from None
    except BaseException:
        sock.close()
        raise
    return Connection(sock, peer)


def welcome(
    sock: socket.socket,
    secret_of: Callable[[JobId], str | None],
    check: Callable[[Hello], None],
) -> tuple[Connection, Hello]:
    """Shake hands with a client.

    `secret_of` returns a job's secret, None for a job that is not here. `check` raises `Refused` when a client that has
    proved itself may not come in; who has not proved itself learns nothing. Raises `ProtocolError` or `Refused`; the
    socket is then closed.
    """
    try:
        deadline = time.monotonic() + HANDSHAKE_S
        sock.settimeout(HANDSHAKE_S)
        challenge = os.urandom(16)
        sock.sendall(_GREETING.pack(_MAGIC, PROTOCOL_VERSION, challenge))
        magic, version, theirs = _GREETING.unpack(_read(sock, _GREETING.size, deadline))
        if magic != _MAGIC or version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"a client greeted with {magic!r}, version {version}; expected version {PROTOCOL_VERSION}"
            )
        size = _LENGTH.unpack(_read(sock, _LENGTH.size, deadline))[0]
        if size > MAX_HELLO_BYTES:
            raise ProtocolError(f"a hello of {size} bytes, at most {MAX_HELLO_BYTES}")
        body, proof = _read(sock, size, deadline), _read(sock, 32, deadline)
        try:
            hello, secret = _proven(body, proof, challenge, secret_of)
            check(hello)
        except Refused as error:
            told = _UNPROVEN if isinstance(error, _Unproven) else str(error)
            text = f"{error.code}: {told}".encode()[:MAX_REFUSAL_BYTES]
            sock.sendall(_LENGTH.pack(len(text)) + text)
            raise
        answer = _proof(secret, theirs + challenge)
        sock.sendall(_LENGTH.pack(len(answer)) + answer)
    except OSError as error:
        sock.close()
        raise ProtocolError(f"a client did not finish its handshake: {error}") from None
    except BaseException:
        sock.close()
        raise
    return Connection(sock, f"{hello.sender} ({hello.purpose})"), hello


def _proven(
    body: bytes, proof: bytes, challenge: bytes, secret_of: Callable[[JobId], str | None]
) -> tuple[Hello, str]:
    """The hello of a client that knows the job's secret, and that secret."""
    try:
        hello = msgspec.json.decode(body, type=Hello)
    except msgspec.DecodeError as error:
        raise Refused(str(error)) from None
    found = secret_of(hello.job)
    secret = _NOBODYS if found is None else found
    if not hmac.compare_digest(proof, _proof(secret, body + challenge)):
        lacks = f"job {hello.job} is not here"
        knows_not = f"{hello.sender} does not know the secret of job {hello.job}"
        raise _Unproven(lacks if found is None else knows_not, "later")
    return hello, secret


def _connect(sock: socket.socket, host: str, port: int) -> None:
    try:
        sock.connect((host, port))
    except (TypeError, ValueError, OverflowError) as error:  # an address that is none
        raise OSError(str(error)) from None


def _refusal(who: str, answer: bytes) -> Refused:
    code, _, reason = answer[:MAX_REFUSAL_BYTES].decode(errors="replace").partition(": ")
    match code:
        case "later" | "over":
            return Refused(f"{who}: {reason}", code)
        case _:
            return Refused(f"{who}: {reason}")


def _proof(secret: str, data: bytes) -> bytes:
    return hmac.digest(secret.encode(), data, hashlib.sha256)


def _read(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the handshake takes too long")
        sock.settimeout(left_s)
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("closed in the middle of the handshake")
        data += piece
    return data
