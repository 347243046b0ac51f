"""The beginning of a connection, against clients and servers of every kind."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elps.contracts.errors import ElpsError, ProtocolError, RetryLater
from elps.contracts.ids import JobId
from elps.psshard import listener as listening
from elps.psshard.listener import Listener
from elps.wire import handshake as module
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import Header, Kind
from elps.wire.handshake import Hello, Refused, dial, welcome

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import SECRET, Proxy, descriptors, eventually, running, sockets

HELLO = Hello(job=JobId("job"), purpose="push", sender="job-w1", term=3)
GREETING = struct.Struct("<4sH16s")
HELLO_BYTES = json.dumps(
    {"job": "job", "purpose": "push", "sender": "job-w1", "term": 3}, separators=(",", ":")
).encode()


def secret_of(job: JobId) -> str | None:
    return SECRET if job == "job" else None


def check(hello: Hello) -> None:
    """Everyone who has proved itself may come in."""


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Answers every frame with its ticket plus one."""

    def serve(connection: Connection, hello: Hello) -> None:
        while True:
            header = connection.receive()
            connection.send(Header(Kind.BEAT, ticket=header.ticket + 1))

    listener = Listener("127.0.0.1", 0, secret_of, check, serve)
    yield listener
    listener.close()


def echoes(connection: Connection) -> bool:
    connection.send(Header(Kind.BEAT, ticket=4))
    return connection.receive(idle_s=5).ticket == 5


def proof(secret: str, data: bytes) -> bytes:
    return hmac.digest(secret.encode(), data, hashlib.sha256)


def answer_of(send: Callable[[bytes], bytes]) -> tuple[bytes, Exception | None]:
    """What a client hears that answers the greeting with `send(greeting)`, and what the server says of it."""
    near, far = sockets()
    said: list[Exception | None] = []

    def serve() -> None:
        try:
            welcome(near, secret_of, check)[0].close()
            said.append(None)
        except ElpsError as error:
            said.append(error)

    heard = b""
    with running(serve), far:
        far.settimeout(10)
        greeting = far.recv(GREETING.size)
        try:
            far.sendall(send(greeting))
            far.shutdown(socket.SHUT_WR)
            heard = b"".join(iter(lambda: far.recv(65536), b""))
        except OSError:
            pass  # it has hung up already
    assert near.fileno() == -1  # closed, whatever came
    return heard, said[0]


def said_by_a_client(
    greeting: bytes, *, secret: str = SECRET, hello: bytes = HELLO_BYTES, version: int = 1
) -> bytes:
    head = GREETING.pack(b"elps", version, bytes(16)) + struct.pack("<H", len(hello))
    return head + hello + proof(secret, hello + GREETING.unpack(greeting)[2])


def test_both_sides_come_to_trust_each_other(listener: Listener) -> None:
    connection = dial("127.0.0.1", listener.port, HELLO, SECRET, peer="shard-1")
    assert echoes(connection)
    connection.close()


@pytest.mark.parametrize(
    ("hello", "secret", "text"),
    [
        (HELLO, "another", "not here .yet., or its secret is another"),
        (HELLO, "", "its secret is another"),
        (
            Hello(job=JobId("ghost"), purpose="push", sender="x", term=3),
            SECRET,
            "not here .yet., or its secret is another",
        ),
    ],
)
def test_a_client_is_refused_with_the_reason(
    listener: Listener, hello: Hello, secret: str, text: str
) -> None:
    with pytest.raises(Refused, match=text) as refused:
        dial("127.0.0.1", listener.port, hello, secret, peer="shard-1")
    assert "shard-1" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.code == "later"  # the job may be hosted in a moment


def test_a_stranger_cannot_tell_whether_a_job_is_here() -> None:
    absent = HELLO_BYTES.replace(b'"job":"job"', b'"job":"jo2"')
    here, error = answer_of(lambda g: said_by_a_client(g, secret="guessed"))
    assert "job-w1 does not know the secret of job job" in str(error)
    not_here, error = answer_of(lambda g: said_by_a_client(g, secret="guessed", hello=absent))
    assert "job jo2 is not here" in str(error)
    assert here == not_here
    for term in (b"0", b"99999"):
        hello = HELLO_BYTES.replace(b'"term":3', b'"term":' + term)
        assert answer_of(lambda g, h=hello: said_by_a_client(g, secret="x", hello=h))[0] == here  # type: ignore[misc]


def test_an_honest_client_by_hand_is_welcome() -> None:
    heard, error = answer_of(said_by_a_client)
    assert error is None
    assert len(heard) == 2 + 32


