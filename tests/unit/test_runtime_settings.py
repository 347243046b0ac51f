"""Settings from the environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from elps.contracts.errors import SetupError
from elps.contracts.urls import masked
from elps.runtime.settings import Secret, read


class Everything(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    slots: Annotated[int, Meta(ge=1, le=64)] = 4
    beat_s: Annotated[float, Meta(gt=0)] = 1.0
    kind: Literal["a", "b"] = "a"
    quiet: bool = False
    limit: int | None = None
    log_dir: Path | None = None
    task_path: tuple[Path, ...] = ()
    token: Secret = Secret("default")


@dataclass(frozen=True)
class Small:
    port: int
    host: str = "127.0.0.1"


def test_fields_are_read_from_their_variables() -> None:
    env = {
        "ELPS_NAME": "n",
        "ELPS_SLOTS": " 8 ",
        "ELPS_BEAT_S": "0.5",
        "ELPS_KIND": "b",
        "ELPS_QUIET": "true",
        "ELPS_LIMIT": "3",
        "ELPS_LOG_DIR": "/logs",
        "ELPS_TASK_PATH": "/a::/b c:",
        "ELPS_TOKEN": "t",
        "OTHER_SLOTS": "9",
    }
    assert read(Everything, env) == Everything(
        name="n",
        slots=8,
        beat_s=0.5,
        kind="b",
        quiet=True,
        limit=3,
        log_dir=Path("/logs"),
        task_path=(Path("/a"), Path("/b c")),
        token=Secret("t"),
    )


def test_what_is_absent_or_empty_keeps_its_default() -> None:
    assert read(Everything, {"ELPS_NAME": "n", "ELPS_SLOTS": "", "ELPS_TOKEN": ""}) == Everything(
        name="n"
    )


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(SetupError) as caught:
        read(
            Everything,
            {"ELPS_SLOTS": "0", "ELPS_BEAT_S": "soon", "ELPS_KIND": "c", "ELPS_LIMIT": "1.5"},
        )
    text = str(caught.value)
    for variable in (
        "ELPS_NAME is not set",
        "ELPS_SLOTS",
        "ELPS_BEAT_S",
        "'soon'",
        "ELPS_KIND",
        "ELPS_LIMIT",
    ):
        assert variable in text
    assert "ELPS_TOKEN" not in text


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_number_that_is_not_finite_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="ELPS_BEAT_S"):
        read(Everything, {"ELPS_NAME": "n", "ELPS_BEAT_S": text})


def test_a_dataclass_does_as_well() -> None:
    assert read(Small, {"ELPS_PORT": "80"}) == Small(port=80)
    with pytest.raises(SetupError, match="ELPS_PORT is not set; expected int"):
        read(Small, {})


def test_secrets_show_themselves_masked() -> None:
    settings = read(Everything, {"ELPS_NAME": "n", "ELPS_TOKEN": "hunter2"})
    assert "hunter2" not in f"{settings!r} {settings.token} {settings.token!r} {[settings.token]}"
    assert settings.token.reveal() == "hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://user:pass@host:5672/vhost", "amqp://user:***@host:5672/vhost"),
        ("redis://:p@ss@host:1/0", "redis://:***@host:1/0"),
        ("redis://host:1/0?password=x", "redis://host:1/0"),
        ("amqp://user@host/", "amqp://user@host/"),
        ("amqp://[broken", "***"),
        ("", ""),
    ],
)
def test_of_a_url_only_the_secret_parts_are_hidden(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
