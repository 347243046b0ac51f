"""How an emulated machine is slower than the real one: time in, factor out.

One text says it, a setting of agents and of shards (`FORMS`). A factor is how many times as long a computation takes;
it is 1 at least, since nothing can be made faster. Time is counted in seconds from a process's first computation (a
trainer's first lease), so that the same text gives the same run again, whenever the machine was started.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from elps.contracts.ids import ID_PATTERN

FORMS = (
    "factor:4 (always), step:4@10s or step:2:4@10s (from then on), square:1:3@5s (each for so long), "
    "walk:seed=3,step=0.2,most=4@1s (drawn), trace:FILE.csv#COLUMN@0.3s or trace:FILE.csv#COLUMN?worker=2@0.3s "
    "(each row for so long); NAME=… is for one agent or shard, and ; joins several"
)
MOST = 1000.0
"""A larger factor is a slip: no iteration would end any more."""
WALK_STEP, WALK_MOST = 0.2, 4.0
"""Of a walk of which no more is said: deviation of a step, logarithmic, and the largest factor."""
UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0}
_TIME = re.compile(r"([0-9.]+)(ms|s|min)")
_OF_ONE = re.compile(rf"({ID_PATTERN})=(.*)", re.DOTALL)


class Slowdown(Protocol):
    """A pattern."""

    def factor(self, at_s: float) -> float:
        """How many times as long a computation takes that begins then; 1 to `MOST`."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One factor before a moment, another from then on; a constant one is both."""

    before: float
    after: float
    at_s: float = 0.0

    def factor(self, at_s: float) -> float:
        """See `Slowdown`."""
        return self.after if at_s >= self.at_s else self.before


@dataclass(frozen=True, slots=True)
class Square:
    """Two factors in turns."""

    first: float
    second: float
    each_s: float

    def factor(self, at_s: float) -> float:
        """See `Slowdown`."""
        return self.second if int(max(at_s, 0.0) / self.each_s) % 2 else self.first


