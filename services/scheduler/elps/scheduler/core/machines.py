"""How fast agents are beside a usual one, as the jobs on them measure it: machines differ, and are used by others too.

A job whose batches follow the workers' speeds knows how long a sample takes each of its workers. That is
``work of the job's sample / speed of the agent``, and neither is known by itself. So a job's work is told from those of
its agents of which a speed is known already, by their mean, and the others are measured by it. An agent that was
never measured is expected to be as fast as others of its class, else as a usual one.

By their mean, so that what some are measured to be slower by makes the others faster, and noise cancels: machines are
held up now and then, but never hurried, and told by their median all would seem slower and slower. Where some
are faster than a usual one, some slower, and none is one, the median of them becomes it.

Speeds are told in steps and leave a step only when they are well out of it, so that noise changes no decision.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elps.contracts.ids import AgentId

STEP = math.log(2) / 4
"""Between two steps, as a logarithm: 19 %. What is nearer to a usual machine counts as one."""
STAYS = 0.75
"""So many steps from its own a speed has to be before it is another one."""
FARTHEST = 16
"""Steps: a sixteenth, or 16 times as fast, is the most that is believed."""
NEWEST = 0.1
"""Weight of the newest measurement."""
FADES_S = 600.0
"""An agent that was not measured for so long is taken for a usual one of its class again: what slows it down may be
over, and nobody would see it while nothing is given to it."""


@dataclass
class _Known:
    log: float  #: of its speed
    at: float  #: when it was last measured
    kind: str
    step: int = 0

    def settle(self) -> bool:
        """Take another step if the speed is well out of the one that it has; whether it was."""
        if abs(self.log / STEP - self.step) <= STAYS:
            return False
        self.step = round(self.log / STEP)
        return True


class Machines:
    """All agents of which a speed is known."""

    def __init__(self) -> None:
        self._known: dict[AgentId, _Known] = {}
        self._kinds: dict[str, int] = {}  #: median step of those that were measured
        self._faded_at = -math.inf

    @property
    def even(self) -> bool:
        """Whether nothing is known but usual machines."""
        return not self._kinds

    def measured(
        self, at: float, seconds: Mapping[AgentId, float], kinds: Mapping[AgentId, str]
    ) -> None:
        """What a sample of one job takes its workers, by agent, at a time in monotonic seconds."""
        logs = {a: math.log(s) for a, s in sorted(seconds.items()) if s > 0 and math.isfinite(s)}
        expected = {a: self._expected(a, kinds.get(a, "")) for a in logs}
        sure = [logs[a] + speed for a, speed in expected.items() if speed is not None]
        if not sure and len(logs) < 2:
            return  # alone, it says nothing of its machine
        work = math.fsum(sure) / len(sure) if sure else statistics.median(logs.values())
        changed = False
        for agent, log in logs.items():
            found = _believed(work - log)
            known = self._known.get(agent)
            if known is None:
                known = self._known[agent] = _Known(expected[agent] or found, at, "")
            known.log += NEWEST * (found - known.log)
            known.at, known.kind = at, kinds.get(agent, "")
            changed |= known.settle()
        if changed:
            self._classify()
        self.look(at)

    def look(self, at: float) -> None:
        """Time has passed: what was not measured for long is forgotten, also when nobody measures anything any more."""
        if at - self._faded_at > FADES_S / 10:
            self._fade(at)

    def speed(self, agent: AgentId, kind: str = "") -> float:
        """Beside a usual machine, 1: as fast."""
        known = self._known.get(agent)
        step = self._kinds.get(kind, 0) if known is None else known.step
        return math.exp(step * STEP) if step else 1.0

    def _expected(self, agent: AgentId, kind: str) -> float | None:
        if (known := self._known.get(agent)) is not None:
            return known.log
        return self._kinds[kind] * STEP if kind in self._kinds else None

    def _fade(self, at: float) -> None:
        self._faded_at = at
        for agent in [a for a, known in self._known.items() if at - known.at > FADES_S]:
            del self._known[agent]
        self._classify()

    def _center(self) -> None:
        """Where all machines are faster or slower than a usual one, the median one becomes it.

        Where all are faster, or all slower, those between may only be of jobs that measure none.
        """
        found = self._known.values()
        steps = {known.step for known in found}
        if not steps or 0 in steps or min(steps) > 0 or max(steps) < 0:
            return
        usual = statistics.median(known.log for known in found)
        for known in found:
            known.log = _believed(known.log - usual)
            known.settle()

    def _classify(self) -> None:
        """Classes are told apart as soon as a machine is not a usual one."""
        self._center()
        steps: dict[str, list[int]] = {}
        for known in self._known.values():
            steps.setdefault(known.kind, []).append(known.step)
        uneven = any(known.step for known in self._known.values())
        middle = {kind: statistics.median_low(found) for kind, found in steps.items()}
        self._kinds = middle if uneven else {}
        if uneven:
            self._kinds[""] = 0  # of no class nothing is expected


def _believed(log: float) -> float:
    return min(max(log, -FARTHEST * STEP), FARTHEST * STEP)


def stepped(speed: float) -> float:
    """A speed as it would be told."""
    step = round(math.log(speed) / STEP)
    return math.exp(min(max(step, -FARTHEST), FARTHEST) * STEP) if step else 1.0


def power(speeds: Sequence[float], *, held_up: bool) -> float:
    """How many usual workers those of such speeds are worth: what they all do; where batches are equal and the slowest
    holds the others up, what it does, for each of them.
    """
    if not speeds:
        return 0.0
    return len(speeds) * min(speeds) if held_up else math.fsum(speeds)


def worthwhile(offered: Sequence[float], beside: int, slowest: float, least: int) -> int:
    """How many of the workers offered, fastest first, a job takes whose slowest one holds the others up: those with
    which it is fastest, but so many at least. `beside` are those that it has, and `slowest` is the speed of theirs.
    """
    if not beside:
        slowest = max(offered, default=slowest)
    best, found = 0, beside * slowest
    for count, speed in enumerate(offered, 1):
        worth = (beside + count) * min(speed, slowest)
        if worth > found or count <= least:
            best, found = count, worth
    return best
