"""A private RabbitMQ of our own: loopback only, its own node name, cookie, data and port mapper."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from elps.contracts.errors import SetupError
from elps.local import processes
from elps.local.binaries import BrokerBinaries, find_broker
from elps.local.ports import accepts, free_ports
from elps.local.private_server import PrivateServer
from elps.local.processes import PART_VARIABLE, STACK_VARIABLE, Handle

START_S = 60.0
"""It takes 7 to 10 s on two idle cores, most of it reading its own code."""
STOP_S = 20.0
CTL_S = 30.0
EPMD_S = 3.0

QUIET = "+sbwt none +sbwtdcpu none +sbwtdio none"
"""Without these its idle schedulers spin and eat a core."""

PREAMBLE = b"AMQP\x00\x00\x09\x01"
"""What an AMQP 0-9-1 client says first; a broker that is up answers with a method frame (first byte 1)."""


class BrokerPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The three ports of one node."""

    amqp: int
    distribution: int
    epmd: int

    @classmethod
    def draw(cls) -> BrokerPorts:
        """Three free ones."""
        amqp, distribution, epmd = free_ports(3)
        return cls(amqp=amqp, distribution=distribution, epmd=epmd)


class PrivateBroker(PrivateServer):
    """A RabbitMQ node that keeps its data in one folder."""

    title = "RabbitMQ"
    start_s = START_S
    stop_s = STOP_S

    def __init__(
        self,
        folder: Path,
        ports: BrokerPorts,
        binaries: BrokerBinaries,
        *,
        stack_id: str = "",
        handle: Handle | None = None,
        log: Path | None = None,
    ) -> None:
        folder = folder.absolute()
        log = log or folder / "rabbitmq.log"
        super().__init__(folder, ports.amqp, stack_id=stack_id, handle=handle, log=log)
        self.ports = ports
        self.binaries = binaries
        self.node = f"elps-{ports.amqp}@localhost"

    @property
    def url(self) -> str:
        """Where clients connect, default virtual host."""
        return f"amqp://guest:guest@127.0.0.1:{self.ports.amqp}/"

    def launch(self) -> Handle:
        """Start the node without waiting for it."""
        for name in ("home", "mnesia", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        cookie = self.folder / "home" / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(16), encoding="ascii")
            cookie.chmod(0o400)
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.ports.amqp}\n"
            "log.console = true\nlog.console.level = info\nlog.file = false\n",
            encoding="ascii",
        )
        (self.folder / "enabled_plugins").write_text("[].\n", encoding="ascii")
        server = self.binaries.sbin / "rabbitmq-server"
        self.handle = processes.spawn(
            "rabbitmq", [str(server)], env=self._environment(), log=self.log, cwd=self.folder
        )
        return self.handle

    def stop(self, timeout_s: float | None = None) -> None:
        """End in order (SIGTERM, on which RabbitMQ closes its queues), then its port mapper, which a crash leaves."""
        super().stop(timeout_s)
        self.end_port_mapper()

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node and return what it prints; `SetupError` when it fails."""
        done = subprocess.run(
            [str(self.binaries.sbin / "rabbitmqctl"), "-q", *arguments],
            env=dict(self._environment()),
            capture_output=True,
            text=True,
            timeout=CTL_S,
        )
        if done.returncode:
            raise SetupError(
                f"rabbitmqctl {' '.join(arguments)} failed: {(done.stderr or done.stdout).strip()}"
            )
        return done.stdout

    def new_virtual_host(self, name: str) -> str:
        """Make an empty virtual host and return its URL: exchanges and queues of its own in 40 ms."""
        done = self._evaluate(
            f'{{rabbit_vhost:add(<<"{name}">>, <<"elps">>), rabbit_auth_backend_internal:set_permissions('
            f'<<"guest">>, <<"{name}">>, <<".*">>, <<".*">>, <<".*">>, <<"elps">>)}}'
        )
        if "{ok,ok}" not in done.replace(" ", ""):
            raise SetupError(f"no virtual host {name}: {done}")
        return self.url + name

    def lost_queues(self) -> set[str]:
        """Quorum queues of the default virtual host that have no process, one that is being declared included.

        RabbitMQ 3.10 leaves such a queue when it is killed within the first second after the queue was declared. What
        it held is lost, and nothing can be done with it: neither consumed, nor declared, nor deleted by a client.
        """
        done = self._evaluate(
            "lists:flatten([binary_to_list(element(4, amqqueue:get_name(Q))) ++ [10] || Q <- rabbit_amqqueue:list(),"
            " amqqueue:get_type(Q) =:= rabbit_quorum_queue, is_tuple(amqqueue:get_pid(Q)),"
            " whereis(element(1, amqqueue:get_pid(Q))) =:= undefined])"
        )
        found = re.search(r'"(.*)"', done, re.DOTALL)
        return set(found[1].replace("\\n", "\n").split()) if found else set()

    def forget_queue(self, name: str) -> None:
        """Remove a lost queue from the broker's books, so that it can be declared anew."""
        resource = f'rabbit_misc:r(<<"/">>, queue, <<"{name}">>)'
        self._evaluate(f'rabbit_amqqueue:internal_delete({resource}, <<"elps">>)')

    def _evaluate(self, expression: str) -> str:
        """Have the node evaluate an Erlang expression; returns what it prints of the value."""
        if self.binaries.erl_call is None:
            return self.control("eval", f"{expression}.").strip()
        # A name of its own: the node refuses a second caller of the name that all have by default.
        caller = f"elps-call-{secrets.token_hex(6)}"
        done = subprocess.run(
            [str(self.binaries.erl_call), "-h", caller, "-sname", self.node, "-e"],
            input=f"{expression}.\n",
            env=dict(self._environment()),
            capture_output=True,
            text=True,
            timeout=CTL_S,
        )
        if done.returncode:
            raise SetupError(
                f"RabbitMQ does not evaluate {expression}: {(done.stdout + done.stderr).strip()}"
            )
        return done.stdout.strip()

    def _environment(self) -> Mapping[str, str]:
        env = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        env["PATH"] = os.pathsep.join(
            [*map(str, self.binaries.path), os.environ.get("PATH", os.defpath)]
        )
        if self.binaries.library_path:
            env["LD_LIBRARY_PATH"] = self.binaries.library_path
        return env | {
            STACK_VARIABLE: self.stack_id,
            PART_VARIABLE: "broker",
            "HOME": str(self.folder / "home"),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "rabbitmq.pid"),
            "RABBITMQ_DIST_PORT": str(self.ports.distribution),
            "ERL_EPMD_PORT": str(self.ports.epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} {QUIET}",
            # The script then replaces itself by the Erlang machine: the pid is that of the node, and
            # SIGTERM stops it in order.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def answers(self) -> bool:
        """Whether a client would be answered now."""
        try:
            with socket.create_connection(
                ("127.0.0.1", self.ports.amqp), timeout=1.0
            ) as connection:
                connection.sendall(PREAMBLE)
                return connection.recv(1) == b"\x01"
        except OSError:
            return False

    def end_port_mapper(self) -> None:
        """End the port mapper, which outlives its node; it refuses while a node is registered with it."""
        command = [str(self.binaries.epmd), "-port", str(self.ports.epmd), "-kill"]

        def ended() -> bool:
            if not accepts(self.ports.epmd):
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    command, env=dict(self._environment()), capture_output=True, timeout=CTL_S
                )
            return not accepts(self.ports.epmd)

        # More than once: it may notice only a moment later that its node is gone.
        processes.wait_until(ended, EPMD_S)


def start_broker(
    folder: Path,
    *,
    ports: BrokerPorts | None = None,
    binaries: BrokerBinaries | None = None,
    stack_id: str = "",
) -> PrivateBroker:
    """Start a private RabbitMQ with its data in `folder` and wait until it answers (about 10 s)."""
    broker = PrivateBroker(
        folder, ports or BrokerPorts.draw(), binaries or find_broker(), stack_id=stack_id
    )
    try:
        broker.start()
    except BaseException:
        broker.stop()
        raise
    return broker
