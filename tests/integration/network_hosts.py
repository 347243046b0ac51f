"""Hosts made of network namespaces: each with a loopback and an address of its own, joined by a bridge in this one.

Names carry the process id of the test run, so that what a killed run left behind is found and removed by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import random
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

BRIDGE, SPACE, LINK = "elpsb", "elpsn", "elpsv"
"""With the process id and a digit they stay below the 15 characters of an interface's name."""
IP_S = 10.0
PIECE_BYTES = 64 * 1024
TRIES = 20


class NotPermitted(Exception):
    """This process may not make network namespaces, or the kernel has none; the text says what failed."""


class Host:
    """One of them."""

    def __init__(self, number: int, address: str) -> None:
        self.number, self.address = number, address
        self.space = f"{SPACE}{os.getpid()}-{number}"
        self.link = f"{LINK}{os.getpid()}-{number}"
        """The end of its cable in this namespace."""

    def inside(self, *command: str) -> list[str]:
        """A command line that runs on this host; the process is the command's own."""
        return ["ip", "netns", "exec", self.space, *command]

    def pull_cable(self) -> None:
        """Nothing comes or goes, and nobody is told."""
        _ip("link", "set", self.link, "down")

    def plug_cable(self) -> None:
        _ip("link", "set", self.link, "up")


class Network:
    """The bridge and its hosts; made by `network`."""

    def __init__(self, subnet: ipaddress.IPv4Network, hosts: int) -> None:
        self.bridge = f"{BRIDGE}{os.getpid()}"
        self.subnet = subnet
        self.address = str(subnet[1])
        """Of this namespace, as the hosts see it."""
        self.hosts = [Host(n, str(subnet[10 + n])) for n in range(1, hosts + 1)]

    def build(self) -> None:
        bits = self.subnet.prefixlen
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.address}/{bits}", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for host in self.hosts:
            _ip("netns", "add", host.space)
            far = ("netns", host.space)
            _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", *far)
            _ip("link", "set", host.link, "master", self.bridge, "up")
            _ip("-n", host.space, "address", "add", f"{host.address}/{bits}", "dev", "eth0")
            _ip("-n", host.space, "link", "set", "eth0", "up")
            _ip("-n", host.space, "link", "set", "lo", "up")


@contextmanager
def network(hosts: int) -> Iterator[Network]:
    """A bridge with so many hosts; all of it is gone afterwards. Raises `NotPermitted`."""
    if os.geteuid() != 0:
        raise NotPermitted("network namespaces want root")
    try:
        _remove_leftovers()
        made = Network(_free_subnet(), hosts)
        try:
            made.build()
        except BaseException:
            _remove(os.getpid())
            raise
    except (NotPermitted, OSError) as error:
        raise NotPermitted(str(error)) from None
    try:
        yield made
    finally:
        _remove(os.getpid())


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=IP_S, check=False)
    if done.returncode != 0:
        raise NotPermitted(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _free_subnet() -> ipaddress.IPv4Network:
    """One that no route of this host leads to, but for the default."""
    shown = json.loads(_ip("-j", "-4", "route", "show", "table", "all"))
    taken = [ipaddress.ip_network(route["dst"]) for route in shown if route["dst"] != "default"]
    for _ in range(TRIES):
        drawn = ipaddress.IPv4Network(f"10.{random.randrange(256)}.{random.randrange(256)}.0/24")
        if not any(drawn.overlaps(net) for net in taken):
            return drawn
    raise NotPermitted(f"no free subnet of 10.0.0.0/8 in {TRIES} draws")


def _remove_leftovers() -> None:
    """Remove what runs left behind whose process is gone."""
    names = [link["ifname"] for link in json.loads(_ip("-j", "link", "show"))]
    names += [space["name"] for space in json.loads(_ip("-j", "netns", "list") or "[]")]
    marked = [re.fullmatch(rf"(?:{BRIDGE}|{SPACE}|{LINK})(\d+)(?:-\d+)?", name) for name in names]
    for pid in sorted({int(found[1]) for found in marked if found}):
        if not Path(f"/proc/{pid}").exists():
            _remove(pid)


def _remove(pid: int) -> None:
    """Remove everything of one run: the links end with the namespaces only when no process is left in them."""
    for link in json.loads(_ip("-j", "link", "show")):
        if re.fullmatch(rf"(?:{BRIDGE}|{LINK}){pid}(?:-\d+)?", link["ifname"]):
            _ip("link", "delete", link["ifname"])
    for space in json.loads(_ip("-j", "netns", "list") or "[]"):
        if re.fullmatch(rf"{SPACE}{pid}-\d+", space["name"]):
            _ip("netns", "delete", space["name"])


@asynccontextmanager
async def forwarded(url: str, address: str) -> AsyncIterator[str]:
    """Make a server of this host's loopback reachable at another of its addresses; gives the URL that leads there."""
    target = urlsplit(url)
    pumps: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while piece := await source.read(PIECE_BYTES):
                    sink.write(piece)
                    await sink.drain()
        finally:
            sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(pump(source, sink))
            pumps.add(task)
            task.add_done_callback(pumps.discard)

    server = await asyncio.start_server(serve, address, 0)
    user, at, _ = target.netloc.rpartition("@")
    port = server.sockets[0].getsockname()[1]
    try:
        yield urlunsplit(target._replace(netloc=f"{user}{at}{address}:{port}"))
    finally:
        server.close()
        ended = list(pumps)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