class Walk:
    """A random walk of the factor's logarithm from 1, thrown back at its bounds; the seed fixes all of it."""

    def __init__(self, seed: int, step: float, most: float, each_s: float) -> None:
        self._chance = np.random.default_rng(seed)
        self._step, self._most, self._each_s = step, math.log(most), each_s
        self._at = [0.0]  #: logarithms, in order

    def factor(self, at_s: float) -> float:
        """See `Slowdown`."""
        index = int(max(at_s, 0.0) / self._each_s)
        while index >= len(self._at):
            self._at.append(self._thrown_back(self._at[-1] + self._step * self._chance.normal()))
        return math.exp(self._at[index])

    def _thrown_back(self, value: float) -> float:
        period = 2 * self._most
        value = abs(value) % period
        return min(value, period - value)


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded factors, each for a while; after the last it begins anew."""

    factors: tuple[float, ...]
    each_s: float

    def factor(self, at_s: float) -> float:
        """See `Slowdown`."""
        return self.factors[int(max(at_s, 0.0) / self.each_s) % len(self.factors)]


@dataclass(frozen=True, slots=True)
class Recording:
    """Where a trace is: a column of a CSV file with a line of names, and which of its rows."""

    file: str
    column: str
    only: tuple[str, str] | None
    """Name of a column, and the text that it holds in the rows that count."""
    each_s: float

    def trace(self, rows: Sequence[Mapping[str, str | None]]) -> Trace:
        """The pattern that rows of the file give: their values over the least one that any row of the file has.

        So machines that were recorded in one file are as uneven as they were. `ValueError` says what is wrong.
        """
        if not rows or self.column not in rows[0]:
            raise ValueError(self._lacks(self.column, rows))
        if self.only is not None and self.only[0] not in rows[0]:
            raise ValueError(self._lacks(self.only[0], rows))
        values = [self._value(row, number) for number, row in enumerate(rows, 2)]
        least = min(values)
        chosen = [
            value / least
            for value, row in zip(values, rows, strict=True)
            if self.only is None or row[self.only[0]] == self.only[1]
        ]
        if not chosen:
            assert self.only is not None
            raise ValueError(f"{self.file}: no row has {self.only[1]!r} as {self.only[0]!r}")
        if max(chosen) > MOST:
            raise ValueError(
                f"{self.file}: {self.column!r} has {max(values):g} and {least:g}, whose ratio is above {MOST:g}"
            )
        return Trace(tuple(chosen), self.each_s)

    def _lacks(self, column: str, rows: Sequence[Mapping[str, str | None]]) -> str:
        names = ", ".join(map(repr, rows[0])) if rows else "no rows"
        return f"{self.file} has no column {column!r}, but {names}"

    def _value(self, row: Mapping[str, str | None], line: int) -> float:
        text = row[self.column] or ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ValueError(
                f"{self.file}, line {line}: {self.column!r} is {text!r}, expected a number above 0"
            )
        return value


def text_for(member: str, text: str) -> str:
    """What a setting says for one agent or shard: what names it, else what names nobody; empty if nothing does.

    `ValueError` says what is wrong with it, whoever it is for.
    """
    own, others = "", ""
    for part in filter(None, map(str.strip, text.split(";"))):
        named = _OF_ONE.fullmatch(part)
        pattern = named[2].strip() if named else part
        read(pattern)
        if named is None:
            others = pattern
        elif named[1] == member:
            own = pattern
    return own or others


def read(text: str) -> Slowdown | Recording:
    """Read one pattern. `ValueError` says what is wrong, and what to write."""
    kind, _, rest = text.partition(":")
    try:
        match kind:
            case "factor":
                return Step(1.0, _factor(rest))
            case "step":
                (before, after), at_s = _levels(rest)
                return Step(before, after, at_s)
            case "square":
                (first, second), each_s = _levels(rest)
                return Square(first, second, _above_0(each_s))
            case "walk":
                return _walk(rest)
            case "trace":
                return _recording(rest)
        raise ValueError(f"{kind!r} is no pattern")
    except ValueError as error:
        raise ValueError(f"{error} in {text[:200]!r}; expected {FORMS}") from None


def _levels(text: str) -> tuple[tuple[float, float], float]:
    """``1:3@5s``, where ``1:`` may be left out."""
    levels, _, time = text.partition("@")
    first, colon, second = levels.partition(":")
    both = (_factor(first), _factor(second)) if colon else (1.0, _factor(first))
    return both, _seconds(time)


def _walk(text: str) -> Walk:
    fields, at, time = text.partition("@")
    given: dict[str, str] = {}
    for field in filter(None, fields.split(",")):
        name, equals, value = field.partition("=")
        if not equals or name not in ("seed", "step", "most"):
            raise ValueError(f"{field!r} is none of seed=, step= and most=")
        given[name] = value
    seed = given.get("seed", "0")
    if not re.fullmatch(r"[0-9]{1,18}", seed):
        raise ValueError(f"seed {seed!r} is no whole number from 0")
    most = _factor(given["most"]) if "most" in given else WALK_MOST
    if most <= 1:
        raise ValueError("most=1 leaves nothing to walk in")
    step = _number(given["step"]) if "step" in given else WALK_STEP
    return Walk(int(seed), _above_0(step), most, _above_0(_seconds(time)) if at else 1.0)


def _recording(text: str) -> Recording:
    where, _, time = text.rpartition("@")
    file, _, column = where.rpartition("#")
    if not file or not column:
        raise ValueError("file, column or time is missing")
    column, condition, only = column.partition("?")
    name, equals, value = only.partition("=")
    if condition and not (name and equals):
        raise ValueError(f"{only!r} does not say which rows")
    return Recording(file, column, (name, value) if condition else None, _above_0(_seconds(time)))


def _factor(text: str) -> float:
    factor = _number(text)
    if not 1 <= factor <= MOST:
        raise ValueError(f"a factor of {factor:g}, which is not from 1 to {MOST:g},")
    return factor


def _seconds(text: str) -> float:
    if (found := _TIME.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is no time such as 5s, 300ms or 2min")
    return _number(found[1]) * UNITS_S[found[2]]


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is no number")
    return number


def _above_0(value: float) -> float:
    if value <= 0:
        raise ValueError("0 where it must be more")
    return value
