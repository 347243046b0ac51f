"""What a compose file of ours must keep to, beyond its schema. Pure: the parsed file in, its faults out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::?(-|\?)([^}]*))?\})")
_IMAGE = re.compile(r"[\w./-]+(?::\d+)?/[\w./-]+:(?P<tag>[\w.-]+)")


def variables(text: str) -> set[str]:
    """Names of the variables that a text is filled in with."""
    return {match[1] for match in _VARIABLE.finditer(text) if match[1]}


def filled_in(value: Any, given: Mapping[str, str]) -> Any:
    """The file with its variables, or their defaults, in their places; `KeyError` for one that must be given."""

    def fill(match: re.Match[str]) -> str:
        name, how, rest = match[1], match[2], match[3]
        if name is None:
            return "$"
        if found := given.get(name):
            return found
        if how == "-":
            return rest
        raise KeyError(name)

    if isinstance(value, dict):
        return {key: filled_in(inner, given) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled_in(inner, given) for inner in value]
    return _VARIABLE.sub(fill, value) if isinstance(value, str) else value


def faults(file: Mapping[str, Any], read_by: Mapping[str, set[str]]) -> list[str]:
    """Everything that is wrong; `read_by` are the settings that each command of ours reads."""
    found = []
    for name, service in file["services"].items():
        found += [f"{name}: {fault}" for fault in _service(service, file, read_by)]
    return found


def _service(
    service: Mapping[str, Any], file: Mapping[str, Any], read_by: Mapping[str, set[str]]
) -> Iterator[str]:
    yield from _image(service)
    yield from _confinement(service)
    yield from _health(service, file)
    yield from _mounts(service, file)
    for port in service.get("ports", []):
        if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", str(port)):
            yield f"port {port} is not one of the loopback"
    yield from _settings(service, read_by)


def _image(service: Mapping[str, Any]) -> Iterator[str]:
    image = _IMAGE.fullmatch(service.get("image", ""))
    if image is None:
        yield f"image {service.get('image')} is not registry/name:tag"
    elif image["tag"] in ("latest", "stable", "edge", "main"):
        yield f"image tag {image['tag']} moves"


def _confinement(service: Mapping[str, Any]) -> Iterator[str]:
    user = re.fullmatch(r"(\d+):(\d+)", str(service.get("user", "")))
    if user is None or 0 in (int(user[1]), int(user[2])):
        yield f"user {service.get('user')} is not a number:number other than root"
    if service.get("read_only") is not True:
        yield "its image can be written to"
    if service.get("cap_drop") != ["ALL"] or service.get("cap_add"):
        yield "it keeps capabilities"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield "it may gain privileges"
    for name in ("privileged", "pid", "ipc", "network_mode", "devices"):
        if service.get(name):
            yield f"{name} is set"
    if service.get("restart") != "unless-stopped":
        yield "it is not started again"
    if "stop_grace_period" not in service:
        yield "it has the default time to end, 10 s"


def _health(service: Mapping[str, Any], file: Mapping[str, Any]) -> Iterator[str]:
    check = service.get("healthcheck", {})
    if check.get("disable") or check.get("test", ["NONE"])[0] not in ("CMD", "CMD-SHELL"):
        yield "it has no health check"
    for name in ("interval", "timeout", "retries", "start_period"):
        if check and name not in check:
            yield f"its health check has no {name}"
    for other, how in service.get("depends_on", {}).items():
        if other not in file["services"]:
            yield f"it waits for {other}, which is not there"
        elif how.get("condition") != "service_healthy":
            yield f"it does not wait for {other} to be healthy"


def _mounts(service: Mapping[str, Any], file: Mapping[str, Any]) -> Iterator[str]:
    for mount in service.get("volumes", []):
        source, _, rest = mount.partition(":")
        if source.startswith((".", "/")):
            if not rest.endswith(":ro"):
                yield f"{source} of the host can be written to"
        elif source not in file.get("volumes", {}):
            yield f"volume {source} is not declared"
    for network in service.get("networks", []):
        if network not in file.get("networks", {}):
            yield f"network {network} is not declared"


def _settings(service: Mapping[str, Any], read_by: Mapping[str, set[str]]) -> Iterator[str]:
    command = service.get("command", [""])[0]
    ours = {name for name in service.get("environment", {}) if name.startswith("ELPS_")}
    if command not in read_by:
        if ours or command.startswith("elps"):
            yield f"{command} is no command of ours"
        return
    for name in sorted(ours - read_by[command]):
        yield f"{command} does not read {name}"
    for name in ("ELPS_AMQP_URL", "ELPS_REDIS_URL"):
        if name not in ours:
            yield f"{name} is not given"
