"""A stack of real servers and tiny stand-ins for the services, through its whole life."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
import redis

from elps.contracts.errors import SetupError
from elps.local import processes
from elps.local.binaries import find_broker
from elps.local.broker import BrokerPorts, PrivateBroker
from elps.local.find import find_stack
from elps.local.paths import DATA_PATH, TASK_PATH
from elps.local.processes import Handle, is_alive
from elps.local.record import StackRecord, read_record
from elps.local.report import as_table, report
from elps.local.services import Programs
from elps.local.stack import Stack
from elps.local.store import PrivateStore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SERVICE = (sys.executable, str(Path(__file__).with_name("local_service.py")))
PROGRAMS = Programs(
    scheduler=(*SERVICE, "scheduler"),
    monitor=(*SERVICE, "monitor"),
    shard=(*SERVICE, "shard"),
    agent=(*SERVICE, "agent"),
)


class Bench:
    """A stack in a folder of its own, with what it said."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.services = folder / "services"
        self.services.mkdir(parents=True)
        self.said: list[str] = []
        self.stack = Stack(
            folder / ".elps",
            {**os.environ, **env, "ELPS_TEST_FOLDER": str(self.services)},
            say=self.said.append,
            programs=PROGRAMS,
        )

    @property
    def record(self) -> StackRecord:
        record = read_record(self.stack.home)
        assert record is not None
        return record

    def everything(self) -> list[Handle]:
        return processes.belonging_to(self.record.stack_id)


@pytest.fixture
def bench(
    tmp_path: Path, shared_broker: PrivateBroker, fresh_amqp_url: str, fresh_redis_url: str
) -> Iterator[Bench]:
    """Its services run for real, its broker and store are the test run's."""
    bench = Bench(tmp_path, {"ELPS_AMQP_URL": fresh_amqp_url, "ELPS_REDIS_URL": fresh_redis_url})
    yield bench
    bench.stack.down()
    assert bench.everything() == []


def test_a_stack_comes_up_grows_shrinks_and_goes_down(bench: Bench) -> None:
    record = bench.stack.up(workers=1, shards=1)
    assert set(record.services) == {"scheduler", "monitor", "shard-1", "agent-1"}
    first = dict(record.services)
    assert find_stack(bench.folder, {}).monitor_url == record.monitor_url

    record = bench.stack.up(workers=2, shards=3)
    assert {"shard-2", "shard-3", "agent-2"} == set(record.services) - set(first)
    assert all(record.services[name] == handle for name, handle in first.items())
    newest = record.services["shard-3"]

    record = bench.stack.up(workers=2, shards=2)
    assert "shard-3" not in record.services
    assert not is_alive(newest)
    assert all(is_alive(handle) for handle in record.services.values())

    bench.stack.down()
    assert (bench.services / "suspended").exists()
    assert any("2 jobs are checkpointed" in line for line in bench.said)
    assert bench.everything() == []
    with pytest.raises(SetupError, match="not running"):
        find_stack(bench.folder, {})


def test_a_stack_that_is_larger_than_asked_for_at_least_stays_as_it_is(bench: Bench) -> None:
    before = dict(bench.stack.up(workers=2, shards=1).services)
    after = bench.stack.up(workers=1, shards=2, at_least=True).services
    assert set(after) == {*before, "shard-2"}
    assert all(after[name] == handle for name, handle in before.items())


def test_paths_outlive_down_and_are_shown_and_a_running_stack_refuses_others(bench: Bench) -> None:
    def stack(**env: str) -> Stack:
        own = {k: v for k, v in bench.stack.env.items() if k not in (TASK_PATH, DATA_PATH)}
        return Stack(bench.stack.home, own | env, say=bench.said.append, programs=PROGRAMS)

    def of_agent(variable: str) -> str | None:
        return psutil.Process(bench.record.services["agent-1"].pid).environ().get(variable)

    first = dict(stack(ELPS_TASK_PATH="/tasks", ELPS_DATA_PATH="/data").up(1, 1).services)
    with pytest.raises(SetupError, match=r"started with '/tasks'.*make down"):
        stack(ELPS_TASK_PATH="/other").up(workers=2, shards=1)
    assert bench.record.services == first
    stack().down()
    record = stack(ELPS_DATA_PATH="/more").up(workers=1, shards=1)
    assert of_agent(TASK_PATH) == "/tasks"
    assert of_agent(DATA_PATH) == "/more"
    seen = as_table(report(bench.stack.home, record, {}, None))
    assert "ELPS_TASK_PATH=/tasks\nELPS_DATA_PATH=/more\n" in seen


