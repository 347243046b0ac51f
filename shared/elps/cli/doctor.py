"""`elps doctor`: what is wrong around the services, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import typer

from elps.cli.output import JsonOption, console, plain, print_json
from elps.cli.stack import run_async
from elps.doctor.core.finding import Finding, worst

STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(as_json: JsonOption = False) -> None:
    """Look at broker, store, services, clocks and disk, and say what to do.

    One line for each check. Works without a stack, and with a part of one. Ends with 1 if there is a problem;
    warnings alone end with 0.
    """
    from elps.doctor.core.judging import judge
    from elps.doctor.examining import examine

    readings = run_async(lambda: examine(Path.cwd(), os.environ))
    findings = judge(readings)
    status = worst(findings)
    if as_json:
        print_json({"status": status, "checks": [msgspec.to_builtins(f) for f in findings]})
    else:
        show(findings)
    if status == "problem":
        raise typer.Exit(1)


def show(findings: list[Finding]) -> None:
    """A line for each, with what to do below those that are not well."""
    out = console()
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        style = STYLES[finding.status]
        check = plain(finding.check.ljust(width))
        out.print(f"[{style}]{finding.status:<8}[/] {check}  {plain(finding.found)}")
        if finding.todo:
            out.print(f"{'':<8} {'':<{width}}  [bold]→[/] {plain(finding.todo)}")
    counts = [
        f"{count} {name}{'s' if count > 1 else ''}"
        for name in ("problem", "warning")
        if (count := sum(finding.status == name for finding in findings))
    ]
    out.print(", ".join(counts) or "all is well")
