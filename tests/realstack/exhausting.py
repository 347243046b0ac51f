"""Takes from a real stack what it needs: memory and disk from its servers, time from who reads what it tells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import redis
from realstack.site import Site

from elps.local import processes
from elps.local.processes import Handle
from elps.local.store import PrivateStore

ALARMS = {
    "memory": (
        ("set_vm_memory_high_watermark", "absolute", "1000"),
        ("set_vm_memory_high_watermark", "0.6"),
    ),
    "disk": (("set_disk_free_limit", "1000000GB"), ("set_disk_free_limit", "1MB")),
}
"""How each alarm of the broker is raised, and how it ends."""
DISK_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 4096
STARTS_S = 20.0

ON_A_DISK = """#!/bin/sh
exec unshare --mount sh -ec '
folder=$1 size=$2 server=$3; shift 3
mkdir -p "$folder.disk"
mount -t tmpfs -o "size=$size" tmpfs "$folder.disk"
cp -a "$folder/." "$folder.disk/"
mount --bind "$folder.disk" "$folder"
cd "$folder"
exec "$server" "$@"' sh {folder} {size} {server} "$@"
"""
"""A server on a disk of its own in a mount namespace of its own: both end with it, however it ends."""


class NotPermitted(Exception):
    """This process may not mount."""


@asynccontextmanager
async def broker_alarm(site: Site, kind: str) -> AsyncIterator[None]:
    """The broker takes no messages meanwhile."""
    begin, end = ALARMS[kind]
    await asyncio.to_thread(site.broker.control, *begin)
    try:
        yield
    finally:
        await asyncio.to_thread(site.broker.control, *end)


@asynccontextmanager
async def store_out_of(site: Site, kind: str) -> AsyncIterator[Callable[[], None]]:
    """The store answers and takes no values until what is given is called; afterwards the stack has its usual store."""
    if kind == "memory":
        with redis.Redis.from_url(site.record.redis_url) as client:
            client.config_set("maxmemory", 1)
            try:
                yield lambda: client.config_set("maxmemory", 0)
            finally:
                client.config_set("maxmemory", 0)
    else:
        async with _on_a_small_disk(site) as folder:
            filler = folder / "filler"
            await asyncio.to_thread(_fill, filler)
            yield filler.unlink


@asynccontextmanager
async def _on_a_small_disk(site: Site) -> AsyncIterator[Path]:
    """Give the store a disk of some megabytes; the folder leads to it from outside."""
    if not await asyncio.to_thread(_may_mount):
        raise NotPermitted("a small disk wants the right to mount")
    usual = site.store
    await site.kill("redis")
    script = site.folder / "redis-on-a-disk"
    script.write_text(
        ON_A_DISK.format(folder=usual.folder, size=DISK_BYTES, server=usual.binaries.server)
    )
    script.chmod(0o755)
    small = PrivateStore(
        usual.folder,
        usual.port,
        replace(usual.binaries, server=script),
        stack_id=usual.stack_id,
        log=usual.log,
    )
    site.keep(store=small.launch())
    await asyncio.to_thread(small.await_ready, STARTS_S)
    assert small.handle is not None
    seen = Path(f"/proc/{small.handle.pid}/root{usual.folder}")
    disk = os.open(seen, os.O_RDONLY | os.O_DIRECTORY)  # keeps it when the server has gone
    try:
        yield seen
    finally:
        with contextlib.suppress(FileNotFoundError):
            (seen / "filler").unlink()
        processes.end([small.handle], grace_s=STARTS_S)
        shutil.rmtree(usual.folder)
        shutil.copytree(f"/proc/self/fd/{disk}", usual.folder)
        os.close(disk)
        await site.start("redis")


@asynccontextmanager
async def slowed(*victims: Handle) -> AsyncIterator[None]:
    """Processes run for a tenth of the time, in turn with standing still."""

    async def hinder() -> None:
        try:
            while True:
                for number, seconds in ((signal.SIGSTOP, 0.45), (signal.SIGCONT, 0.05)):
                    for victim in victims:
                        processes.send(victim, number)
                    await asyncio.sleep(seconds)
        finally:
            for victim in victims:
                processes.send(victim, signal.SIGCONT)

    task = asyncio.create_task(hinder())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _may_mount() -> bool:
    tried = ["unshare", "--mount", "true"]
    return not os.geteuid() and not subprocess.run(tried, check=False).returncode


def _fill(file: Path) -> None:
    """Write until nothing more goes, down to the last page."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while out.write(b"x" * PIECE_BYTES):
            pass
