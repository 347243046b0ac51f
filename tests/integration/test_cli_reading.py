"""Commands that show something, on a scripted stack: jobs, show, logs, export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console
from safetensors import safe_open
from scripted_stack import JOB, NoStack, Script, event, row, view

from elps.cli.main import main
from elps.cli.showing import job_page
from elps.client.reading import job_of
from elps.contracts import topology
from elps.contracts.codec import encode, parse_job
from elps.contracts.ids import WorkerId
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import LogLines
from elps.storage.checkpoints import Manifest, PartitionEntry, publish, write_partition
from elps.storage.port import Store

Captured = pytest.CaptureFixture[str]


def test_show_tells_the_size_the_pin_and_what_is_moving(capsys: Captured) -> None:
    wide = {
        "shards": ["shard-1", "shard-2"], "targets": ["shard-1"], "workers_wanted": 3,
        "shards_wanted": 1, "workers_pinned": 3, "moving": "moving 4 partitions to shard-1",
    }  # fmt: skip
    assert main(["show", "job-1"], reach=Script(answers=[view(**wide)])) == 0
    told = capsys.readouterr().out
    assert "1/3 workers (pinned), 1 shard" in told
    assert "moving 4 partitions to shard-1" in told
    assert "on the way out: shard-2" in told
    both = {**wide, "shards_pinned": 2, "shards_wanted": 2}
    main(["show", "job-1"], reach=Script(answers=[view(**both)]))
    assert "1/3 workers, 1/2 shards (pinned)" in capsys.readouterr().out
    resting = view("paused", shards=[], workers=[], workers_pinned=3)
    main(["show", "job-1"], reach=Script(answers=[resting]))
    assert "pinned at 3 workers" in capsys.readouterr().out


def test_show_tells_the_shares_of_the_batch_and_why(capsys: Captured) -> None:
    told = view(shares={"job-1-w1": 48, "job-1-w2": 16}, batches=7, shares_reason="w2 is slower")
    assert main(["show", "job-1"], reach=Script(answers=[told])) == 0
    assert "job-1-w1 48, job-1-w2 16 (plan 7: w2 is slower)" in capsys.readouterr().out


def test_show_tells_what_workers_machines_have_left_if_that_is_known() -> None:
    def told(**known: float) -> str:
        timings = [msgspec.structs.replace(row(2).workers[0], **known)]
        newest = msgspec.structs.replace(row(2), workers=timings)
        console = Console(width=120)
        with console.capture() as captured:
            console.print(job_page(job_of(view()), newest, [], 1_700_000_010.0))
        return captured.get()

    assert "cores" not in told()
    assert re.search(r"lease +cores +idle\n.* 0.25 +1.5\n", told(cpu_process=0.25, cpu_host=1.5))


def test_jobs_is_a_table_with_units(capsys: Captured) -> None:
    script = Script(answers=[view(), view("finished", id="old", changed_at=1.0, ended_at=1.0)])
    assert main(["jobs"], reach=script) == 0
    told = capsys.readouterr().out
    header, line = told.splitlines()
    assert header.split()[:3] == ["JOB", "STATE", "TASK"]
    for text in ("job-1", "running", "3/10", "0.25", "accuracy 0.9", "2×1", "12.3k"):
        assert text in line
    assert main(["jobs", "--all"], reach=script) == 0
    assert "old" in capsys.readouterr().out
    assert main(["jobs", "--json"], reach=script) == 0
    assert len(json.loads(capsys.readouterr().out)["jobs"]) == 2


def test_no_jobs_says_how_to_begin(capsys: Captured) -> None:
    assert main(["jobs"], reach=Script()) == 0
    assert "elps submit FILE" in capsys.readouterr().out


def test_show_tells_what_a_job_holds_and_its_workers_times(capsys: Captured) -> None:
    assert main(["show", "job-1"], reach=Script(answers=[view()])) == 0
    told = capsys.readouterr().out
    for text in (
        "2 workers on 1 shard",
        "not ready: job-1-w2",
        "accuracy 0.9 at iteration 2",
        "50 ms",
        "evaluated: accuracy 0.5",
        "passes",
    ):
        assert text in told
    assert main(["show", "job-1", "--json"], reach=Script(answers=[view()])) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["newest_iterations"][-1]["iteration"] == 2
    assert shown["recent_events"][0]["what"] == "evaluated"


def test_an_answer_of_another_version_is_told_in_one_line(capsys: Captured) -> None:
    script = Script(answers=[view(state="hibernating")])
    assert main(["show", "job-1"], reach=script) == 1
    told = capsys.readouterr().err
    assert "another version" in told
    assert told.count("\n") == 1


def log_line(n: int, text: str) -> dict[str, Any]:
    return {"n": n, "worker": "job-1-w1", "at": 5.0 + n, "text": text}


def test_logs_prints_all_pages_without_control_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("elps.cli.logs.PAGE", 2)
    script = Script(lines=[log_line(n, f"line {n}\x07") for n in range(5)])
    assert main(["logs", "job-1"], reach=script) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"job-1-w1 | line {n}\ufffd" for n in range(5)]


def test_logs_follow_goes_on_to_the_end_without_repeats(capsys: Captured) -> None:
    last = LogLines(job=JOB, worker=WorkerId("job-1-w1"), at=9.0, lines=["bye"])
    repeated = LogLines(job=JOB, worker=WorkerId("job-1-w1"), at=5.0, lines=["line 0"])
    key = topology.log_key(JOB)
    script = Script(
        answers=[view()],
        lines=[log_line(0, "line 0")],
        happens=[
            (topology.TELEMETRY, key, repeated),
            event(JobState.FINISHED, 2e9),
            (topology.TELEMETRY, key, last),
        ],
    )
    assert main(["logs", "job-1", "-f"], reach=script) == 0
    assert capsys.readouterr().out == "job-1-w1 | line 0\njob-1-w1 | bye\n"


WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array(7, dtype=np.float32)


async def trained(store: Store) -> None:
    """A finished job with a checkpoint of two partitions that cut through an array."""
    await job_record(store, JobState.FINISHED)
    vector = np.concatenate([WEIGHTS.ravel(), BIAS.ravel()])
    entries = []
    for number, (start, stop) in enumerate([(0, 4), (4, 7)]):
        arrays = {"values": np.ascontiguousarray(vector[start:stop])}
        digests = await write_partition(store, JOB, "1.0-20", number, arrays)
        entries.append(PartitionEntry(start=start, stop=stop, steps=20, digests=digests))
    await publish(
        store,
        Manifest(
            job=JOB,
            name="1.0-20",
            term=1,
            iteration=20,
            at=1.0,
            layout={"dtype": "float32", "parameters": [["layer.w", [2, 3]], ["layer.b", []]]},
            dtype="float32",
            partitions=entries,
            samples=100,
            batch=10,
            granule=1,
            test_samples=0,
            skips=[],
            fingerprint="f",
            code_hash="c",
        ),
    )


async def job_record(store: Store, state: JobState) -> None:
    record = JobRecord(
        id=JOB,
        document=parse_job({"task": "mlp", "passes": 2}),
        state=state,
        reason="",
        seq=1,
        submitted_at=1.0,
        changed_at=2.0,
    )
    await store.hash_put(topology.JOB_INDEX, JOB, encode(record))


def test_export_writes_safetensors_with_metadata_and_keeps_what_is_there(
    tmp_path: Path, capsys: Captured
) -> None:
    target = tmp_path / "model.safetensors"
    script = Script(prepare=trained)
    assert main(["export", "job-1", "-o", str(target)], reach=script) == 0
    assert "2 arrays, 7 parameters" in capsys.readouterr().out
    with safe_open(target, "numpy") as file:
        assert file.metadata() == {
            "job": "job-1",
            "task": "mlp",
            "iteration": "20",
            "format": "np",
        }
        assert (file.get_tensor("layer.w") == WEIGHTS).all()
        assert file.get_tensor("layer.b").shape == ()
    before = target.read_bytes()
    assert main(["export", "job-1", "-o", str(target)], reach=script) == 1
    assert "--force" in capsys.readouterr().err
    target.write_bytes(b"old")
    assert main(["export", "job-1", "-o", str(target), "--force", "--json"], reach=script) == 0
    assert json.loads(capsys.readouterr().out)["arrays"] == {"layer.w": [2, 3], "layer.b": []}
    assert len(target.read_bytes()) == len(before)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


async def untrained(store: Store) -> None:
    await job_record(store, JobState.RUNNING)


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (None, "there is no job job-1"),
        (untrained, "has no checkpoint yet: it writes one every 30 s"),
    ],
)
def test_export_without_a_checkpoint_says_what_to_do(
    tmp_path: Path, prepare: Any, told: str, capsys: Captured
) -> None:
    target = tmp_path / "model.safetensors"
    assert main(["export", "job-1", "-o", str(target)], reach=Script(prepare=prepare)) == 1
    assert told in capsys.readouterr().err
    assert not target.exists()


def test_export_into_a_missing_folder_is_refused_before_any_work(capsys: Captured) -> None:
    assert main(["export", "job-1", "-o", "/nowhere/model.safetensors"], reach=NoStack()) == 1
    assert "there is no folder /nowhere" in capsys.readouterr().err


def test_the_version_is_shown(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("elps ")
