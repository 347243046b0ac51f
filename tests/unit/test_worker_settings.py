from __future__ import annotations

import pytest

from elps.contracts.errors import SetupError
from elps.contracts.ids import id_problem
from elps.worker.settings import read_settings


def test_the_default_id_is_fit_to_be_one_and_differs_each_time() -> None:
    first, second = read_settings({}), read_settings({})
    assert id_problem(first.agent_id) is None
    assert first.agent_id != second.agent_id
    assert first.worker_slots == 1


def test_settings_come_from_the_environment() -> None:
    env = {"ELPS_AGENT_ID": "agent-7", "ELPS_WORKER_SLOTS": "3", "ELPS_PRELOAD": "json, csv,"}
    settings = read_settings(env)
    assert (settings.agent, settings.worker_slots) == ("agent-7", 3)
    assert settings.preload_modules == ("json", "csv")


@pytest.mark.parametrize("value", ["a.b", "a/b", "../x", "x" * 300])
def test_an_id_that_is_no_id_is_refused(value: str) -> None:
    with pytest.raises(SetupError, match="ELPS_AGENT_ID"):
        read_settings({"ELPS_AGENT_ID": value})


def test_every_wrong_setting_is_named() -> None:
    with pytest.raises(SetupError, match=r"(?s)ELPS_WORKER_SLOTS.*ELPS_BEAT_S"):
        read_settings({"ELPS_WORKER_SLOTS": "0", "ELPS_BEAT_S": "soon"})