@pytest.mark.parametrize(
    ("name", "send", "text"),
    [
        ("wrong version", lambda g: said_by_a_client(g, version=2), "version 2"),
        ("version 0", lambda g: said_by_a_client(g, version=0), "version 0"),
        ("nothing", lambda g: b"", "did not finish"),
        ("half a greeting", lambda g: said_by_a_client(g)[:11], "did not finish"),
        ("half a hello", lambda g: said_by_a_client(g)[:40], "did not finish"),
        ("no proof", lambda g: said_by_a_client(g)[:-32], "did not finish"),
        ("half a proof", lambda g: said_by_a_client(g)[:-1], "did not finish"),
        ("a web browser", lambda g: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "greeted with"),
        ("zeros", lambda g: bytes(5000), "greeted with"),
        ("the server's own words", lambda g: g + g, "did not finish|greeted|hello of"),
        ("too large", lambda g: said_by_a_client(g, hello=b"{" + b" " * 4096), "4097 bytes"),
        ("no JSON", lambda g: said_by_a_client(g, hello=b"\x80\x04K\x01."), "refused|malformed"),
        ("not UTF-8", lambda g: said_by_a_client(g, hello=HELLO_BYTES[:8] + b"\xff" + HELLO_BYTES[9:]), ""),
        ("a surrogate", lambda g: said_by_a_client(g, hello=HELLO_BYTES.replace(b'"job"}', b'"\\ud800"}')), None),
        ("empty hello", lambda g: said_by_a_client(g, hello=b""), ""),
        ("a list", lambda g: said_by_a_client(g, hello=b"[]"), "array"),
        ("no term", lambda g: said_by_a_client(g, hello=HELLO_BYTES.replace(b',"term":3', b"")), "term"),
        ("a strange purpose", lambda g: said_by_a_client(g, hello=HELLO_BYTES.replace(b"push", b"root")), "root"),
        ("an unknown field", lambda g: said_by_a_client(g, hello=HELLO_BYTES[:-1] + b',"x":1}'), "x"),
        ("deep", lambda g: said_by_a_client(g, hello=b"[" * 4000), ""),
    ],
)  # fmt: skip
def test_a_client_that_errs_is_turned_away_and_its_socket_closed(
    name: str, send: Callable[[bytes], bytes], text: str | None
) -> None:
    heard, error = answer_of(send)
    if text is None:  # whatever the text means, it has been read to the end
        assert error is None or isinstance(error, ElpsError)
        return
    assert isinstance(error, (ProtocolError, Refused)), (heard, error)
    assert re.search(text, str(error)), str(error)
    assert len(heard) < 600


def test_a_proof_seen_on_an_earlier_connection_is_worth_nothing() -> None:
    kept: list[bytes] = []

    def keep(greeting: bytes) -> bytes:
        kept.append(said_by_a_client(greeting))
        return kept[0]

    assert answer_of(keep)[1] is None
    heard, error = answer_of(lambda _: kept[0])
    assert isinstance(error, Refused)
    assert "does not know the secret" in str(error)
    assert heard == answer_of(lambda _: kept[0][:-1] + b"x")[0]


def test_a_proof_for_one_hello_is_no_proof_for_another() -> None:
    other = HELLO_BYTES.replace(b"push", b"link")

    def swap(greeting: bytes) -> bytes:
        return said_by_a_client(greeting).replace(HELLO_BYTES, other)

    assert isinstance(answer_of(swap)[1], Refused)


def test_a_client_is_not_taken_in_by_a_server_without_the_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            with server.accept()[0] as sock:
                sock.sendall(GREETING.pack(b"elps", 1, os.urandom(16)))
                said = sock.recv(4096)
                sock.sendall(
                    struct.pack("<H", 32) + said[-32:]
                )  # the client's own proof, sent back

        with running(pretend), pytest.raises(Refused):
            dial("127.0.0.1", server.getsockname()[1], HELLO, SECRET, peer="shard-1")


def served(server: socket.socket, answer: Callable[[socket.socket], None]) -> Callable[[], None]:
    def serve() -> None:
        with server.accept()[0] as sock:
            answer(sock)

    return serve


