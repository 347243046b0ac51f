"""`elps simulate`: policies side by side on a workload that is only thought of."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.table import Table

from elps.cli.output import JsonOption, console, console_err, harmless, plain, print_json
from elps.contracts.errors import InvalidDocument, SetupError

GROUP = "elps.simulators"
"""Entry points: what simulates belongs to the scheduler, which nothing here imports."""
COLUMNS = (
    ("FEEDBACK", "feedback_mean_s"),
    ("P50", "feedback_p50_s"),
    ("P95", "feedback_p95_s"),
    ("COMPLETION", "completion_mean_s"),
    ("P95", "completion_p95_s"),
    ("MAKESPAN", "makespan_s"),
    ("USED", "utilisation"),
    ("RESIZES", "resizes"),
    ("LOST", "lost"),
    ("SLOWDOWN", "slowdown"),
    ("FAIRNESS", "fairness"),
)
PARTS = ("utilisation", "lost")
"""Told in hundredths."""


def simulate(
    workload: Annotated[
        Path,
        typer.Argument(
            help="A workload as TOML, YAML or JSON, or a CSV file of Pollux with its tables beside it.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="One of them, again for more; all by default."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", min=1, max=100_000, help="Worker slots.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", "-s", min=1, max=100_000, help="Shard processes.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what a workload has drawn.")] = 0,
    slowdown: Annotated[
        list[str] | None,
        typer.Option(
            "--slowdown",
            metavar="PATTERN",
            help="Of workers, dealt out in turns (docs/balance.md).",
        ),
    ] = None,
    restart_resizing: Annotated[
        bool,
        typer.Option("--restart-resizing", help="Sizes are changed by a stop and a new start."),
    ] = False,
    stretch: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=64,
            help="Of Pollux workloads: a job can have so many times the replicas it asked for.",
        ),
    ] = 1.0,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the results (SVG).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a workload under each policy, in virtual time.

    The policies are the scheduler's own. The same file and seed give the same results.
    """
    simulator = installed_simulator()
    report = simulator.simulate(
        workload.stem,
        content_of(workload),
        lambda path: text_of(workload.parent / Path(path).expanduser()),
        lambda name: console_err().print(f"[dim]simulating {plain(name)}[/]"),
        policies=policy or (),
        workers=workers,
        shards=shards,
        seed=seed,
        slowdown=slowdown or (),
        restart=restart_resizing,
        stretch=stretch,
    )
    if plot is not None:
        write(plot, simulator.plot(report))
    if as_json:
        print_json(report)
        return
    out = console()
    head = "{workload}: {jobs} jobs on {workers} workers and {shards} shards".format(**report)
    out.print(plain(head))
    out.print(figures_table(report["policies"]))


def installed_simulator() -> ModuleType:
    """The module that simulates, of whatever is installed; `SetupError` if nothing is."""
    for entry in metadata.entry_points(group=GROUP):
        module = entry.load()
        assert isinstance(module, ModuleType)
        return module
    raise SetupError("no simulator is installed; install elps again (make setup)")


def content_of(workload: Path) -> str | dict[str, Any]:
    """Text of a CSV file, or the values of a document; `InvalidDocument` says what is wrong."""
    from elps.client.documents import load

    return text_of(workload) if workload.suffix.lower() == ".csv" else load(workload)


def text_of(path: Path) -> str:
    """A file's text; `InvalidDocument` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidDocument("workload", [f"{path}: {why}"]) from None


def write(path: Path, text: str) -> None:
    """Save a picture; `InvalidDocument` if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidDocument("setting", [f"--plot {path}: {error.strerror}"]) from None


def figures_table(policies: dict[str, dict[str, Any]]) -> Table:
    """A row for each policy."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("POLICY", no_wrap=True)
    for title, _ in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for name, told in policies.items():
        table.add_row(plain(harmless(name)), *(shown(key, told[key]) for _, key in COLUMNS))
    return table


def shown(key: str, value: float) -> str:
    """A figure for people."""
    if value != value:  # none of the jobs has it
        return "-"
    if key in PARTS:
        return f"{100 * value:.3g} %"
    if key.endswith("_s"):
        return f"{value:.4g} s" if value < 1e4 else f"{value:.0f} s"
    return f"{value:.0f}" if key == "resizes" else f"{value:.3g}"
