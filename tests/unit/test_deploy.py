"""The files under deploy/ hold together: a valid compose file, nothing runs as root, every setting is really read."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from compose_rules import faults, filled_in, variables

from elps.data.allowed import TASK_PATH_SETTING
from elps.data.files import DATA_PATH_SETTING
from elps.monitor.settings import Settings as Monitor
from elps.psshard.settings import Settings as Shard
from elps.runtime.main import Connections
from elps.scheduler.settings import Settings as Scheduler
from elps.worker.settings import Settings as Worker

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TEXT = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
GIVEN = {"ELPS_BROKER_PASSWORD": "b", "ELPS_STORE_PASSWORD": "s", "ELPS_TOKEN": "t"}


def names(*kinds: type[msgspec.Struct]) -> set[str]:
    return {f"ELPS_{f.name.upper()}" for kind in kinds for f in msgspec.structs.fields(kind)}


READ_BY = {
    "elps-scheduler": names(Connections, Scheduler),
    "elps-monitor": names(Connections, Monitor),
    "elps-shard": names(Connections, Shard),
    "elps-worker": names(Connections, Worker) | {TASK_PATH_SETTING, DATA_PATH_SETTING},
}


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = filled_in(yaml.safe_load(TEXT), GIVEN)
    return loaded


def test_the_compose_file_fits_the_schema_of_the_specification() -> None:
    vendored = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(compose())] == []
    wrong = compose()
    wrong["services"]["store"]["healthchek"] = {}
    assert list(validator.iter_errors(wrong)), "the schema finds nothing"


def test_the_compose_file_keeps_to_our_rules() -> None:
    assert faults(compose(), READ_BY) == []


def test_all_services_and_both_servers_are_there_with_commands_that_the_package_has() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    services = compose()["services"]
    assert set(services) == {"broker", "store", "scheduler", "monitor", "shard", "worker"}
    commands = [s["command"][0] for s in services.values() if "command" in s]
    assert {c for c in commands if c != "sh"} == set(READ_BY)
    assert set(READ_BY) <= set(scripts)


def changed(service: str, **changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(file: dict[str, Any]) -> None:
        for name, value in changes.items():
            if value is None:
                del file["services"][service][name]
            else:
                file["services"][service][name] = value

    return change


def with_setting(file: dict[str, Any]) -> None:
    file["services"]["shard"]["environment"]["ELPS_TOKEN"] = "t"


def without_volume(file: dict[str, Any]) -> None:
    del file["volumes"]["store"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (changed("store", image="docker.io/library/redis"), "registry/name:tag"),
        (changed("broker", image="docker.io/library/rabbitmq:latest"), "latest"),
        (changed("worker", user="0:0"), "root"),
        (changed("worker", user=None), "root"),
        (changed("shard", user="elps"), "root"),
        (changed("shard", read_only=False), "written to"),
        (changed("shard", cap_drop=None), "capabilities"),
        (changed("shard", cap_add=["NET_ADMIN"]), "capabilities"),
        (changed("monitor", security_opt=[]), "privileges"),
        (changed("monitor", privileged=True), "privileged"),
        (changed("monitor", network_mode="host"), "network_mode"),
        (changed("monitor", ports=["8750:8750"]), "loopback"),
        (changed("scheduler", healthcheck=None), "health check"),
        (changed("scheduler", healthcheck={"disable": True}), "health check"),
        (changed("scheduler", healthcheck={"test": ["CMD", "true"]}), "no interval"),
        (changed("scheduler", restart=None), "started again"),
        (changed("shard", stop_grace_period=None), "10 s"),
        (changed("worker", volumes=["/srv:/tasks"]), "of the host"),
        (changed("worker", networks=["other"]), "network other"),
        (changed("worker", depends_on={"cache": {}}), "cache"),
        (changed("worker", depends_on={"store": {"condition": "service_started"}}), "healthy"),
        (changed("worker", command=["elps-agent"]), "no command"),
        (changed("worker", environment={}), "ELPS_AMQP_URL"),
        (with_setting, "does not read ELPS_TOKEN"),
        (without_volume, "volume store"),
    ],
)
def test_the_rules_find_what_breaks_them(
    change: Callable[[dict[str, Any]], None], fault: str
) -> None:
    file = copy.deepcopy(compose())
    change(file)
    found = faults(file, READ_BY)
    assert found
    assert any(fault in one for one in found), found


def test_no_password_has_a_default() -> None:
    for name in GIVEN:
        with pytest.raises(KeyError, match=name):
            filled_in(yaml.safe_load(TEXT), {**GIVEN, name: ""})


def told(example: str) -> set[str]:
    text = (DEPLOY / example).read_text(encoding="utf-8")
    return set(re.findall(r"^#?(\w+)=", text, re.MULTILINE))


def test_the_example_names_every_variable_of_the_compose_file_and_no_other() -> None:
    assert told("compose.env.example") == variables(TEXT)


def test_each_setting_in_the_example_for_services_is_read_by_some() -> None:
    assert told("elps.env.example") <= set().union(*READ_BY.values())


def test_the_image_is_made_of_any_base_and_runs_as_nobody() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    steps = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    lines = [line.split(None, 1) for line in steps.splitlines() if line.strip()]
    assert lines[0] == ["ARG", "BASE=docker.io/library/python:3.11-slim"]
    assert {rest.split()[0] for word, rest in lines if word == "FROM"} == {"${BASE}"}
    last = [
        word for word, _ in lines[max(n for n, step in enumerate(lines) if step[0] == "FROM") :]
    ]
    assert last.count("USER") == 1
    assert "RUN" not in last[last.index("USER") :]
    (uid,) = [rest for word, rest in lines if word == "ARG" and rest.startswith("UID=")]
    assert int(uid.removeprefix("UID=")) > 0
    assert not [line for line in lines if line[0] == "ADD"]
    copied = {part for word, rest in lines if word == "COPY" for part in rest.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for path in copied - {"--from=build", "/opt/elps"}:
        assert (ROOT / path).exists()
        assert f"!{path}" in ignored
