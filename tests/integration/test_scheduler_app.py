"""The scheduler as a service, on the bus and the store within the process, among members that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from scheduler_stack import BEAT_S, BOUND_S, Stack, running_stack, say_often
from structlog.testing import capture_logs

from elps.contracts import topology
from elps.contracts.codec import decode, encode
from elps.contracts.ids import JobId
from elps.contracts.messages import DropJob
from elps.contracts.requests import Reply
from elps.contracts.state import JobState, Pinned
from elps.contracts.texts import LOGGED_CHARACTERS, REASON_CHARACTERS
from elps.messaging.faults import Faults
from elps.scheduler.core import retention


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running_stack() as stack:
        yield stack


async def test_a_job_runs_and_finishes_and_the_next_one_follows(stack: Stack) -> None:
    assert (await stack.submit("one")).ok
    assert (await stack.submit("two")).ok
    await stack.reached("one", JobState.RUNNING)
    stack.shard.ended[JobId("one")] = ("finished", "all iterations are done")
    await stack.reached("one", JobState.FINISHED)
    await stack.reached("two", JobState.RUNNING)
    record = await stack.record("one")
    assert record.state is JobState.FINISHED
    assert record.reason == "all iterations are done"
    states = [e.what for e in stack.events if e.job == "one"]
    assert states == ["queued", "starting", "running", "finished"]


async def test_a_reason_of_any_length_is_kept_and_logged_with_its_two_ends(stack: Stack) -> None:
    with capture_logs() as logged:
        assert (await stack.submit("one")).ok
        await stack.reached("one", JobState.RUNNING)
        why = "in iteration 3" + "x" * 100_000 + "ValueError: too small"
        stack.shard.ended[JobId("one")] = ("failed", why)
        await stack.reached("one", JobState.FAILED)
    kept = (await stack.record("one")).reason
    [line] = [e["reason"] for e in logged if e["event"] == "job_changed" and e["state"] == "failed"]
    for text, bound in ((kept, REASON_CHARACTERS), (line, LOGGED_CHARACTERS)):
        assert len(text) <= bound
        assert text.startswith("in iteration 3")
        assert text.endswith("ValueError: too small")
    assert max(len(str(entry)) for entry in logged) < 2 * LOGGED_CHARACTERS


async def test_the_record_is_in_the_store_before_the_user_is_answered(stack: Stack) -> None:
    await stack.submit("one")
    assert (await stack.record("one")).document.task == "linear"


async def test_a_bad_document_is_answered_with_every_problem_and_dead_lettered(
    stack: Stack,
) -> None:
    reply = await stack.ask("submit", id="a/b", task="linear", iteration=5)
    assert not reply.ok
    assert len(reply.problems) >= 2
    await stack.until(lambda: bool(stack.dead))
    assert "did you mean iterations?" in " ".join(reply.problems)
    assert await stack.store.hash_all(topology.JOB_INDEX) == {}
    assert (await stack.submit("fine")).ok


async def test_a_running_job_is_scaled_and_a_size_out_of_bounds_is_refused(stack: Stack) -> None:
    stack.agent.slots = 3
    await stack.submit("one", workers={"min": 1, "max": 2})
    await stack.reached("one", JobState.RUNNING)
    assert (await stack.ask("scale", job="one", workers=1)).ok
    await stack.until(lambda: any(e.what == "resized" for e in stack.events))
    record = await stack.record("one")
    assert (record.pinned, record.state) == (Pinned(workers=1), JobState.RUNNING)
    assert record.allocation is not None
    (worker,) = record.allocation.workers
    await stack.until(lambda: list(stack.agent.trainers) == [worker])
    refused = await stack.ask("scale", job="one", workers=9)
    assert (refused.ok, len(refused.problems)) == (False, 1)
    assert not (await stack.ask("scale", job="one", workers="many")).ok
    assert not (await stack.ask("scale", job="none", workers=1)).ok
    assert [e.what for e in stack.events].count("scaled") == 1


async def test_a_pickle_is_refused_and_not_run(stack: Stack) -> None:
    body = b"\x80\x04\x95cos\nsystem\n(S'touch /tmp/never'\ntR."
    reply = decode(
        await stack.user.request(topology.JOBS, "submit", body, timeout_s=BOUND_S), Reply
    )
    assert not reply.ok
    assert "not JSON" in reply.problems[0]


async def test_the_same_message_twice_is_one_job(stack: Stack) -> None:
    body = encode({"task": "linear", "iterations": 5})
    for _ in range(3):
        await stack.user.publish(topology.JOBS, "submit", body, message_id="m-1")
    await stack.until(lambda: any(e.state is JobState.RUNNING for e in stack.events))
    assert len(await stack.store.hash_all(topology.JOB_INDEX)) == 1


async def test_kill_frees_everything_and_removes_the_checkpoints(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    key = topology.chunk_key(JobId("one"), "1-1", 0, "values")
    await stack.store.put(key, b"x")
    assert (await stack.ask("kill", job="one")).state is JobState.KILLED
    await stack.submit("two")
    await stack.reached("two", JobState.RUNNING)
    await stack.until_stored(lambda store: store.get(key), lambda value: value is None)
    assert (await stack.record("one")).state is JobState.KILLED


async def test_a_deleted_job_leaves_nothing_and_its_id_is_used_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "QUIET_S", 0.3)
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    refused = await stack.ask("delete", job="one")
    assert not refused.ok
    assert "elps kill one" in refused.reason
    key = topology.chunk_key(JobId("one"), "1-1", 0, "values")
    await stack.store.put(key, b"x")
    stack.shard.ended[JobId("one")] = ("finished", "done")
    await stack.reached("one", JobState.FINISHED)
    stack.shard.ended.clear()
    old = await stack.record("one")
    assert (await stack.ask("delete", job="one")).ok
    await stack.until(lambda: any(e.what == "deleted" for e in stack.events))
    await stack.until_stored(
        lambda store: store.hash_all(topology.JOB_INDEX), lambda records: not records
    )
    head = topology.job_prefix(JobId("one"))
    assert not [key async for key in stack.store.scan(head)]
    stack.events.clear()
    await stack.stop_scheduler()
    await stack.start_scheduler()
    assert (await stack.submit("one")).ok
    await stack.reached("one", JobState.RUNNING)
    new = await stack.record("one")
    assert new.seq > old.seq
    assert new.terms > new.first_term > old.terms


async def test_pause_and_resume(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    assert (await stack.ask("pause", job="one")).ok
    await stack.reached("one", JobState.PAUSED)
    stack.events.clear()
    stack.shard.goals.clear()
    assert (await stack.ask("resume", job="one")).ok
    await stack.reached("one", JobState.RUNNING)
    assert (await stack.record("one")).terms == 2


async def test_a_pause_is_reached_though_the_leader_can_only_wait(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    stack.shard.ended[JobId("one")] = ("waiting", "no worker is ready")
    await stack.reached("one", JobState.WAITING)
    assert (await stack.ask("pause", job="one")).ok
    await stack.reached("one", JobState.PAUSED)
    assert "from the checkpoint of iteration 1" in (await stack.record("one")).reason


async def test_suspend_answers_when_everything_is_checkpointed(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    reply = await stack.ask("suspend")
    assert reply.ok
    assert (await stack.record("one")).state is JobState.QUEUED


async def test_commands_wait_for_the_store_and_running_jobs_are_not_disturbed(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    before = len(stack.agent.orders)
    stack.store.stop()
    waiting = asyncio.create_task(stack.submit("two"))
    beats = len(stack.beats)
    await stack.until(lambda: len(stack.beats) > beats + 15)
    assert not waiting.done()
    assert not any(isinstance(o, DropJob) for o in stack.shard.orders)
    assert len(stack.agent.orders) == before
    stack.store.start()
    assert (await waiting).ok
    assert (await stack.record("two")).state is JobState.QUEUED


async def test_a_stack_whose_store_came_back_empty_has_its_records_again(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    await stack.submit("two")
    await stack.ask("kill", job="two")
    stack.store.stop()
    waiting = asyncio.create_task(stack.submit("three"))
    await asyncio.sleep(BEAT_S)
    stack.store.start()
    await stack.store.delete([topology.JOB_INDEX, topology.CHARGE])
    assert (await waiting).ok
    await stack.until_stored(
        lambda store: store.hash_all(topology.JOB_INDEX), lambda all_: len(all_) == 3
    )


async def test_a_store_that_is_emptied_between_two_calls_has_all_again_though_nothing_is_written(
    stack: Stack,
) -> None:
    for job in ("one", "two", "three"):
        await stack.submit(job)
    await stack.ask("kill", job="two")
    await stack.ask("pause", job="three")
    await stack.ask("policy", policy="eps")
    stack.shard.alive = stack.agent.alive = False  # nothing more is to be written of the others
    before = await stack.store.hash_all(topology.JOB_INDEX)
    await stack.store.delete([topology.JOB_INDEX, topology.CHARGE, topology.POLICY_KEY])
    await stack.until_stored(
        lambda store: store.hash_all(topology.JOB_INDEX),
        lambda found: found.keys() == before.keys(),
    )
    await stack.until_stored(
        lambda store: store.hash_all(topology.POLICY_KEY), lambda found: bool(found)
    )
    assert (await stack.record("two")).state is JobState.KILLED
    assert (await stack.record("three")).state is JobState.PAUSED


async def test_a_job_trains_on_through_a_restart_of_the_scheduler(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    term = (await stack.record("one")).terms
    await stack.stop_scheduler()
    await stack.start_scheduler()
    await stack.submit("two")  # answered by the new one
    beats = len(stack.beats)
    await stack.until(lambda: len(stack.beats) > beats + 20)
    assert (await stack.record("one")).state is JobState.RUNNING
    assert (await stack.record("one")).terms == term
    assert [e.what for e in stack.events if e.job == "one"] == ["queued", "starting", "running"]
    stack.shard.ended[JobId("one")] = ("finished", "")
    await stack.reached("two", JobState.RUNNING)


async def test_a_broken_broker_disturbs_no_running_job(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    stack.broker.stop()
    await asyncio.sleep(1.0)  # twice the time after which a member counts as lost
    stack.broker.start()
    beats = len(stack.beats)
    await stack.until(lambda: len(stack.beats) > beats + 5)
    assert (await stack.record("one")).state is JobState.RUNNING
    assert (await stack.record("one")).terms == 1


async def test_a_silent_shard_costs_its_job_the_place_and_a_new_term(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    stack.shard.alive = False
    await stack.until(lambda: stack.events[-1].what == "queued")
    assert "shard s1 not heard for 0.5 s" in stack.events[-1].reason
    stack.shard.alive, stack.events[:] = True, []
    reviving = asyncio.create_task(say_often(stack.shard))
    await stack.reached("one", JobState.RUNNING)
    reviving.cancel()
    assert (await stack.record("one")).terms == 2


@pytest.mark.parametrize("seed", range(3))
async def test_lost_doubled_and_reordered_control_messages_only_cost_time(seed: int) -> None:
    exchanges = [topology.MEMBERS, topology.COMMANDS]
    faults = Faults(seed, drop=0.2, double=0.2, delay=0.3, delay_s=0.1, exchanges=exchanges)
    async with running_stack(faults) as stack:
        for name in ("one", "two"):
            assert (await stack.submit(name)).ok
        for name in ("one", "two"):
            await stack.reached(name, JobState.RUNNING)
            stack.shard.ended[JobId(name)] = ("finished", "")
            await stack.reached(name, JobState.FINISHED)
