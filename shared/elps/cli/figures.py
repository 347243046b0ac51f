"""Numbers for people: short, with units, never a wall of digits."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping


def count(n: float) -> str:
    """A whole number: ``9950``, ``12.3k``, ``4.56M``."""
    return str(round(n)) if abs(n) < 10_000 else scaled(n)


def scaled(x: float) -> str:
    """Three digits and a decimal prefix."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= factor * 0.9995:
            return _three(x / factor) + prefix
    return _three(x)


def values(metrics: Mapping[str, float | None], between: str = "  ") -> str:
    """Metrics with their names; one that is there without a number is not finite."""
    return between.join(f"{name} {value(x, NOT_FINITE)}" for name, x in metrics.items())


def loss(x: float | None, samples: float) -> str:
    """A mean loss over so many counted samples; a dash when there were none."""
    return value(x, NOT_FINITE if samples else "–")


def rate(per_second: float | None) -> str:
    """Samples a second."""
    return "–" if per_second is None else f"{scaled(per_second)} samples/s"


def size(n_bytes: float) -> str:
    """Bytes in binary units: ``1.50 MiB``."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if n_bytes >= factor:
            return f"{_three(n_bytes / factor)} {unit}"
    return f"{round(n_bytes)} B"


def seconds(s: float | None) -> str:
    """A duration: ``350 µs``, ``12.3 ms``, ``4.5 s``, ``2:05``, ``1:02:03``, ``3 d 4 h``."""
    if s is None or not math.isfinite(s):
        return "–"
    if s < 0.9995e-3:
        return f"{s * 1e6:.0f} µs"
    if s < 0.9995:
        return f"{_three(s * 1e3)} ms"
    if s < 59.95:
        return f"{s:.1f} s"
    minutes, second = divmod(round(s), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def ago(then: float, now: float) -> str:
    """How long ago a Unix time was."""
    return f"{seconds(max(0.0, now - then))} ago" if now - then >= 1 else "just now"


NOT_FINITE = "not finite"
"""In place of a number. Messages and answers carry null for one that is not finite."""


def of(number: int, what: str) -> str:
    """A number of things: ``1 worker``, ``3 shards``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def value(x: float | None, missing: str = "–") -> str:
    """A loss or metric, four digits: ``0.1234``, ``1.23e-07``; `missing`, a dash, when there is none."""
    if x is None:
        return missing
    if not math.isfinite(x):
        return NOT_FINITE
    if x == 0 or 1e-3 <= abs(x) < 1e5:
        return f"{x:.4g}"
    return f"{x:.3g}"


def _three(x: float) -> str:
    digits = 2 if abs(x) < 9.995 else 1 if abs(x) < 99.95 else 0
    text = f"{x:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def clock(at: float) -> str:
    """Time of day of a Unix time, in the local zone."""
    return time.strftime("%H:%M:%S", time.localtime(at))
