"""Log lines as programs and people read them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from elps.runtime.logs import configure
from elps.runtime.settings import Secret


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_on_a_pipe_is_one_json_object() -> None:
    stream = io.StringIO()
    configure("shard", stream=stream)
    structlog.get_logger("elps.test").info("partition_moved", partition=3, bytes=2**70, text="a\nb")
    (line,) = lines(stream)
    assert line["event"] == "partition_moved"
    assert (line["service"], line["level"], line["logger"]) == ("shard", "info", "elps.test")
    assert str(line["partition"]) == "3"
    assert line["text"] == "a\nb"
    assert "timestamp" in line


def test_bound_ids_appear_in_every_line_and_secrets_in_none() -> None:
    stream = io.StringIO()
    configure("shard", stream=stream)
    with structlog.contextvars.bound_contextvars(job="j1"):
        structlog.get_logger().warning(
            "refused", token=Secret("hunter2"), url=Secret("amqp://u:hunter2@h/")
        )
    (line,) = lines(stream)
    assert line["job"] == "j1"
    assert (line["token"], line["url"]) == ("***", "amqp://u:***@h/")


def test_an_exception_is_a_field_with_its_traceback() -> None:
    stream = io.StringIO()
    configure("shard", stream=stream)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        structlog.get_logger().exception("failed")
    (line,) = lines(stream)
    assert "RuntimeError: broken" in str(line["exception"])


def test_records_of_libraries_have_the_same_form() -> None:
    stream = io.StringIO()
    configure("shard", stream=stream)
    logging.getLogger("uvicorn.error").warning("port %d in use", 80)
    logging.getLogger("aiormq.connection").error("noise that our adapter reports")
    (line,) = lines(stream)
    assert (line["event"], line["logger"], line["service"]) == (
        "port 80 in use",
        "uvicorn.error",
        "shard",
    )


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    configure("shard", level="warning", stream=stream)
    structlog.get_logger().info("quiet")
    structlog.get_logger().error("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_on_a_terminal_a_line_is_for_people() -> None:
    stream = io.StringIO()
    configure("shard", stream=stream, pretty=True)
    structlog.get_logger().info("partition_moved", partition=3)
    assert "partition_moved" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
