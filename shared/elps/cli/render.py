"""How progress is shown: a live bar on a terminal, plain lines on a pipe, JSON lines for a program."""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from elps.cli import figures
from elps.cli.output import console, harmless, plain, print_json, state_text
from elps.cli.progress import JobProgress, Note
from elps.contracts.messages import JobEvent
from elps.contracts.telemetry import IterationRow, LogLines

PLAIN_EVERY_S = 2.0
"""On a pipe one line of progress for so much time: readable in a log, and lively enough."""

MOVE_EVERY_S = 0.1
"""A bar that moves more often shows nobody more, and costs the training its time."""


class Renderer:
    """Shows one job's way; by default nothing. Methods are called in the order in which things were heard of."""

    def start(self) -> None:
        """Called once, first."""

    def event(self, event: JobEvent) -> None:
        """Every event, before its notes."""

    def note(self, note: Note) -> None:
        """Something to be read once."""

    def row(self, row: IterationRow, progress: JobProgress) -> None:
        """An iteration finished, and `progress` has it in."""

    def lines(self, lines: LogLines) -> None:
        """A trainer printed something."""
        for line in lines.lines:
            self.note(Note(lines.at, "log", f"{lines.worker} | {line}"))

    def end(self, progress: JobProgress) -> None:
        """Always called, whatever ended the watching."""


class LiveBar(Renderer):
    """A progress bar at the bottom, notes above it."""

    def __init__(self, terminal: Console | None = None) -> None:
        self._console = terminal or console()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            refresh_per_second=8,
            expand=True,
        )
        self._task: TaskID | None = None
        self._moved_at = 0.0

    def start(self) -> None:
        """Show the bar."""
        self._bar.start()

    def note(self, note: Note) -> None:
        """Print it above the bar."""
        text = plain(note.text)
        if note.kind == "state":
            state, colon, reason = text.partition(":")
            text = state_text(state) + colon + reason
        self._console.print(
            f"[dim]{figures.clock(note.at)}[/] {'[red]![/] ' if note.grave else ''}{text}"
        )

    def row(self, row: IterationRow, progress: JobProgress) -> None:
        """Move the bar, unless it moved a moment ago."""
        if row.at - self._moved_at >= MOVE_EVERY_S:
            self._moved_at = row.at
            self._show(progress)

    def end(self, progress: JobProgress) -> None:
        """Leave the bar as it stands at the end."""
        if self._task is not None:
            self._show(progress)
        self._bar.stop()

    def _show(self, progress: JobProgress) -> None:
        if self._task is None:
            self._task = self._bar.add_task(plain(progress.job), total=None, figures="")
        self._bar.update(
            self._task,
            completed=progress.iteration,
            total=progress.iterations or None,
            figures=plain(progress.line()),
        )


class PlainLines(Renderer):
    """Notes as they come, and a line of progress now and then."""

    def __init__(self) -> None:
        self._said_at = 0.0
        self._unsaid = False  #: the newest iteration is not in a line yet

    def note(self, note: Note) -> None:
        """Print it."""
        self._say(f"{figures.clock(note.at)} {'! ' if note.grave else ''}{note.text}")

    def row(self, row: IterationRow, progress: JobProgress) -> None:
        """Print a line when it is time for one."""
        self._unsaid = row.at - self._said_at < PLAIN_EVERY_S
        if not self._unsaid:
            self._said_at = row.at
            self._say(f"{figures.clock(row.at)} {progress.line()}")

    def end(self, progress: JobProgress) -> None:
        """Print how far it came."""
        if self._unsaid:
            self._say(f"         {progress.line()}")

    def _say(self, line: str) -> None:
        sys.stdout.write(harmless(line) + "\n")
        sys.stdout.flush()


class JsonLines(Renderer):
    """Each event and each iteration as they came, and last ``{"type": "end", …}``."""

    def __init__(self, job: str) -> None:
        self._job = job

    def event(self, event: JobEvent) -> None:
        """Print it."""
        print_json(msgspec.to_builtins(event))

    def lines(self, lines: LogLines) -> None:
        """Print them."""
        print_json(msgspec.to_builtins(lines))

    def row(self, row: IterationRow, _progress: JobProgress) -> None:
        """Print it."""
        print_json({"type": "iteration", "job": self._job, **msgspec.to_builtins(row)})

    def end(self, progress: JobProgress) -> None:
        """Print what became of the job."""
        print_json(
            {
                "type": "end",
                "job": self._job,
                "state": progress.state.value if progress.state else None,
                "reason": progress.reason,
                "iteration": progress.iteration,
                "loss": progress.loss,
                "metrics": progress.metrics,
            }
        )


def renderer_for(job: str, *, as_json: bool) -> Renderer:
    """What fits standard output."""
    if as_json:
        return JsonLines(job)
    return LiveBar() if sys.stdout.isatty() else PlainLines()
