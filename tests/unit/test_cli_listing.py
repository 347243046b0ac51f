"""`elps jobs` on terminals of several widths."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from elps.cli.listing import jobs_table
from elps.contracts.answers import JobSummary
from elps.contracts.state import JobState

NOW = 1_000.0
TOO_BIG = "needs 3 shards and 1 worker slot; the pool is too small in shards (there are 2 in all)"
LISTED = [
    JobSummary(id="too-big", state=JobState.QUEUED, task="mlp", reason=TOO_BIG, submitted_at=990.0),
    JobSummary(
        id="long-digits-run",
        state=JobState.RUNNING,
        task="my_project.models:Perceptron",
        reason="training",
        iteration=3600,
        iterations=2_300_000,
        samples=200_000,
        loss=8.96e-6,
        metrics={"loss": 0.5, "accuracy": 0.9833},
        samples_per_s=31_200.0,
        time_left_s=4604.0,
        workers=["w1", "w2"],
        shards=["s1"],
        submitted_at=900.0,
    ),
]


def shown(listed: list[JobSummary], width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(jobs_table(listed, NOW, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 250])
def test_each_job_is_one_line_that_fits_and_names_it_its_state_and_why(width: int) -> None:
    lines = shown(LISTED, width)
    assert len(lines) == 1 + len(LISTED)
    assert all(cell_len(line) <= width for line in lines)
    assert lines[1].split()[:2] == ["too-big", "queued"]
    assert "needs 3 shards and" in lines[1]
    assert width < 80 or "3600/2300000" in lines[2]


def test_what_matters_least_goes_first_as_the_terminal_gets_narrower() -> None:
    heads = {width: shown(LISTED, width)[0].split() for width in (80, 120, 250)}
    assert heads[250] == [
        *("JOB", "STATE", "TASK", "ITERATION", "LOSS", "METRICS", "W×S", "SAMPLES/S", "LEFT"),
        *("AGE", "WHY"),
    ]
    assert heads[120] == [
        "JOB",
        "STATE",
        "ITERATION",
        "LOSS",
        "METRICS",
        "W×S",
        "SAMPLES/S",
        "LEFT",
        "WHY",
    ]
    assert heads[80] == ["JOB", "STATE", "ITERATION", "LOSS", "WHY"]


def test_a_column_without_a_word_in_it_is_left_out() -> None:
    head = shown(LISTED[:1], 160)[0].split()
    assert head == ["JOB", "STATE", "TASK", "ITERATION", "AGE", "WHY"]


def test_a_loss_and_a_metric_that_are_not_finite_are_said_in_words() -> None:
    job = JobSummary(
        id="j", state=JobState.RUNNING, iteration=3, samples=96, metrics={"accuracy": None}
    )
    line = shown([job], 120)[1]
    assert "not finite  accuracy not finite" in line


def test_a_long_id_stays_whole_so_that_it_can_be_copied() -> None:
    job = JobSummary(id="j" * 60, state=JobState.FINISHED, reason="all iterations are done")
    assert "j" * 60 in shown([job], 80)[1]


def test_markup_and_control_codes_in_a_reason_are_text() -> None:
    job = JobSummary(id="j", state=JobState.FAILED, reason="[red]\x1b[2J[/]")
    assert "[red]\N{REPLACEMENT CHARACTER}[2J[/]" in shown([job], 80)[1]
