"""The network that a chaos run cuts: in silence, in one direction alone where it is asked, and mended afterwards."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
from realstack.rooms import ROOMS, NotPermitted, Rooms

NEVER_S, BOUND_S = 1.0, 20.0
ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        connection, _ = server.accept()
        while piece := connection.recv(100):
            connection.sendall(piece)
"""
ASK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))
print("connected", flush=True)
for line in sys.stdin:
    try:
        connection.sendall(line.encode())
        print(connection.recv(100).decode().strip() or "ended", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""
CROWD = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    for _ in range(30):
        out.sendto(bytes(1000), (sys.argv[1], 9))
"""


@pytest.fixture
def rooms() -> Iterator[Rooms]:
    try:
        made = Rooms.enter()
    except NotPermitted as reason:
        pytest.skip(str(reason))
    yield made
    made.leave()


class Talk:
    """One connection between two rooms."""

    def __init__(self, rooms: Rooms) -> None:
        self.here, self.there = rooms.room("here"), rooms.room("there")
        serve = self.there.inside("python3", "-c", ECHO, self.there.address)
        self.server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.port = self.server.stdout.readline().strip()
        self.caller = self._call(BOUND_S)
        assert self._line() == "connected"

    def _call(self, timeout_s: float) -> subprocess.Popen[str]:
        ask = self.here.inside("python3", "-c", ASK, self.there.address, self.port, str(timeout_s))
        pipe = subprocess.PIPE
        return subprocess.Popen(ask, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def _line(self) -> str:
        assert self.caller.stdout is not None
        return self.caller.stdout.readline().strip()

    def say(self, word: str) -> None:
        assert self.caller.stdin is not None
        self.caller.stdin.write(f"{word}\n")
        self.caller.stdin.flush()

    def answer(self) -> str:
        return self._line()

    def a_new_one(self) -> str:
        """How a connection attempt ends."""
        call = self._call(NEVER_S)
        _, errors = call.communicate(timeout=BOUND_S)
        return errors.strip().splitlines()[-1] if errors else "connected"

    def end(self) -> None:
        for process in (self.caller, self.server):
            process.kill()
            process.communicate()


@pytest.fixture
def talk(rooms: Rooms) -> Iterator[Talk]:
    made = Talk(rooms)
    yield made
    made.end()


def test_a_cut_loses_what_is_sent_and_what_connects_in_silence_until_it_is_mended(
    rooms: Rooms, talk: Talk
) -> None:
    for selector in (
        ("from", talk.here.address),
        ("to", talk.here.address),
        ("from", talk.here.address, "to", ROOMS),
        ("from", ROOMS, "ipproto", "tcp", "sport", talk.port),
    ):
        talk.say("before")
        assert talk.answer() == "before"
        cuts = rooms.cut([selector])
        assert "timed out" in talk.a_new_one(), selector
        talk.say("meanwhile")
        rooms.mend(cuts)
        assert talk.answer() == "meanwhile", "TCP sends again what was lost"
        assert talk.a_new_one() == "connected"


def test_a_cut_of_other_ways_lets_this_one_be(rooms: Rooms, talk: Talk) -> None:
    other = rooms.room("another")
    cuts = rooms.cut([("from", other.address), ("to", other.address)])
    talk.say("hello")
    assert talk.answer() == "hello"
    rooms.mend_all()
    with pytest.raises(NotPermitted):
        rooms.mend(cuts)


def test_a_reset_is_told_to_both_sides_and_a_half_open_connection_only_to_who_sends(
    rooms: Rooms, talk: Talk
) -> None:
    if rooms.no_reset:
        pytest.skip(rooms.no_reset)
    cuts = rooms.cut([("from", talk.there.address), ("to", talk.there.address)])
    rooms.reset(talk.there, "dst", ROOMS)
    rooms.mend(cuts)
    talk.say("is anybody there")
    assert talk.answer() == "ConnectionResetError"


def test_a_narrow_cable_delays_what_is_sent_and_loses_nothing_of_it(
    rooms: Rooms, talk: Talk
) -> None:
    if rooms.no_delay:
        pytest.skip(rooms.no_delay)

    def takes_s(word: str) -> float:
        began = time.monotonic()
        talk.say(word)
        assert talk.answer() == word
        return time.monotonic() - began

    crowd = talk.here.inside("python3", "-c", CROWD, talk.there.address)
    subprocess.run(crowd, check=True, timeout=BOUND_S)
    wide_s = takes_s("hello")
    rooms.narrow(talk.here)
    subprocess.run(crowd, check=True, timeout=BOUND_S)
    assert takes_s("hello") > max(10 * wide_s, 0.5), "it waits for those before it"
    rooms.widen(talk.here)
    assert takes_s("hello") < 0.5


def test_nothing_is_left_where_the_rooms_were_entered_from() -> None:
    def interfaces() -> set[str]:
        return {name for _, name in socket.if_nameindex()}

    before = interfaces()
    try:
        rooms = Rooms.enter()
    except NotPermitted as reason:
        pytest.skip(str(reason))
    rooms.room("one")
    assert interfaces() == {"lo", "room0"}
    rooms.leave()
    assert interfaces() == before
