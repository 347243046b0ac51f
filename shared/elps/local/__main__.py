"""``python -m elps.local up|down|status|clean|fetch``: what the Makefile's targets call."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from elps.contracts.errors import ElpsError
from elps.contracts.urls import masked
from elps.local.binaries import provide
from elps.local.home import elps_home
from elps.local.paths import DATA_PATH, TASK_PATH, paths_in_force
from elps.local.record import StackRecord, read_record
from elps.local.report import as_table, report
from elps.local.stack import UP_S, Stack
from elps.runtime.logs import configure

MAX_MEMBERS = 256
"""More processes than this on one machine is a slip of the finger."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when it worked, 1 when not, 3 from `status` of a stack that is not well."""
    options = _parser().parse_args(arguments)
    home: Path = (options.home or elps_home(Path.cwd(), os.environ)).absolute()
    signal.signal(signal.SIGTERM, _interrupt)
    configure("local", "ERROR")
    stack = Stack(home, os.environ, say=_say)
    try:
        match options.command:
            case "up":
                record = stack.up(
                    options.workers,
                    options.shards,
                    options.timeout,
                    schedulers=options.schedulers,
                    at_least=options.at_least,
                )
                _welcome(stack, record)
            case "down":
                stack.down()
            case "clean":
                stack.clean(options.all)
            case "fetch":
                return _fetch(home)
            case "status":
                return _status(stack, options.json)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except ElpsError as error:
        print(f"elps: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m elps.local", description="The stack of this machine."
    )
    parser.add_argument(
        "--home", type=Path, help="folder of the stack (default: ELPS_HOME, else .elps)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the stack, or change the number of its processes")
    up.add_argument("--workers", type=_count, default=2, help="worker agents (default 2)")
    up.add_argument("--shards", type=_count, default=2, help="shards (default 2)")
    up.add_argument(
        "--schedulers", type=_count, default=1, help="one is in charge, the others stand by"
    )
    up.add_argument(
        "--timeout", type=float, default=UP_S, help="seconds until healthy (default 60)"
    )
    up.add_argument(
        "--at-least", action="store_true", help="keep a running stack that is larger as it is"
    )
    commands.add_parser("down", help="checkpoint running jobs and end the stack")
    status = commands.add_parser("status", help="show the processes")
    status.add_argument("--json", action="store_true", help="for programs")
    clean = commands.add_parser("clean", help="end the stack and remove its data")
    clean.add_argument("--all", action="store_true", help="remove unpacked binaries too")
    commands.add_parser("fetch", help="fetch RabbitMQ and Redis if they are missing")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MAX_MEMBERS:
        raise argparse.ArgumentTypeError(f"expected 1 to {MAX_MEMBERS}")
    return value


def _welcome(stack: Stack, record: StackRecord) -> None:
    paths = paths_in_force(record, stack.home)
    print(
        f"\n  monitor  {record.monitor_url}\n"
        f"  broker   {masked(record.amqp_url)}\n"
        f"  store    {masked(record.redis_url)}\n"
        f"  logs     {stack.home / 'logs'}\n"
        f"  code     {paths.get(TASK_PATH) or 'built-in tasks only'}  ({TASK_PATH})\n"
        f"  data     {paths.get(DATA_PATH) or 'absolute paths only'}  ({DATA_PATH})\n\n"
        "  next     .venv/bin/elps submit JOB.toml · make status · make down\n"
    )


def _fetch(home: Path) -> int:
    """Part of `make setup`, which goes on without them: `elps run` needs neither."""
    if os.environ.get("ELPS_AMQP_URL") and os.environ.get("ELPS_REDIS_URL"):
        _say("broker and store are those of ELPS_AMQP_URL and ELPS_REDIS_URL: nothing to fetch")
        return 0
    try:
        found = provide(home, os.environ, _say)
    except ElpsError as error:
        print(f"elps: WARNING: 'make up' will not work yet: {error}", file=sys.stderr)
        return 0
    for name, part in (("RabbitMQ", found.broker), ("Redis", found.store)):
        if part is not None:
            _say(f"{name}: {part.way}")
    return 0


def _status(stack: Stack, as_json: bool) -> int:
    record = read_record(stack.home)
    known = ("rabbitmq", "redis", *(record.services if record else ()))
    logs = {name: stack.log_of(name) for name in known}
    seen = report(stack.home, record, logs, os.environ.get("ELPS_TOKEN"))
    print(msgspec.json.encode(seen).decode() if as_json else as_table(seen))
    return 0 if seen.status == "ok" else 3


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(f"elps: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
