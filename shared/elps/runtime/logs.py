"""Logs: structlog everywhere, the libraries' records included. JSON lines on a pipe, pretty on a terminal.

Events are constant snake_case words, values are fields. Levels: ERROR = someone must act.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import orjson
import structlog

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_QUIET = {
    "aio_pika": logging.CRITICAL,
    "aiormq": logging.CRITICAL,
    "asyncio": logging.WARNING,
    "numba": logging.WARNING,
}
"""Libraries below these levels are not heard: connection failures are reported by our own adapters, once."""


def configure(
    service: str, level: str = "INFO", stream: TextIO | None = None, pretty: bool | None = None
) -> None:
    """Set up logging for this process, on standard error by default; `pretty` by default if that is a terminal."""
    stream = sys.stderr if stream is None else stream
    pretty = stream.isatty() if pretty is None else pretty
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if pretty else "iso", utc=not pretty),
        structlog.processors.StackInfoRenderer(),
    ]
    if not pretty:
        shared += [_named(service), structlog.processors.format_exc_info]
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if pretty
        else structlog.processors.JSONRenderer(serializer=_json)
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _named(service: str) -> Any:
    def add(_logger: Any, _method: str, event: Any) -> Any:
        event.setdefault("service", service)
        return event

    return add


def _json(event: Any, **_: Any) -> str:
    """One line. What JSON does not know is shown as text; secrets show themselves masked."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(event, default=str, option=options).decode()
    except (
        TypeError,
        ValueError,
    ):  # an integer above 64 bits, bad UTF-8: a log line must not end a service
        return orjson.dumps(
            {str(k): str(v).encode(errors="replace").decode() for k, v in event.items()}
        ).decode()
