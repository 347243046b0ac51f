"""A network of its own for a stack on one machine, in which each service has an address and links that can be cut.

The process that enters it moves into a network namespace of its own, the house, with the broker, the store and whoever
else it starts. A room is one more namespace with one cable to the house, which forwards from room to room. All
addresses are loopback ones, so that servers which listen at 127.0.0.1 are reached from every room, and rooms from each
other; nobody in the house can connect to a service in a room, which nobody there wants to. The namespaces have
no names and nothing outside sees them: they, and the rules in them, end with the last of their processes, however that
ends.

A cut is a routing rule of the house: what it matches is dropped without a word, for connections that stand and for new
ones, in one direction or in both.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of ``sched.h``."""
OWN = "/proc/thread-self/ns/net"
HOUSE = "127.0.0.1"
ROOMS = "127.1.0.0/16"
MAX_ROOMS = 60_000
LOCAL_RULE, LAST_CUT = 30_000, 29_999
"""Priorities: the rules that cut come before the one that delivers to this host's own addresses."""
TOOL_S = 10.0
PROGRAMS = ("ip", "nsenter", "ss", "tc")
RESET_S = 2.0
NARROW = ("tbf", "rate", "100kbit", "burst", "3000", "limit", "1000000")
"""Of `tc`: 5 KB are on their way for 0.4 s, and what is behind them for longer."""

Selector = tuple[str, ...]
"""Of `ip rule`: which packets."""


class NotPermitted(Exception):
    """This process may not make network namespaces, or a program is missing; the text says what."""


class Room:
    """Where one service runs, whatever process it is."""

    def __init__(self, name: str, number: int, descriptor: int) -> None:
        self.name = name
        self.address = f"127.1.{number // 250}.{number % 250 + 1}"
        self.link = f"room{number}"  #: the house's end of its cable
        self.space = f"/proc/{os.getpid()}/fd/{descriptor}"

    def inside(self, *command: str) -> tuple[str, ...]:
        """A command line that runs there; the process is the command's own."""
        return ("nsenter", f"--net={self.space}", *command)


