"""The broker and the store of a stack: those that the environment names, or private ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from elps.contracts.errors import SetupError
from elps.contracts.urls import masked
from elps.local import processes
from elps.local.binaries import BROKER_PACKAGE, STORE_PACKAGE, provide
from elps.local.broker import BrokerPorts, PrivateBroker
from elps.local.ports import Reservations, free_ports, is_free
from elps.local.record import StackRecord
from elps.local.store import PrivateStore

MONITOR_PORT = 8750
"""Where the monitor listens if nobody else does."""

LOOK_S = 2.0
"""Between two looks at a broker whose clients do not become healthy."""

Say = Callable[[str], None]


def choose_addresses(
    record: StackRecord,
    env: Mapping[str, str],
    *,
    fresh: bool,
    reservations: Reservations,
    say: Say,
) -> None:
    """Fill in the addresses of the stack.

    A running stack keeps what it has, and `SetupError` says so when the environment wants something else. A stopped
    one keeps its ports unless somebody took them meanwhile.
    """
    amqp, redis = env.get("ELPS_AMQP_URL"), env.get("ELPS_REDIS_URL")
    if not fresh:
        for name, wanted, has in (
            ("ELPS_AMQP_URL", amqp, record.amqp_url),
            ("ELPS_REDIS_URL", redis, record.redis_url),
        ):
            if wanted and wanted != has:
                raise SetupError(
                    f"the running stack uses {masked(has)}, but {name} is {masked(wanted)}: 'make down' first"
                )
        return
    if amqp:
        record.broker_ports, record.amqp_url = None, amqp
    else:
        ports = record.broker_ports
        if ports is None or not all(map(is_free, (ports.amqp, ports.distribution, ports.epmd))):
            record.broker_ports = ports = BrokerPorts.draw()
        record.amqp_url = f"amqp://guest:guest@127.0.0.1:{ports.amqp}/"
    if redis:
        record.store_port, record.redis_url = None, redis
    else:
        if record.store_port is None or not is_free(record.store_port):
            record.store_port = free_ports(1)[0]
        record.redis_url = f"redis://127.0.0.1:{record.store_port}/0"
    record.monitor_host, record.monitor_port = monitor_address(record, env, reservations, say)


def monitor_address(
    record: StackRecord, env: Mapping[str, str], reservations: Reservations, say: Say
) -> tuple[str, int]:
    """Where the monitor listens: as the environment says, else where it did before, else 8750, else anywhere."""
    host = env.get("ELPS_HOST") or "127.0.0.1"
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    asked = env.get("ELPS_MONITOR_PORT") or ""
    if asked and not (asked.isdecimal() and int(asked) < 2**16):
        raise SetupError(f"ELPS_MONITOR_PORT is {asked!r}; expected a port, or 0 for any free one")
    if asked and int(asked):
        if not (is_free(int(asked), host) and reservations.take(int(asked))):
            raise SetupError(f"ELPS_MONITOR_PORT is {asked}, but somebody listens there")
        return shown, int(asked)
    usual = [] if asked else [record.monitor_port, MONITOR_PORT]
    for port in usual:
        if port and is_free(port, host) and reservations.take(port):
            return shown, port
    port = free_ports(1)[0]
    if not asked:
        say(f"port {usual[0] or MONITOR_PORT} is taken: the monitor listens on {port}")
    return shown, port


class Servers:
    """The private broker and store of a stack, as far as it has them."""

    def __init__(
        self,
        home: Path,
        record: StackRecord,
        env: Mapping[str, str],
        log_of: Callable[[str], Path],
        say: Say,
    ) -> None:
        self.home = home
        self.record = record
        self.env = env
        self.log_of = log_of
        self.say = say
        self.broker: PrivateBroker | None = None
        self.store: PrivateStore | None = None
        self._told: set[str] = set()
        self._look_at = 0.0  #: when the broker's queues are looked at next, monotonic s
        self._lost: set[str] = set()  #: those that had no process then

    def prepare(self) -> None:
        """Find the programs, or fetch them; `SetupError` says what to do when there is no way."""
        record = self.record
        for name, url, ours in (
            ("broker", record.amqp_url, record.broker_ports is not None),
            ("store", record.redis_url, record.store_port is not None),
        ):
            if not ours:
                self.say(f"{name}: {masked(url)}, as the environment says")
        wanted = [BROKER_PACKAGE] if record.broker_ports is not None else []
        wanted += [STORE_PACKAGE] if record.store_port is not None else []
        if not wanted:
            return
        found = provide(self.home, self.env, self.say, wanted)
        if record.broker_ports is not None and found.broker is not None:
            self.say(f"broker: RabbitMQ, {found.broker.way}")
            self.broker = PrivateBroker(
                self.home / "broker",
                record.broker_ports,
                found.broker,
                stack_id=record.stack_id,
                handle=record.broker,
                log=self.log_of("rabbitmq"),
            )
        if record.store_port is not None and found.store is not None:
            self.say(f"store: Redis, {found.store.way}")
            self.store = PrivateStore(
                self.home / "store",
                record.store_port,
                found.store,
                stack_id=record.stack_id,
                handle=record.store,
                log=self.log_of("redis"),
            )

    def launch(self, keep: Callable[[], None]) -> None:
        """Start those that do not run, calling `keep` after each so that it is on record."""
        if self.store is not None and not self.store.alive:
            self._told.discard("redis")
            self.record.store = self.store.launch()
            self.say(f"starting redis on port {self.store.port}")
            keep()
        if self.broker is not None and not self.broker.alive:
            self.broker.end_port_mapper()
            self._told.discard("rabbitmq")
            self.record.broker = self.broker.launch()
            self.say(f"starting rabbitmq on port {self.broker.ports.amqp} (about 10 s)")
            keep()

    def check_alive(self) -> None:
        """`SetupError` with the end of its log when one of them ended."""
        for name, server in (("rabbitmq", self.broker), ("redis", self.store)):
            if server is not None and not server.alive:
                log = self.log_of(name)
                told = "\n".join(f"  {line}" for line in processes.tail(log))
                raise SetupError(f"{name} ended by itself; the end of {log}:\n{told}")

    def missing(self) -> list[str]:
        """Which of them do not answer yet."""
        waiting = []
        for name, server in (("rabbitmq", self.broker), ("redis", self.store)):
            if server is None or name in self._told:
                continue
            if server.answers():
                self._told.add(name)
            else:
                waiting.append(f"{name}: does not answer yet")
        return waiting

    def mend(self) -> None:
        """Put right what a crash of the broker has left; called while the services do not become healthy."""
        now = time.monotonic()
        if self.broker is None or "rabbitmq" not in self._told or now < self._look_at:
            return
        self._look_at, before = now + LOOK_S, self._lost
        self._lost = self.broker.lost_queues()
        for queue in sorted(self._lost & before):
            self.broker.forget_queue(queue)
            self.say(f"queue {queue} was lost when the broker was killed: it is made anew")
