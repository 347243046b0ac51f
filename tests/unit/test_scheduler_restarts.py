"""What a scheduler that was restarted does, and that all it does follows from its events."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from scheduler_desk import Desk, reborn

from elps.contracts.codec import decode, encode
from elps.contracts.ids import JobId
from elps.contracts.messages import (
    DirectJob,
    HostJob,
)
from elps.contracts.state import JobRecord, JobState
from elps.scheduler.core.events import (
    RemoveKeys,
    Ticked,
)

# --- the scheduler restarts -------------------------------------------------------------------------------------------


def test_after_a_restart_a_job_whose_members_still_show_it_goes_on_untouched() -> None:
    desk = Desk()
    desk.start()
    after = reborn(desk)
    after.shard(jobs=[after.hosts(phase="running", ready=["j-w1"])])
    after.agent(trainers=[after.trainer("j-w1")])
    after.wait(10)
    assert after.state() is JobState.RUNNING
    assert after.term() == desk.term()
    assert after.events() == []
    assert after.sent == []


def test_after_a_restart_a_job_whose_shards_are_gone_is_placed_anew() -> None:
    desk = Desk()
    desk.start()
    after = reborn(desk)
    after.shard("s9")
    after.agent("a9")
    after.wait(4)
    assert after.state() is JobState.RUNNING, "its shards may still be heard"
    after.wait(3)
    assert after.state() is JobState.STARTING
    assert after.places() == ["s9"]


def test_after_a_restart_a_shard_that_came_back_empty_has_lost_the_job() -> None:
    desk = Desk()
    desk.start()
    after = reborn(desk)
    after.shard(incarnation="2", jobs=[])
    after.agent(trainers=[])
    assert after.take_sent(HostJob) == [], "it must not join a job that has begun"
    after.wait(7)
    assert after.term() != desk.term()


def test_after_a_restart_a_pause_that_was_asked_for_is_still_wanted() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    after = reborn(desk)
    after.shard(jobs=[after.hosts(phase="running", ready=["j-w1"])])
    assert after.take_sent(DirectJob)[-1][1].goal == "pause"


def test_after_a_restart_keys_of_killed_jobs_are_removed_and_those_of_others_kept() -> None:
    desk = Desk()
    desk.submit("dead")
    desk.ask("kill", "dead")
    desk.submit("alive")
    after = reborn(desk)
    after.core.keys_found([JobId("dead"), JobId("alive"), JobId("unknown")])
    after.feed(Ticked())
    assert [c.job for c in after.out if isinstance(c, RemoveKeys)] == ["dead"]


def test_after_a_restart_trainers_of_an_agent_that_is_gone_are_replaced() -> None:
    desk = Desk()
    desk.start()
    after = reborn(desk)
    after.shard(jobs=[after.hosts(phase="running", ready=["j-w1"])])
    after.wait(7)
    assert after.state() is JobState.WAITING
    assert "agent a1 was not heard since the scheduler started" in after.record().reason


# --- determinism ------------------------------------------------------------------------------------------------------


SCRIPT = """
import sys, hashlib
sys.path.insert(0, {folder!r})
from scheduler_desk import Desk
desk = Desk()
for n in range(5):
    desk.shard(f"s{{n}}")
    desk.agent(f"a{{n}}", slots=2)
for n in range(6):
    desk.submit(f"j{{n}}", workers={{"min": 1, "max": 3}}, shards={{"min": 1, "max": 2}})
desk.shard("s1", incarnation="2")
desk.wait(7, hear=False)
desk.wait(3)
print(hashlib.sha256(repr((desk.out, desk.sent)).encode()).hexdigest())
"""


@pytest.mark.timeout(60)
def test_equal_events_give_equal_commands_whatever_the_order_of_sets() -> None:
    from pathlib import Path

    script = SCRIPT.format(folder=str(Path(__file__).parent))
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_records_survive_being_stored() -> None:
    desk = Desk()
    desk.start(iteration=3)
    record = desk.record()
    assert decode(encode(record), JobRecord) == record
    assert msgspec.structs.asdict(record)["allocation"].size == 1