def test_up_starts_dead_services_again_and_ends_what_they_left(bench: Bench) -> None:
    record = bench.stack.up(workers=2, shards=1)
    dead = record.services["agent-1"]
    [orphan] = processes.descendants([dead])
    [trainer] = processes.descendants([record.services["agent-2"]])
    os.kill(dead.pid, signal.SIGKILL)
    assert processes.wait_until(lambda: not is_alive(dead), 5)

    record = bench.stack.up(workers=2, shards=1)
    assert record.services["agent-1"] != dead
    assert not is_alive(orphan)
    assert is_alive(trainer)


def test_what_dies_while_up_is_at_work_is_started_again(bench: Bench) -> None:
    """A process that was killed a moment ago may look alive when `up` begins."""
    dying = bench.stack.up(workers=1, shards=1).services["shard-1"]

    def say(text: str) -> None:
        bench.said.append(text)
        if text.startswith("starting agent-2"):
            os.kill(dying.pid, signal.SIGKILL)

    bench.stack.say = say
    record = bench.stack.up(workers=2, shards=1)
    assert record.services["shard-1"] != dying
    assert all(map(is_alive, record.services.values()))
    assert "shard-1 ended only now" in bench.said


def test_a_service_that_ends_at_once_is_named_with_its_log_and_nothing_stays(bench: Bench) -> None:
    (bench.services / "fail-shard-2").touch()
    with pytest.raises(SetupError, match=r"shard-2: ended by itself[^~]*never going to work"):
        bench.stack.up(workers=1, shards=2)
    assert bench.everything() == []
    assert not bench.record.running


def test_a_failed_growth_leaves_the_running_stack_as_it_was(bench: Bench) -> None:
    before = dict(bench.stack.up(workers=1, shards=1).services)
    (bench.services / "fail-shard-2").touch()
    with pytest.raises(SetupError, match="shard-2"):
        bench.stack.up(workers=2, shards=2)
    assert bench.record.services == before
    assert all(map(is_alive, before.values()))


def test_a_member_that_never_shows_up_is_named_when_the_time_is_over(bench: Bench) -> None:
    silent = (sys.executable, "-c", "import time; print('not a shard', flush=True); time.sleep(60)")
    bench.stack.programs = Programs(
        scheduler=PROGRAMS.scheduler, monitor=PROGRAMS.monitor, shard=silent, agent=PROGRAMS.agent
    )
    with pytest.raises(
        SetupError, match=r"in time: shard-1: the monitor has not heard[^~]*not a shard"
    ):
        bench.stack.up(workers=1, shards=1, timeout_s=4)
    assert bench.everything() == []


def test_a_service_deaf_to_sigterm_is_killed_and_said_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elps.local.stack.SERVICE_S", 0.5)
    (bench.services / "deaf-shard-1").touch()
    bench.stack.up(workers=1, shards=1)
    bench.stack.down()
    assert any("shard-1" in line and "was killed" in line for line in bench.said)
    assert bench.everything() == []


def test_down_ends_what_is_left_when_all_services_have_crashed(bench: Bench) -> None:
    record = bench.stack.up(workers=1, shards=1)
    [trainer] = processes.descendants([record.services["agent-1"]])
    for handle in record.services.values():
        os.kill(handle.pid, signal.SIGKILL)
    bench.stack.down()
    assert not is_alive(trainer)
    assert bench.everything() == []


def test_down_leaves_a_process_alone_that_has_the_pid_of_a_dead_one(bench: Bench) -> None:
    bench.stack.up(workers=1, shards=1)
    stranger = psutil.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        record = bench.record
        old = record.services["shard-1"]
        recycled = Handle(
            name="shard-1", pid=stranger.pid, start_ticks=old.start_ticks, boot_id=old.boot_id
        )
        assert not is_alive(recycled)
        assert processes.end([recycled], grace_s=0.1) == []
        assert stranger.is_running()
    finally:
        stranger.kill()
        stranger.wait()


