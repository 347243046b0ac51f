from __future__ import annotations

import io

import pytest
from rich.console import Console

from elps.cli.progress import JobProgress, Note
from elps.cli.render import LiveBar, PlainLines
from elps.contracts.telemetry import IterationRow


def row(t: int, at: float) -> IterationRow:
    return IterationRow(
        iteration=t,
        passes=0.1,
        samples=32,
        skipped=0,
        loss=0.5,
        duration_s=0.1,
        at=at,
        term=1,
        plan=1,
        lr=0.1,
        workers=[],
    )


def test_the_bar_shows_notes_above_and_the_newest_figures_at_the_end() -> None:
    screen = io.StringIO()
    bar = LiveBar(Console(file=screen, force_terminal=True, width=120, highlight=False))
    progress = JobProgress("job-[red]1", iterations=50)
    bar.start()
    bar.note(Note(0.0, "state", "running: 2 [bold]workers", False))
    bar.note(Note(0.0, "worker_lost", "worker lost job-1-w1: signal 9\nsecond line", True))
    for t in range(50):
        progress.take_row(row(t, 100 + t * 0.001))
        bar.row(row(t, 100 + t * 0.001), progress)
    bar.end(progress)
    told = screen.getvalue()
    assert "2 [bold]workers" in told
    assert "second line" in told
    assert "job-[red]1" in told
    assert "iteration 50/50" in told
    assert "320 samples/s" in told


def test_plain_lines_come_every_two_seconds_and_once_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, progress = PlainLines(), JobProgress("j")
    for t in range(45):
        progress.take_row(row(t, 100 + t * 0.1))
        lines.row(row(t, 100 + t * 0.1), progress)
    lines.end(progress)
    told = capsys.readouterr().out.splitlines()
    assert [line.split("iteration ")[1].split()[0] for line in told] == ["1", "21", "41", "45"]
