"""Commands that change something, on a scripted stack: submit, kill, pause, resume, scale; and watching."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_stack import JOB, NoStack, Script, event, rows, view

from elps.cli.main import main
from elps.contracts.requests import Reply
from elps.contracts.state import JobState

TOML = 'task = "mlp"\npasses = 2\n[data]\nsource = "digits"\n'
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    (tmp_path / "job.toml").write_text(TOML)
    return str(tmp_path / "job.toml")


def test_submit_prints_id_and_state_and_sends_the_file_with_its_settings(
    job_file: str, capsys: Captured
) -> None:
    script = Script()
    code = main(
        ["submit", job_file, "--set", "optimizer.lr=0.5", "--set", "group=search"], reach=script
    )
    assert code == 0
    assert capsys.readouterr().out == "job-1  queued\n"
    [(key, document)] = script.got
    assert key == "submit"
    assert document == {
        "task": "mlp",
        "passes": 2,
        "data": {"source": "digits"},
        "optimizer": {"lr": 0.5},
        "group": "search",
    }


def test_submit_lists_every_problem_of_a_file_without_asking_the_stack(
    tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "bad.toml").write_text('task = "mlp"\nsed = 1\n[batch]\nglobal = 0\n')
    script = Script()
    assert main(["submit", str(tmp_path / "bad.toml")], reach=script) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "bad.toml: 3 problems" in told.err
    assert "sed: unknown; did you mean seed?" in told.err
    assert "batch.global" in told.err
    assert script.got == []


def test_submit_shows_what_the_scheduler_refuses(job_file: str, capsys: Captured) -> None:
    script = Script(Reply(ok=False, problems=["workers: min 9 is above the pool's 2", "id: taken"]))
    assert main(["submit", job_file], reach=script) == 1
    told = capsys.readouterr().err
    assert "refused: 2 problems" in told
    assert "• workers: min 9 is above the pool's 2" in told
    assert main(["submit", job_file, "--json"], reach=script) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == script.reply.problems


@pytest.mark.parametrize("arguments", [["submit"], ["submit", "x.toml", "--colour"], ["fly"], []])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: Captured) -> None:
    assert main(arguments, reach=Script()) == 2


def test_a_setting_without_a_value_is_wrong_usage(job_file: str, capsys: Captured) -> None:
    assert main(["submit", job_file, "--set", "seed"], reach=Script()) == 2
    assert "expected key.path=value" in capsys.readouterr().err


def test_a_scheduler_that_is_not_there_ends_with_3_and_says_what_to_do(
    job_file: str, capsys: Captured
) -> None:
    assert main(["submit", job_file], reach=Script(scheduler=False)) == 3
    told = capsys.readouterr().err
    assert told == "error: the scheduler is not there: is it running? try `make status`\n"


@pytest.mark.parametrize("command", [["kill", "job-1"], ["watch", "job-1"], ["jobs"]])
def test_no_stack_ends_with_3(command: list[str], capsys: Captured) -> None:
    assert main(command, reach=NoStack()) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("what", ["kill", "pause", "resume", "delete"])
def test_commands_carry_their_reason(what: str, capsys: Captured) -> None:
    script = Script(Reply(ok=True, job=JOB, state=JobState.PAUSED, reason="at iteration 7"))
    assert main([what, "job-1", "--reason", "too slow"], reach=script) == 0
    assert script.got == [(what, {"job": "job-1", "reason": "too slow"})]
    assert capsys.readouterr().out == "job-1  paused  at iteration 7\n"


def test_scale_says_what_is_wanted_and_prints_what_will_happen(capsys: Captured) -> None:
    script = Script(Reply(ok=True, job=JOB, state=JobState.RUNNING, reason="pinned at 3 workers"))
    assert main(["scale", "job-1", "--workers", "3", "-r", "more"], reach=script) == 0
    assert main(["scale", "job-1", "-w", "3", "-s", "2", "--json"], reach=script) == 0
    assert main(["scale", "job-1", "--auto"], reach=script) == 0
    bodies = [body for what, body in script.got if what == "scale"]
    asked = [{k: body.get(k) for k in ("workers", "shards", "auto", "reason")} for body in bodies]
    assert asked == [
        {"workers": 3, "shards": None, "auto": False, "reason": "more"},
        {"workers": 3, "shards": 2, "auto": False, "reason": ""},
        {"workers": None, "shards": None, "auto": True, "reason": ""},
    ]
    assert "job-1  running  pinned at 3 workers\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [[], ["--auto", "--workers", "2"], ["--workers", "0"], ["--shards", "-1"], ["--workers", "x"]],
)
def test_a_scale_that_asks_for_nothing_that_can_be_is_wrong_usage(options: list[str]) -> None:
    script = Script()
    assert main(["scale", "job-1", *options], reach=script) == 2
    assert script.got == []


def test_a_refused_command_ends_with_1(capsys: Captured) -> None:
    script = Script(Reply(ok=False, job=JOB, reason="job-1 is finished"))
    assert main(["kill", "job-1"], reach=script) == 1
    assert capsys.readouterr().err == "error: refused: job-1 is finished\n"


@pytest.mark.parametrize("job", ["a/b", "a.#", "*", "", "x" * 300])
def test_no_command_sends_a_name_that_is_none(job: str, capsys: Captured) -> None:
    script = Script()
    for command in (["kill", job], ["watch", job], ["export", job]):
        assert main(command, reach=script) == 2
    assert script.got == []
    assert "is not an identifier" in capsys.readouterr().err


def test_watch_ends_with_0_when_the_job_finishes(capsys: Captured) -> None:
    happens = [
        rows(3, 4),
        event(JobState.RUNNING, 2e9, "3 workers on 1 shard"),
        rows(5),
        event(JobState.FINISHED, 2e9 + 1, "all iterations done"),
    ]
    assert main(["watch", "job-1"], reach=Script(answers=[view()], happens=happens)) == 0
    told = capsys.readouterr().out
    assert "running: 2 workers on 1 shard" in told
    assert "running: 3 workers on 1 shard" in told
    assert "iteration 4/10  loss 0.25  accuracy 0.9  1 worker, 1 shard  320 samples/s" in told
    assert told.splitlines()[-2].endswith("finished: all iterations done")
    assert "iteration 6/10" in told.splitlines()[-1]


def test_watch_ends_with_1_when_the_job_fails_and_shows_the_whole_reason(capsys: Captured) -> None:
    reason = "task raised\nTraceback\n  ZeroDivisionError: \x1b[31mred"
    happens = [event(JobState.FAILED, 2e9, reason)]
    assert main(["watch", "job-1"], reach=Script(answers=[view()], happens=happens)) == 1
    told = capsys.readouterr().out
    assert "! failed: task raised" in told
    assert "ZeroDivisionError: \ufffd[31mred" in told


def test_watch_of_a_job_that_ended_long_ago_tells_its_end(capsys: Captured) -> None:
    assert main(["watch", "job-1"], reach=Script(answers=[view("killed", reason="by rule")])) == 1
    assert "killed: by rule" in capsys.readouterr().out


def test_watch_notices_an_end_whose_event_was_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("elps.cli.watching.ASK_EVERY_S", 0.01)
    script = Script(answers=[view(), view(), view("finished", changed_at=2e9)])
    assert main(["watch", "job-1"], reach=script) == 0
    assert "finished" in capsys.readouterr().out


def test_watch_of_an_unknown_job_says_so(capsys: Captured) -> None:
    assert main(["watch", "job-9"], reach=Script()) == 1
    assert capsys.readouterr().err == "error: there is no job 'job-9'\n"


def test_watch_prints_json_lines_that_end_with_the_end(capsys: Captured) -> None:
    happens = [rows(3, 4), event(JobState.FINISHED, 2e9)]
    script = Script(answers=[view()], happens=happens)
    assert main(["watch", "job-1", "--json"], reach=script) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["iteration", "iteration", "event", "end"]
    assert lines[0]["workers"][0]["compute_s"] == 0.05
    assert lines[-1]["state"] == "finished"


def test_submit_with_watch_stays_to_the_end(job_file: str, capsys: Captured) -> None:
    script = Script(answers=[view()], happens=[event(JobState.FINISHED, 2e9)])
    assert main(["submit", job_file, "--watch"], reach=script) == 0
    assert capsys.readouterr().out.startswith("job-1  queued\n")
