"""A service that does as little as a stack needs: started by the tests of `elps.local` in place of the real ones.

Each leaves its pid in a folder; the monitor reports whoever is there; the scheduler answers `suspend`. A file named
``fail-<name>`` in that folder makes the service of that name end at once, ``deaf-<name>`` makes it ignore SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.requests import Reply
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Delivery, Queue

KIND = sys.argv[1]
FOLDER = Path(os.environ["ELPS_TEST_FOLDER"])
NAME = os.environ.get("ELPS_SHARD_ID") or os.environ.get("ELPS_AGENT_ID") or KIND


class Answers(BaseHTTPRequestHandler):
    """The monitor's three answers that matter here."""

    def do_GET(self) -> None:
        members = {
            path.name: int(path.read_text())
            for pattern in ("shard-*", "agent-*")
            for path in FOLDER.glob(pattern)
        }
        rows = {
            kind: [
                {kind: name, "pid": pid, "liveness": "alive"}
                for name, pid in sorted(members.items())
                if name.startswith(kind + "-") and Path(f"/proc/{pid}").exists()
            ]
            for kind in ("shard", "agent")
        }
        answer: object = {
            "/healthz": {"status": "ok", "parts": {}},
            "/api/shards": {"shards": rows["shard"]},
            "/api/workers": {"workers": rows["agent"]},
        }[self.path]
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


async def answer_suspend() -> None:
    """The scheduler's part of going down."""
    bus = await AmqpBus.connect(os.environ["ELPS_AMQP_URL"], name="scheduler")

    async def handle(request: Delivery) -> None:
        (FOLDER / "suspended").touch()
        await bus.respond(request, encode(Reply(ok=True, reason="2 jobs are checkpointed")))

    await bus.subscribe(Queue("tests.suspend", ((topology.JOBS, topology.SUSPEND),)), handle)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await bus.close()


def main() -> None:
    """Be there until SIGTERM."""
    print(f"{NAME} is here", flush=True)
    if (FOLDER / f"fail-{NAME}").exists():
        print("this was never going to work", flush=True)
        sys.exit(7)
    if KIND == "agent":  # a trainer that outlives a crash of its agent
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
    (FOLDER / f".{NAME}").write_text(str(os.getpid()))
    (FOLDER / f".{NAME}").rename(FOLDER / NAME)
    if KIND == "scheduler":
        asyncio.run(answer_suspend())
        return
    stop = threading.Event()
    if not (FOLDER / f"deaf-{NAME}").exists():
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if KIND == "monitor":
        server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["ELPS_MONITOR_PORT"])), Answers)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    stop.wait()


main()
