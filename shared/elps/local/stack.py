"""A whole stack on this machine: started, changed in size, looked at and ended.

Every method reads the record, does its work and writes the record back after each step, so that a command that was
killed in the middle leaves nothing that the next one could not end. What runs is found by pid and start time, and by
the mark in its environment.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from elps.contracts.errors import ElpsError, SetupError
from elps.local import health, processes
from elps.local.paths import choose_paths
from elps.local.ports import Reservations
from elps.local.processes import Handle, is_alive
from elps.local.record import StackRecord, new_record, read_record, write_record
from elps.local.servers import Servers, choose_addresses
from elps.local.services import (
    AGENT,
    SCHEDULER,
    SHARD,
    Programs,
    environment,
    kind_of,
    names,
    number_of,
)
from elps.local.suspend import suspend_jobs

Say = Callable[[str], None]

UP_S = 60.0
SUSPEND_S = 20.0
DRAIN_S = 50.0
"""A surplus agent or shard leaves at the next boundary of an iteration; so long it is given."""
SERVICE_S = 10.0
SERVER_S = 20.0
LEFTOVER_S = 3.0
ASK_EVERY_S = 0.2


class Stack:
    """The stack of one `.elps` folder."""

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str],
        *,
        say: Say = print,
        programs: Programs | None = None,
    ) -> None:
        self.home = home.absolute()
        self.env = env
        self.say = say
        self.programs = programs or Programs()

    def log_of(self, name: str) -> Path:
        """Where a process of the stack writes."""
        return self.home / "logs" / f"{name}.log"

    def up(
        self,
        workers: int,
        shards: int,
        timeout_s: float = UP_S,
        *,
        schedulers: int = 1,
        at_least: bool = False,
    ) -> StackRecord:
        """Have a stack of this size running and healthy; `SetupError` when it did not become so in time.

        Of several schedulers one is in charge, and the others stand by.

        With `at_least` one that is larger stays so. On failure what this call started is ended again.
        """
        began = time.monotonic()
        with self._locked(), Reservations() as reservations:
            record = read_record(self.home) or new_record()
            before = dict(_living(record))
            if at_least:
                workers = max(workers, _highest(before, AGENT))
                shards = max(shards, _highest(before, SHARD))
                schedulers = max(schedulers, _highest(before, SCHEDULER))
            choose_paths(record, self.env, cwd=Path.cwd(), running=_highest(before, AGENT) > 0)
            if not before:
                self._end_leftovers(record, keep={})
            choose_addresses(
                record,
                self.env,
                fresh=not before,
                reservations=reservations,
                say=self.say,
            )
            servers = Servers(self.home, record, self.env, self.log_of, self.say)
            servers.prepare()
            record.running, record.boot_id = True, processes.boot_id()
            try:
                wanted = names(workers, shards, schedulers)
                self._start(record, servers, wanted)
                self._await_healthy(record, servers, wanted, before, began + timeout_s)
            except BaseException:
                self.say("that did not work: ending what was started")
                self._undo(record, before)
                raise
            self._end_surplus(record, wanted)
            self._end_leftovers(record, keep=dict(_living(record)))
            self.say(f"the stack is up ({time.monotonic() - began:.1f} s)")
            return record

    def down(self) -> None:
        """End the stack and all that is left of it; running jobs are checkpointed first."""
        with self._locked():
            record = read_record(self.home)
            if record is None:
                self.say(f"no stack was started from here ({self.home})")
                return
            self._suspend(record)
            self._end_all(record)

    def clean(self, everything: bool = False) -> None:
        """End the stack and remove its data and logs; with `everything` the unpacked binaries too."""
        if not self.home.is_dir():
            self.say(f"nothing to remove: there is no {self.home}")
            return
        self.say(f"removing the stack in {self.home}: its jobs, checkpoints, queues and logs")
        self.down()
        for path in sorted(self.home.iterdir()):
            if path.name == "binaries" and not everything:
                self.say(
                    f"kept: {path} (unpacked RabbitMQ and Redis; remove it with 'make clean ALL=1')"
                )
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        if not any(self.home.iterdir()):
            self.home.rmdir()
        self.say("removed")

    # --- starting -----------------------------------------------------------------------------

    def _start(self, record: StackRecord, servers: Servers, wanted: list[str]) -> None:
        """Start what does not run yet, all at once: services ask for broker and store until they come."""
        servers.launch(lambda: write_record(self.home, record))
        started = []
        for name in wanted:
            if name in record.services and is_alive(record.services[name]):
                continue
            record.services[name] = processes.spawn(
                name,
                self.programs.of(name),
                env=environment(name, self.home, record, self.env),
                log=self.log_of(name),
                cwd=self.home.parent,
            )
            write_record(self.home, record)
            started.append(name)
        if started:
            self.say(f"starting {', '.join(started)}")

    def _await_healthy(
        self,
        record: StackRecord,
        servers: Servers,
        wanted: list[str],
        before: dict[str, Handle],
        deadline: float,
    ) -> None:
        token = self.env.get("ELPS_TOKEN")
        while True:
            self._look_after(record, servers, wanted, before)
            missing = servers.missing()
            if not missing:
                pids = {name: record.services[name].pid for name in wanted}
                missing = health.ask(record.monitor_url, token).missing(pids)
            missing += [name for name, handle in before.items() if not is_alive(handle)]
            if not missing:
                return
            servers.mend()
            if time.monotonic() > deadline:
                first = missing[0].partition(":")[0]
                raise SetupError(
                    "the stack did not become healthy in time: "
                    + "; ".join(missing)
                    + "\n"
                    + self._why(first, "not healthy")
                )
            time.sleep(ASK_EVERY_S)

    def _look_after(
        self, record: StackRecord, servers: Servers, wanted: list[str], before: dict[str, Handle]
    ) -> None:
        """Raise when something that was started here has ended.

        What ran before may have been dying of a crash when it was looked at: it is taken out of `before` and started.
        """
        died = [name for name, handle in before.items() if not is_alive(handle)]
        for name in died:
            del before[name]
        if died:
            self.say(f"{', '.join(died)} ended only now")
            self._start(record, servers, wanted)
        servers.check_alive()
        for (
            name
        ) in wanted:  # what ran before and has died since is found when this is looked at next
            if name not in before and not is_alive(record.services[name]):
                raise SetupError(self._why(name, "ended by itself"))

    def _why(self, name: str, what: str) -> str:
        name = {"broker": "rabbitmq", "store": "redis"}.get(name, name)
        log = self.log_of(name)
        return "\n".join(
            [f"{name}: {what}; the end of {log}:", *(f"  {line}" for line in processes.tail(log))]
        )

    def _undo(self, record: StackRecord, before: Mapping[str, Handle]) -> None:
        """End what was started since `before`; all of it when nothing ran then."""
        if not before:
            self._end_all(record)
            return
        new = [handle for name, handle in _living(record) if before.get(name) != handle]
        self._end_services(new, SERVICE_S)
        record.services = {n: h for n, h in record.services.items() if before.get(n) == h}
        write_record(self.home, record)

    # --- ending -------------------------------------------------------------------------------

    def _suspend(self, record: StackRecord) -> None:
        if not any(kind_of(n) == SCHEDULER and is_alive(h) for n, h in record.services.items()):
            return
        self.say("asking the scheduler to checkpoint running jobs")
        try:
            self.say(f"  {suspend_jobs(record.amqp_url, SUSPEND_S)}")
        except (ElpsError, OSError) as error:
            self.say(f"  not done: {error}; jobs go on from their last checkpoint")

    def _end_surplus(self, record: StackRecord, wanted: list[str]) -> None:
        surplus = sorted(
            set(record.services) - set(wanted), key=lambda name: (-number_of(name), name)
        )
        living = [record.services[name] for name in surplus if is_alive(record.services[name])]
        # Shards first: their jobs are checkpointed at the end of an iteration, which still needs its workers.
        for kind in (SHARD, AGENT, SCHEDULER):
            leaving = [handle for handle in living if kind_of(handle.name) == kind]
            if leaving:
                self.say(f"sending away {', '.join(handle.name for handle in leaving)}")
                self._end_services(leaving, SERVICE_S if kind == SCHEDULER else DRAIN_S)
        for name in surplus:
            del record.services[name]
        write_record(self.home, record)

    def _end_services(self, handles: list[Handle], grace_s: float) -> None:
        """End services with their trainers."""
        family = processes.descendants(handles)
        for handle in processes.end(handles, grace_s=grace_s):
            self.say(
                f"  {handle.name} (pid {handle.pid}) did not end within {grace_s:.0f} s and was killed"
            )
        processes.end(family, grace_s=LEFTOVER_S)

    def _end_leftovers(self, record: StackRecord, keep: Mapping[str, Handle]) -> None:
        """End marked processes that no living process of the stack accounts for."""
        parts = ("service",) if keep else ("service", "broker", "store")
        for part in parts:
            marked = processes.belonging_to(record.stack_id, part)
            # Looked up after the marked ones, so that a trainer forked at this moment is accounted for.
            own = {h.pid for h in (*keep.values(), *processes.descendants(keep.values()))}
            left = [handle for handle in marked if handle.pid not in own]
            if left:
                told = ", ".join(f"{handle.name} ({handle.pid})" for handle in left)
                self.say(f"ending leftovers of an earlier run: {told}")
                processes.end(left, grace_s=SERVER_S if part == "store" else LEFTOVER_S)

    def _end_all(self, record: StackRecord) -> None:
        services = [h for name, h in _living(record) if name in record.services]
        if services:
            self.say(f"ending {', '.join(handle.name for handle in services)}")
            self._end_services(services, SERVICE_S)
        processes.end(processes.belonging_to(record.stack_id, "service"), grace_s=LEFTOVER_S)
        for name, server in (("rabbitmq", record.broker), ("redis", record.store)):
            if server is not None and is_alive(server):
                self.say(f"ending {name}")
                processes.end([server], grace_s=SERVER_S)
        # Erlang's port mapper, and whatever a crash left behind.
        processes.end(processes.belonging_to(record.stack_id), grace_s=LEFTOVER_S)
        record.services, record.broker, record.store, record.running = {}, None, None, False
        write_record(self.home, record)
        self.say("the stack is down")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One command at a time works on a stack."""
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say("waiting for another command that works on this stack")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _highest(running: Iterable[str], kind: str) -> int:
    """The highest number of the running members of a kind; 0 when there is none."""
    return max((number_of(name) for name in running if kind_of(name) == kind), default=0)


def _living(record: StackRecord) -> Iterator[tuple[str, Handle]]:
    """The recorded processes that run, by name."""
    known = [("rabbitmq", record.broker), ("redis", record.store), *record.services.items()]
    return ((name, handle) for name, handle in known if handle is not None and is_alive(handle))
