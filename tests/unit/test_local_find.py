"""How commands find the stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from elps.contracts.errors import SetupError
from elps.local.find import find_stack
from elps.local.home import elps_home
from elps.local.processes import boot_id
from elps.local.record import StackRecord, new_record, read_record, write_record

ENV = {"ELPS_AMQP_URL": "amqp://u:secret@there/", "ELPS_REDIS_URL": "redis://there/0"}


def running(port: int = 1) -> StackRecord:
    record = new_record()
    record.running, record.boot_id, record.monitor_port = True, boot_id(), port
    record.amqp_url, record.redis_url = f"amqp://here:{port}/", f"redis://here:{port}/0"
    return record


def test_a_running_stack_is_found_from_a_folder_below(tmp_path: Path) -> None:
    write_record(tmp_path / ".elps", running(7))
    (tmp_path / "a" / "b").mkdir(parents=True)
    found = find_stack(tmp_path / "a" / "b", ENV)
    assert (found.amqp_url, found.redis_url) == ("amqp://here:7/", "redis://here:7/0")
    assert found.monitor_url == "http://127.0.0.1:7"
    assert found.log_dir == tmp_path / ".elps" / "logs"


def test_the_nearest_running_stack_wins_over_a_stopped_one_below(tmp_path: Path) -> None:
    write_record(tmp_path / ".elps", running(7))
    write_record(tmp_path / "a" / ".elps", new_record())
    assert find_stack(tmp_path / "a", {}).home == tmp_path / ".elps"


def test_elps_home_names_the_stack(tmp_path: Path) -> None:
    write_record(tmp_path / "elsewhere", running(9))
    assert (
        find_stack(tmp_path, {"ELPS_HOME": str(tmp_path / "elsewhere")}).home
        == tmp_path / "elsewhere"
    )


def test_without_a_running_stack_the_variables_count(tmp_path: Path) -> None:
    write_record(tmp_path / ".elps", new_record())
    found = find_stack(tmp_path, ENV)
    assert (found.amqp_url, found.monitor_url, found.home) == (ENV["ELPS_AMQP_URL"], None, None)
    assert find_stack(tmp_path, ENV | {"ELPS_MONITOR_URL": "http://m"}).monitor_url == "http://m"
    assert "secret" not in repr(found)


def test_one_variable_of_the_two_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="ELPS_REDIS_URL is not set"):
        find_stack(tmp_path, {"ELPS_AMQP_URL": "amqp://x/"})


def test_a_stopped_stack_and_one_of_an_earlier_boot_are_said_to_be_down(tmp_path: Path) -> None:
    record = running()
    record.boot_id = "another"
    write_record(tmp_path / ".elps", record)
    with pytest.raises(SetupError, match=r"is not running.*make up"):
        find_stack(tmp_path, {})


def test_no_stack_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"make up.*ELPS_HOME=.*ELPS_AMQP_URL.*elps run"):
        find_stack(tmp_path, {})


def test_a_damaged_record_is_an_error_and_not_an_absent_stack(tmp_path: Path) -> None:
    (tmp_path / ".elps").mkdir()
    (tmp_path / ".elps" / "stack.json").write_text("{", encoding="ascii")
    with pytest.raises(SetupError, match="cannot be read"):
        find_stack(tmp_path, ENV)


def test_a_record_is_read_back_as_it_was_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    record = running()
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert (tmp_path / "stack.json").stat().st_mode & 0o077 == 0
    assert read_record(tmp_path / "none") is None


def test_things_are_started_in_the_checkout_whatever_folder_one_stands_in(tmp_path: Path) -> None:
    (tmp_path / "shared" / "elps").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "docs").mkdir()
    assert elps_home(tmp_path / "docs", {}) == tmp_path / ".elps"
    assert elps_home(tmp_path, {"ELPS_HOME": "/x"}) == Path("/x")
