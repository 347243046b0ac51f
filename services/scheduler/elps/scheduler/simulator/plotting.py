"""A report as a picture: how soon the jobs gave their feedback and ended, policies over one another. SVG by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 960, 420
PANEL, TALL = 400, 280
LEFT, TOP, GAP = 60, 60, 80
COLOURS = ("#444444", "#1f77b4", "#2ca02c", "#ff7f0e", "#d62728", "#9467bd", "#8c564b")
PANELS = (
    ("feedback_quantiles_s", "Part of the jobs that have given their early feedback"),
    ("completion_quantiles_s", "Part of the jobs that have ended"),
)
FONT = 'font-family="sans-serif" font-size="12"'
LEAST_S = 0.1
"""Times axes are logarithmic, and begin no earlier."""


def drawn(report: Mapping[str, Any]) -> str:
    """Two panels, seconds since a job was handed in on logarithmic axes, a line for each policy."""
    policies: Mapping[str, Mapping[str, Any]] = report["policies"]
    title = (
        f"{report['workload']}: {report['jobs']} jobs, {report['workers']} workers, "
        f"{report['shards']} shards"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 24, title, size=15),
    ]
    for n, (key, caption) in enumerate(PANELS):
        lines = {name: told[key] for name, told in policies.items() if told[key]}
        parts += _panel(LEFT + n * (PANEL + GAP), caption, lines)
    for n, name in enumerate(policies):
        x, y = LEFT + n * 110, HEIGHT - 20
        colour = COLOURS[n % len(COLOURS)]
        parts.append(f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(x + 30, y, name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(x0: int, caption: str, lines: Mapping[str, Sequence[float]]) -> list[str]:
    parts = [_text(x0, TOP - 12, caption)]
    values = [max(LEAST_S, v) for line in lines.values() for v in line]
    low = math.floor(math.log10(min(values, default=1.0)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=1.0))))

    def at(seconds: float) -> float:
        part = (math.log10(max(LEAST_S, seconds)) - low) / (high - low)
        return x0 + PANEL * min(1.0, max(0.0, part))

    for power in range(low, high + 1):
        x = at(10.0**power)
        parts.append(f'<path d="M{x:.1f} {TOP}v{TALL}" stroke="#dddddd"/>')
        parts.append(_text(x, TOP + TALL + 16, f"{10.0**power:g} s", anchor="middle"))
    for quarter in range(5):
        y = TOP + TALL * (1 - quarter / 4)
        parts.append(f'<path d="M{x0} {y:.1f}h{PANEL}" stroke="#dddddd"/>')
        parts.append(_text(x0 - 6, y + 4, f"{quarter / 4:g}", anchor="end"))
    for n, line in enumerate(lines.values()):
        last = len(line) - 1
        points = " ".join(
            f"{at(seconds):.1f},{TOP + TALL * (1 - k / last):.1f}" for k, seconds in enumerate(line)
        )
        colour = COLOURS[n % len(COLOURS)]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