@pytest.mark.parametrize(
    ("name", "answer", "error", "text"),
    [
        ("ssh", lambda s: s.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n"), ProtocolError, "does not speak"),
        ("redis", lambda s: s.sendall(b"-ERR unknown command, with beginning\r\n"), ProtocolError, "does not speak"),
        ("newer", lambda s: s.sendall(GREETING.pack(b"elps", 2, bytes(16))), Refused, "version 2.*this side 1"),
        ("hangs up", lambda s: None, RetryLater, "shard-1 at 127.0.0.1"),
        ("silent", lambda s: threading.Event().wait(1.0), RetryLater, "did not answer within 0.5 s"),
        ("stops", lambda s: (s.sendall(b"elps"), threading.Event().wait(1.0)), RetryLater, "did not answer"),
        (
            "hangs up later",
            lambda s: (s.sendall(GREETING.pack(b"elps", 1, bytes(16))), s.recv(10)),
            RetryLater,
            "shard-1",
        ),
        (
            "dribbles",
            lambda s: [(s.sendall(b"e"), threading.Event().wait(0.1)) for _ in range(15)],
            RetryLater,
            "did not answer within 0.5 s",
        ),
    ],
)  # fmt: skip
def test_a_server_that_is_not_elps_is_named_within_the_time(
    name: str, answer: Callable[[socket.socket], None], error: type[Exception], text: str
) -> None:
    before = descriptors()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            with server.accept()[0] as sock:
                try:
                    answer(sock)
                except OSError:
                    pass  # the client has left

        began = time.monotonic()
        with running(serve), pytest.raises(error, match=text):
            dial("127.0.0.1", port, HELLO, SECRET, peer="shard-1", timeout_s=0.5)
        assert time.monotonic() - began < 9
    eventually(lambda: descriptors() <= before)


def test_nobody_there_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(RetryLater, match=f"shard-1 at 127.0.0.1:{port}"):
        dial("127.0.0.1", port, HELLO, SECRET, peer="shard-1")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("host", "port"), [("x" * 300, 1), ("a\0b", 1), ("☃" * 200, 1), ("127.0.0.1", 65_536)]
)
def test_an_address_that_is_none_is_out_of_reach_and_no_fault_of_ours(host: str, port: int) -> None:
    with pytest.raises(RetryLater, match="cannot be reached"):
        dial(host, port, HELLO, SECRET, peer="shard-1")


def test_slow_clients_are_ended_within_the_time_of_a_handshake(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte each tenth of a second would keep a thread for minutes if each byte had the whole time."""
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.8)
    before = threading.active_count()
    clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(20)]
    data = said_by_a_client(GREETING.pack(b"elps", 1, bytes(16)))
    began, at, pause = time.monotonic(), 0, threading.Event()
    ended: set[socket.socket] = set()
    while len(ended) < len(clients):
        assert time.monotonic() - began < 10
        for client in clients:
            try:
                client.sendall(data[at : at + 1])
            except OSError:
                ended.add(client)
        at = min(at + 1, len(data) - 2)
        pause.wait(0.1)
    for client in clients:
        client.close()
    eventually(lambda: threading.active_count() <= before)
    good = dial("127.0.0.1", listener.port, HELLO, SECRET, peer="shard-1")
    assert echoes(good)
    good.close()


def test_what_a_proxy_changes_on_the_way_ends_the_handshake(listener: Listener) -> None:
    """Every cut of the handshake's bytes, in either direction, is an error in words and nothing else."""
    proxy = Proxy(listener.port)
    total_up, total_down = 22 + 2 + len(HELLO_BYTES) + 32, 22 + 2 + 32
    try:
        for at in (0, 1, 21, 22, 23, 24, 60, total_up - 1):
            proxy.cut_up.append(at)
            with pytest.raises(RetryLater):
                dial("127.0.0.1", proxy.port, HELLO, SECRET, peer="shard-1")
        for at in (0, 1, 21, 22, 23, 24, 40, total_down - 1):
            proxy.cut_up.append(10**9)
            proxy.cut_down.append(at)
            with pytest.raises(RetryLater):
                dial("127.0.0.1", proxy.port, HELLO, SECRET, peer="shard-1")
        connection = dial("127.0.0.1", proxy.port, HELLO, SECRET, peer="shard-1")
        assert echoes(connection)
        connection.close()
    finally:
        proxy.close()


def test_more_connections_than_allowed_are_closed_at_once_and_room_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 3)
    served, ended = threading.Semaphore(0), threading.Event()

    def serve(connection: Connection, hello: Hello) -> None:
        served.release()
        try:
            connection.receive()
        finally:
            ended.set()

    listener = Listener("127.0.0.1", 0, secret_of, check, serve)
    try:
        open_ = [dial("127.0.0.1", listener.port, HELLO, SECRET, peer="s") for _ in range(3)]
        for _ in open_:  # while the other side is at the handshake it does not count
            assert served.acquire(timeout=5)
        with pytest.raises(RetryLater):
            dial("127.0.0.1", listener.port, HELLO, SECRET, peer="s")
        open_[0].close()
        assert ended.wait(5)
        eventually(lambda: listener.connections == 2)
        dial("127.0.0.1", listener.port, HELLO, SECRET, peer="s").close()
    finally:
        listener.close()
    for connection in open_[1:]:
        with pytest.raises(ConnectionEnded):
            connection.receive(idle_s=5)
        connection.close()


def test_a_listener_that_runs_out_of_descriptors_goes_on_later(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    class Log:
        """Stands for the listener's log."""

        def error(self, event: str, **_: object) -> None:
            failed.set()

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    monkeypatch.setattr(listening, "log", Log())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    filled: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.dup(0))
        waiting.connect(("127.0.0.1", listener.port))  # the kernel takes it, nobody else can
        assert failed.wait(5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in filled:
            os.close(number)
    connection = dial("127.0.0.1", listener.port, HELLO, SECRET, peer="shard-1")
    assert echoes(connection)
    connection.close()
    waiting.close()
