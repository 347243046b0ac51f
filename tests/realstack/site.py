"""A real stack in a folder of its own: RabbitMQ, Redis and every service as processes, to be hit and looked at."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from realstack.rooms import Rooms

from elps.contracts.errors import SetupError
from elps.local import processes
from elps.local.binaries import find_broker, find_store
from elps.local.broker import PrivateBroker
from elps.local.processes import Handle, is_alive
from elps.local.record import StackRecord, read_record, write_record
from elps.local.services import Programs, environment, kind_of, number_of
from elps.local.stack import Stack
from elps.local.store import PrivateStore

TASKS = Path(__file__).parent / "tasks"
CHECKOUT = Path(__file__).parents[2]
DIES_S = 10.0
UP_S = 90.0
BROKER_S = 60.0
LOOK_S = 2.0
"""Between two looks at the queues of a broker that came back; one that is being declared is well within it."""
LOST_S = 3.0
PROMPT = {"ELPS_BEAT_S": "0.3", "ELPS_LOST_S": f"{LOST_S:g}", "ELPS_TASK_PATH": str(TASKS)}
"""Ten beats until a member counts as lost, so that a busy machine loses none by mistake."""
SERVERS = ("rabbitmq", "redis")


@dataclass(frozen=True)
class InRooms(Programs):
    """The monitor stays in the house, where the test asks it."""

    rooms: Rooms = field(kw_only=True)

    def of(self, name: str) -> tuple[str, ...]:
        """The command line that runs a service in its room."""
        program = super().of(name)
        if kind_of(name) == "monitor":
            return program
        room = self.rooms.room(name)
        return room.inside("env", f"ELPS_HOST={room.address}", *program)


class Site:
    """One stack, whatever state it is in."""

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        shards: int = 2,
        *,
        rooms: Rooms | None = None,
        no_rooms: str = "the stack has no network of its own",
        **env: str,
    ) -> None:
        """With `rooms`, each service that others talk to runs in one of its own; else `no_rooms` says why not."""
        self.folder, self.workers, self.shards = folder, workers, shards
        self.rooms = rooms
        self.no_rooms = no_rooms
        self.programs = Programs() if rooms is None else InRooms(rooms=rooms)
        self.said: list[str] = []
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ELPS_")}
        self.env: Mapping[str, str] = {**inherited, **PROMPT, **env}
        self.stack = Stack(folder / ".elps", self.env, say=self.said.append, programs=self.programs)
        # Programs that were unpacked for the checkout are this stack's too.
        unpacked = CHECKOUT / ".elps" / "binaries"
        if unpacked.is_dir() and not (self.stack.home / "binaries").exists():
            self.stack.home.mkdir(parents=True, exist_ok=True)
            (self.stack.home / "binaries").symlink_to(unpacked)
        self._numbers = itertools.count(1)

    def new_id(self, name: str) -> str:
        """An id that no job here had."""
        return f"{name}-{next(self._numbers)}"

    # --- as its operator ----------------------------------------------------------------------------------------------

    async def up(
        self, workers: int | None = None, shards: int | None = None, schedulers: int = 1
    ) -> None:
        """``make up``: start it, mend it, or change its size."""
        self.workers, self.shards = workers or self.workers, shards or self.shards
        await asyncio.to_thread(
            self.stack.up, self.workers, self.shards, UP_S, schedulers=schedulers
        )

    async def down(self) -> None:
        """``make down``."""
        await asyncio.to_thread(self.stack.down)

    @property
    def record(self) -> StackRecord:
        record = read_record(self.stack.home)
        assert record is not None
        return record

    @property
    def handles(self) -> dict[str, Handle]:
        """Every recorded process by name, servers first."""
        record = self.record
        servers = {"rabbitmq": record.broker, "redis": record.store}
        return {n: h for n, h in {**servers, **record.services}.items() if h is not None}

    @property
    def broker(self) -> PrivateBroker:
        """For what rabbitmqctl shows."""
        record = self.record
        assert record.broker_ports is not None
        home = self.stack.home
        return PrivateBroker(
            home / "broker",
            record.broker_ports,
            find_broker(home),
            stack_id=record.stack_id,
            handle=record.broker,
            log=self.stack.log_of("rabbitmq"),
        )

    @property
    def store(self) -> PrivateStore:
        """The server, not its contents."""
        record = self.record
        assert record.store_port is not None
        home = self.stack.home
        return PrivateStore(
            home / "store",
            record.store_port,
            find_store(home),
            stack_id=record.stack_id,
            handle=record.store,
            log=self.stack.log_of("redis"),
        )

    async def start(self, name: str) -> None:
        """Start one process that is dead or new as ``make up`` would, and wait for nothing; others stay as they are."""
        if name == "rabbitmq":
            broker = self.broker
            await asyncio.to_thread(broker.end_port_mapper)
            self.keep(broker=broker.launch())
        elif name == "redis":
            self.keep(store=self.store.launch())
        else:
            home, record = self.stack.home, self.record
            handle = processes.spawn(
                name,
                self.programs.of(name),
                env=environment(name, home, record, self.env),
                log=self.stack.log_of(name),
                cwd=home.parent,
            )
            self.keep(services={**record.services, name: handle})

    def forget(self, name: str) -> None:
        """Strike a service that has left for good off the record."""
        self.keep(services={n: h for n, h in self.record.services.items() if n != name})

    def newcomer(self, kind: str) -> str:
        """A name for one more member of a kind."""
        numbers = [number_of(n) for n in self.record.services if kind_of(n) == kind]
        return f"{kind}-{max(numbers) + 1}"

    def keep(self, **changes: Any) -> None:
        """Change the record. Written at one go, without waiting: several members may come and go at once."""
        record = self.record
        for name, value in changes.items():
            setattr(record, name, value)
        write_record(self.stack.home, record)

    async def broker_is_back(self) -> None:
        """Wait until a broker that was started answers, and make queues anew that it lost, as ``make up`` would."""
        broker = self.broker
        await asyncio.to_thread(
            processes.wait_until, lambda: not broker.alive or broker.answers(), BROKER_S
        )
        lost: set[str] = set()
        for _ in range(3):
            before = lost
            try:
                lost = await asyncio.to_thread(broker.lost_queues)
                for queue in sorted(lost & before):
                    await asyncio.to_thread(broker.forget_queue, queue)
            except SetupError:
                if not broker.alive:  # killed again
                    return
                raise
            await asyncio.sleep(LOOK_S)

    def log(self, name: str) -> str:
        return self.stack.log_of(name).read_text(errors="replace")

    # --- as its enemy -------------------------------------------------------------------------------------------------

    async def kill(
        self, *names: str, number: signal.Signals = signal.SIGKILL, timeout_s: float = DIES_S
    ) -> None:
        """Send a signal to processes of the stack and wait for their ends."""
        handles = [self.handles[name] for name in names]
        for handle in handles:
            assert processes.send(handle, number), f"{handle.name} was not there"
        await gone(handles, timeout_s)

    async def empty_the_store(self) -> None:
        """Kill Redis and start it without its data."""
        store = self.store
        await self.kill("redis")
        await asyncio.to_thread(shutil.rmtree, store.folder / "appendonlydir")
        await self.start("redis")

    async def kill_everything(self) -> None:
        """Kill -9 of every process that carries the stack's mark."""
        for handle in processes.belonging_to(self.record.stack_id):
            processes.send(handle, signal.SIGKILL)
        await asyncio.to_thread(
            processes.wait_until, lambda: not processes.belonging_to(self.record.stack_id), DIES_S
        )

    def trainers(self, *agents: str) -> list[psutil.Process]:
        """Trainer processes of these agents, or of all: the children of the agents' zygotes."""
        named = agents or tuple(n for n in self.handles if n.startswith("agent-"))
        found = []
        for agent in named:
            if is_alive(handle := self.handles[agent]):
                with contextlib.suppress(psutil.NoSuchProcess):  # it dies while it is looked at
                    for zygote in psutil.Process(handle.pid).children():
                        found += zygote.children()
        return found


async def gone(handles: list[Handle], timeout_s: float = DIES_S) -> None:
    """Wait until processes have ended."""
    ended = await asyncio.to_thread(
        processes.wait_until, lambda: not any(map(is_alive, handles)), timeout_s
    )
    assert ended, [h for h in handles if is_alive(h)]


async def all_gone(victims: list[psutil.Process]) -> None:
    """Wait until processes that are not ours have ended; a zombie has."""

    def lives(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    ended = await asyncio.to_thread(
        processes.wait_until, lambda: not any(map(lives, victims)), DIES_S
    )
    assert ended, [v for v in victims if lives(v)]
