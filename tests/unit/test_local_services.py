"""Names, environments and health of the processes of a stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from elps.local.health import Health
from elps.local.record import new_record
from elps.local.services import Programs, environment, kind_of, names, number_of


def test_a_stack_has_one_scheduler_one_monitor_and_numbered_members() -> None:
    assert names(workers=2, shards=1) == ["scheduler", "monitor", "shard-1", "agent-1", "agent-2"]
    assert [kind_of(name) for name in names(1, 1)] == ["scheduler", "monitor", "shard", "agent"]
    assert number_of("shard-12") == 12
    assert number_of("monitor") == 0


def test_each_service_is_told_the_addresses_and_its_own_name(tmp_path: Path) -> None:
    record = new_record()
    record.amqp_url, record.redis_url, record.monitor_port = "amqp://a/", "redis://b/0", 8750
    env = environment("agent-2", tmp_path / ".elps", record, {"ELPS_LOST_S": "9", "PATH": "/bin"})
    assert env["ELPS_AMQP_URL"] == "amqp://a/"
    assert env["ELPS_REDIS_URL"] == "redis://b/0"
    assert env["ELPS_MONITOR_URL"] == "http://127.0.0.1:8750"
    assert env["ELPS_AGENT_ID"] == "agent-2"
    assert env["ELPS_LOST_S"] == "9"
    assert env["ELPS_STACK_ID"] == record.stack_id
    assert "ELPS_SHARD_ID" not in env
    assert environment("shard-1", tmp_path, record, {})["ELPS_SHARD_ID"] == "shard-1"


def test_a_users_own_settings_win_where_the_stack_does_not_decide(tmp_path: Path) -> None:
    record = new_record()
    assert environment("agent-1", tmp_path / ".elps", record, {})["ELPS_HOST"] == "127.0.0.1"
    env = environment("agent-1", tmp_path / ".elps", record, {"ELPS_HOST": "10.0.0.1"})
    assert env["ELPS_HOST"] == "10.0.0.1"


def test_agents_are_told_the_paths_on_record_and_the_examples(tmp_path: Path) -> None:
    home = tmp_path / ".elps"
    record = new_record()
    assert "ELPS_TASK_PATH" not in environment("agent-1", home, record, {})
    (tmp_path / "examples" / "one").mkdir(parents=True)
    examples = f"{tmp_path}/examples:{tmp_path}/examples/one"
    assert environment("agent-1", home, record, {})["ELPS_TASK_PATH"] == examples

    record.paths = {"ELPS_TASK_PATH": "/mine", "ELPS_DATA_PATH": "/data"}
    env = environment("agent-1", home, record, {"ELPS_TASK_PATH": "relative"})
    assert env["ELPS_TASK_PATH"] == f"/mine:{examples}"
    assert env["ELPS_DATA_PATH"] == "/data"


def test_programs_are_found_by_kind() -> None:
    programs = Programs(shard=("x",))
    assert programs.of("shard-3") == ("x",)
    assert programs.of("scheduler")[0].endswith("elps-scheduler")
    with pytest.raises(ValueError, match="kind"):
        programs.of("broker-1")


EXPECTED = {"scheduler": 1, "monitor": 2, "shard-1": 3, "agent-1": 4}


def test_a_stack_is_healthy_when_every_member_is_heard_under_its_present_pid() -> None:
    assert Health(True, "ok", {}, {"shard-1": 3, "agent-1": 4}).missing(EXPECTED) == []
    before_restart = Health(True, "ok", {}, {"shard-1": 3, "agent-1": 99})
    assert before_restart.missing(EXPECTED) == ["agent-1: the monitor has not heard of it yet"]


def test_a_member_that_was_ended_a_minute_ago_does_not_make_the_stack_unhealthy() -> None:
    said = Health(
        True, "degraded", {"shards": "shard-7 silent for 60 s"}, {"shard-1": 3, "agent-1": 4}
    )
    assert said.missing(EXPECTED) == []


def test_a_missing_scheduler_or_a_silent_monitor_makes_it_unhealthy() -> None:
    said = Health(
        True, "degraded", {"scheduler": "no scheduler has been heard"}, {"shard-1": 3, "agent-1": 4}
    )
    assert said.missing(EXPECTED) == ["scheduler: no scheduler has been heard"]
    assert Health(False, "does not answer").missing(EXPECTED) == ["monitor: does not answer"]
