"""A real Redis that is killed and comes back without its newest writes, or without anything."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from elps.local.store import PrivateStore

LOG_FOLDER = "appendonlydir"


async def emptied(store: PrivateStore) -> None:
    """Kill it and start it without its data."""
    await asyncio.to_thread(_come_back, store, None)


async def copied(store: PrivateStore, into: Path) -> Path:
    """End it in order, copy what it has, and start it again."""

    def copy() -> None:
        store.stop()
        shutil.copytree(store.folder / LOG_FOLDER, into)
        store.start()

    await asyncio.to_thread(copy)
    return into


async def set_back(store: PrivateStore, copy: Path) -> None:
    """Kill it and start it with what it had when it was copied."""
    await asyncio.to_thread(_come_back, store, copy)


def _come_back(store: PrivateStore, copy: Path | None) -> None:
    store.kill()
    shutil.rmtree(store.folder / LOG_FOLDER)
    if copy is not None:
        shutil.copytree(copy, store.folder / LOG_FOLDER)
    store.start()