class Rooms:
    """The house and its rooms; made by `enter`, in the main thread, and left by `leave` there."""

    def __init__(self) -> None:
        self._outside = os.open(OWN, os.O_RDONLY)
        self._house = -1
        self._rooms: dict[str, Room] = {}
        self._spaces: list[int] = []
        self._priorities = itertools.count(1)
        self.no_reset = ""
        """Why connections cannot be reset here; empty if they can."""
        self.no_delay = ""
        """Why a cable cannot be made narrow here; empty if it can."""

    @classmethod
    def enter(cls) -> Rooms:
        """Move this thread, and those it starts from now on, into a house. Raises `NotPermitted`."""
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise NotPermitted(
                f"network namespaces want {', '.join(missing)} (iproute2, util-linux)"
            )
        rooms = cls()
        try:
            rooms._house = rooms._new_space()
            _move(rooms._house)
            rooms._build()
        except BaseException as error:
            rooms.leave()
            if isinstance(error, OSError):
                raise NotPermitted(f"network namespaces: {error}") from None
            raise
        return rooms

    def leave(self) -> None:
        """Move this thread back. The house stands as long as one of its processes."""
        _move(self._outside)
        for descriptor in (self._outside, self._house, *self._spaces):
            if descriptor >= 0:
                os.close(descriptor)

    def room(self, name: str) -> Room:
        """The room of a service; a new one for a new name."""
        if name not in self._rooms:
            number = len(self._rooms)
            if number >= MAX_ROOMS:
                raise NotPermitted(f"more than {MAX_ROOMS} rooms")
            space = self._new_space()
            self._spaces.append(space)
            self._furnish(room := Room(name, number, space))
            self._rooms[name] = room
        return self._rooms[name]

    # --- cutting ------------------------------------------------------------------------------------------------------

    def cut(self, selectors: Sequence[Selector]) -> list[int]:
        """Drop what any of them matches; gives what `mend` wants."""
        cuts = []
        for selector in selectors:
            cuts.append(priority := next(self._priorities))
            assert priority <= LAST_CUT
            _run("ip", "rule", "add", "pref", str(priority), *selector, "blackhole")
        return cuts

    def mend(self, cuts: Sequence[int]) -> None:
        """Let it pass again."""
        for priority in cuts:
            _run("ip", "rule", "delete", "pref", str(priority))

    def mend_all(self) -> None:
        """Let everything pass."""
        for line in _run("ip", "rule", "show").splitlines():
            if "blackhole" in line:
                _run("ip", "rule", "delete", "pref", line.partition(":")[0])

    def narrow(self, room: Room) -> None:
        """Let little at a time pass to a room and from it, and the rest wait; what waits already waits on."""
        _run("tc", "qdisc", "replace", "dev", room.link, "root", *NARROW)
        _run(*room.inside("tc", "qdisc", "replace", "dev", "eth0", "root", *NARROW))

    def widen(self, room: Room) -> None:
        """As wide as ever. What waits is lost, and sent again."""
        _run("tc", "qdisc", "delete", "dev", room.link, "root")
        _run(*room.inside("tc", "qdisc", "delete", "dev", "eth0", "root"))

    def reset(self, room: Room | None, *matching: str) -> None:
        """End connections that stand, as both sides are told unless that is cut. In a room, or in the house."""
        command = ("ss", "--no-header", "--kill", "--tcp", *matching)
        _run(*(command if room is None else room.inside(*command)), may_fail=True)

    # --- building -----------------------------------------------------------------------------------------------------

    def _new_space(self) -> int:
        """A new namespace; this thread is where it was afterwards."""
        here = os.open(OWN, os.O_RDONLY)
        try:
            if _libc().unshare(NEW_NETWORK):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            return os.open(OWN, os.O_RDONLY)
        finally:
            _move(here)
            os.close(here)

    def _build(self) -> None:
        _run("ip", "link", "set", "lo", "up")
        _set("ip_forward", "1")
        _set("conf/all/route_localnet", "1")
        _run("ip", "rule", "delete", "pref", "0")
        _run("ip", "rule", "add", "pref", str(LOCAL_RULE), "lookup", "local")
        self.no_reset = self._try_to_reset()
        self.no_delay = self._try_to_delay()

    def _try_to_delay(self) -> str:
        """Kernels may be built without."""
        try:
            _run("tc", "qdisc", "add", "dev", "lo", "root", *NARROW)
        except NotPermitted as error:
            return f"this kernel makes no way narrow ({error})"
        _run("tc", "qdisc", "delete", "dev", "lo", "root")
        return ""

    def _try_to_reset(self) -> str:
        """Kernels may be built without."""
        with socket.create_server((HOUSE, 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection((HOUSE, port), RESET_S) as connection:
                self.reset(None, "dport", "=", f":{port}")
                try:
                    connection.recv(1)
                except TimeoutError:
                    return "this kernel ends no connections (ss --kill)"
                except OSError:
                    return ""
        return "a connection that was reset has ended in order"

    def _furnish(self, room: Room) -> None:
        """Lay the cable: everything but the room's own address goes to the house, which knows the way to each room."""
        far = ("peer", "name", "eth0", "netns", room.space)
        _run("ip", "link", "add", room.link, "type", "veth", *far)
        _set(f"conf/{room.link}/route_localnet", "1")
        _run("ip", "link", "set", room.link, "up")
        _run("ip", "route", "add", f"{room.address}/32", "dev", room.link, "table", "local")

        def inside(*command: str) -> None:
            _run(*room.inside(*command))

        kept = "/proc/sys/net/ipv4/conf"
        inside(
            "sh", "-c", f"echo 1 > {kept}/all/route_localnet; echo 1 > {kept}/eth0/route_localnet"
        )
        for interface in ("lo", "eth0"):
            inside("ip", "link", "set", interface, "up")
        inside("ip", "-4", "route", "flush", "table", "local")
        inside("ip", "address", "add", f"{room.address}/32", "dev", "eth0")
        own = ("src", room.address)
        # As if it were the loopback's: else what comes from 127.0.0.1 is thrown away as forged.
        inside(
            "ip",
            "route",
            "replace",
            "local",
            f"{room.address}/32",
            "dev",
            "lo",
            "table",
            "local",
            *own,
        )
        inside("ip", "route", "add", f"{HOUSE}/32", "dev", "eth0", "scope", "link", *own)
        inside("ip", "route", "add", "127.0.0.0/8", "via", HOUSE, "dev", "eth0", "onlink", *own)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _move(space: int) -> None:
    if _libc().setns(space, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _set(name: str, value: str) -> None:
    """A setting of the namespace that this thread is in."""
    Path(f"/proc/sys/net/ipv4/{name}").write_text(value, encoding="ascii")


def _run(*command: str, may_fail: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S, check=False)
    if done.returncode and not may_fail:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
