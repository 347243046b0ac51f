"""`elps simulate`: files in, a table, JSON and a picture out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emulated import data_folder

from elps.cli.main import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "workloads" / "newcomers.toml"
POLICIES = ["fifo", "fair", "srtf", "optimus", "eps"]


def test_the_example_is_told_as_a_table_json_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "newcomers.svg"
    assert main(["simulate", str(EXAMPLE), "--plot", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "newcomers: 21 jobs on 8 workers and 3 shards"
    assert [line.split()[0] for line in lines[2:]] == POLICIES
    assert picture.read_text().startswith("<svg")
    outputs = []
    for _ in range(2):
        assert main(["simulate", str(EXAMPLE), "-p", "eps", "-p", "fifo", "--json", "-w", "4"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1], "the same file and seed give other results"
    report = json.loads(outputs[0])
    assert (list(report["policies"]), report["workers"]) == (["eps", "fifo"], 4)
    assert (
        report["policies"]["eps"]["feedback_mean_s"] < report["policies"]["fifo"]["feedback_mean_s"]
    )


def test_what_cannot_be_simulated_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(EXAMPLE, tmp_path / "w.toml")
    (tmp_path / "lone.csv").write_text(
        "name,time,application,num_replicas,batch_size\na-0,1,app,1,8\n"
    )
    for arguments, told in (
        (["missing.toml"], "missing.toml"),
        (["lone.csv"], "app/"),
        (["w.toml", "-p", "best"], "not one of"),
        (["w.toml", "--slowdown", "trace:none.csv#s@1s"], "none.csv"),
        (["w.toml", "-p", "fifo", "--plot", str(tmp_path / "none" / "x.svg")], "--plot"),
    ):
        path = str(tmp_path / arguments[0])
        assert main(["simulate", path, *arguments[1:]]) in (1, 2), arguments
        assert told in capsys.readouterr().err


@pytest.mark.skipif(data_folder() is None, reason="the recorded traces are not on this machine")
def test_a_workload_of_pollux_has_its_feedback_sooner_where_jobs_give_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = data_folder()
    assert folder is not None
    file = folder / "traces" / "pollux" / "workload-1.csv"
    assert main(["simulate", str(file), "--json", "-p", "fifo", "-p", "eps"]) == 0
    told = json.loads(capsys.readouterr().out)["policies"]
    assert told["eps"]["feedback_mean_s"] < told["fifo"]["feedback_mean_s"] / 5
    assert told["eps"]["completion_mean_s"] < told["fifo"]["completion_mean_s"] / 2