def test_status_shows_every_process_and_names_the_dead_one(bench: Bench) -> None:
    record = bench.stack.up(workers=1, shards=1)
    seen = report(bench.stack.home, record, {}, None)
    assert seen.status == "ok"
    assert [row.name for row in seen.rows][:4] == ["rabbitmq", "redis", "scheduler", "monitor"]
    assert all(row.rss_bytes > 0 for row in seen.rows if row.pid)

    os.kill(record.services["shard-1"].pid, signal.SIGKILL)
    assert processes.wait_until(lambda: not is_alive(record.services["shard-1"]), 5)
    seen = report(bench.stack.home, record, {}, None)
    assert seen.status == "degraded"
    assert "shard-1 is dead" in as_table(seen)

    bench.stack.down()
    assert report(bench.stack.home, bench.record, {}, None).status == "down"


def test_a_running_stack_refuses_another_broker(bench: Bench) -> None:
    bench.stack.up(workers=1, shards=1)
    other = Stack(
        bench.stack.home,
        {**bench.stack.env, "ELPS_AMQP_URL": "amqp://u:pw@other/"},
        say=bench.said.append,
    )
    with pytest.raises(SetupError, match=r"amqp://u:\*\*\*@other/.*make down"):
        other.up(workers=1, shards=1)
    assert all(map(is_alive, bench.record.services.values()))


def test_clean_removes_the_data_but_not_the_binaries(bench: Bench) -> None:
    bench.stack.up(workers=1, shards=1)
    (bench.stack.home / "binaries").mkdir()
    stack_id = bench.record.stack_id
    bench.stack.clean()
    assert processes.belonging_to(stack_id) == []
    assert [path.name for path in bench.stack.home.iterdir()] == ["binaries"]
    bench.stack.clean(everything=True)
    assert not bench.stack.home.exists()
    bench.stack.up(workers=1, shards=1)  # for the fixture, which ends a stack


@pytest.mark.thorough
def test_two_stacks_with_private_servers_run_side_by_side_and_keep_their_data(
    tmp_path: Path,
) -> None:
    """The whole way: RabbitMQ and Redis of their own, a broker that crashes, data that outlives `down`."""
    first, second = Bench(tmp_path / "one", {}), Bench(tmp_path / "two", {})
    try:
        one = first.stack.up(workers=1, shards=1)
        two = second.stack.up(workers=1, shards=1)
        assert one.broker_ports is not None
        assert two.broker_ports is not None
        assert one.monitor_url != two.monitor_url
        assert one.redis_url != two.redis_url

        redis.Redis.from_url(one.redis_url).set("kept", "yes")
        assert one.broker is not None
        os.kill(one.broker.pid, signal.SIGKILL)
        assert processes.wait_until(lambda: one.broker is not None and not is_alive(one.broker), 5)
        again = first.stack.up(workers=1, shards=1)
        assert again.amqp_url == one.amqp_url
        assert again.services == one.services

        first.stack.down()
        assert first.everything() == []
        assert all(map(is_alive, second.record.services.values()))
        back = first.stack.up(workers=1, shards=1)
        assert (back.amqp_url, back.redis_url) == (one.amqp_url, one.redis_url)
        assert redis.Redis.from_url(back.redis_url).get("kept") == b"yes"
    finally:
        first.stack.down()
        second.stack.down()
    assert first.everything() == second.everything() == []


def test_servers_of_private_kind_answer_again_after_a_kill(
    private_broker: PrivateBroker, private_store: PrivateStore
) -> None:
    connection = redis.Redis.from_url(private_store.url)
    connection.set("a", "b")
    for server in (private_broker, private_store):
        server.kill()
        assert not server.alive
        assert not server.answers()
        server.restart()
        assert server.answers()
    assert "elps" in private_broker.control("eval", "node().")


def test_unpacked_packages_run_without_those_of_the_machine(tmp_path: Path) -> None:
    """Runs where `ELPS_BINARIES=unpack make setup` was done, since it must not load 40 MB by itself."""
    home = Path(__file__).parents[2] / ".elps"
    try:
        binaries = find_broker(home, {"ELPS_BINARIES": "unpack"})
    except SetupError:
        pytest.skip("nothing is unpacked in this checkout")
    broker = PrivateBroker(tmp_path, BrokerPorts.draw(), binaries)
    try:
        broker.start()
        assert broker.handle is not None
        assert Path(f"/proc/{broker.handle.pid}/exe").readlink().is_relative_to(home)
    finally:
        broker.stop()
