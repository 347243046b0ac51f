"""When nobody waits: who is given what is free, and which worker changes its job.

Gains are logarithms of how many times as fast a job would be, times what its speed counts for (`sizing.worth`). Over a
horizon a gain is so many seconds of training, and a change has to bring more of them than it costs (`costs`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

from elps.contracts.ids import AgentId, JobId
from elps.scheduler.core.gain import LEAST_GAIN
from elps.scheduler.core.places import FreeSlots, Speeds
from elps.scheduler.core.policy import Facts, HeldFact
from elps.scheduler.core.sizing import Sizing, worth


class Growing:
    """The part of one decision that is about jobs with a place alone."""

    def __init__(
        self, facts: Facts, sizing: Sizing, agents: Mapping[AgentId, int], speeds: Speeds
    ) -> None:
        """`agents`: slots that are free, of agents that have any."""
        self._facts, self._sizing = facts, sizing
        self._held = sizing.held
        self._free = FreeSlots(agents, speeds)
        self._lacking = {lame.job for lame in facts.running if lame.missing}

    def give_workers(self) -> bool:
        """Give the slots that are free to whoever gains most by them, the fastest machines first; whether any was."""
        free, before = self._free, self._free.left
        able = self._receivers(rested=False) if free.left else []
        while able and free.left:
            speed = free.speed
            ranked = self._ranked(able, speed)
            while ranked and free.left and free.speed == speed:
                best = self._held[ranked.pop()[1]]
                if not free.take(best):
                    continue
                self._sizing.resize(best, 1, _because("a slot is free", best))
                size = self._sizing.size(best)
                if size < best.bounds.max and (by := best.gain_by(speed, size)) > LEAST_GAIN:
                    insort(ranked, (worth(best) * by, best.job))
            if free.speed == speed:
                break  # nobody has a use for such a one
            able = [job for job in able if self._sizing.size(job) < job.bounds.max]
        return free.left < before

    def _ranked(self, able: list[HeldFact], speed: float) -> list[tuple[float, JobId]]:
        """Who gains enough by a worker of such a speed to pay for the change, the one that gains most at the end."""
        if speed == 1.0:
            found = [(j.gained, j) for j in able if self._sizing.size(j) == j.workers]
            able = [j for j in able if self._sizing.size(j) != j.workers]
        else:
            found = []
        found += [(j.gain_by(speed, self._sizing.size(j)), j) for j in able]
        return sorted(
            (worth(j) * gained, j.job)
            for gained, j in found
            if gained > LEAST_GAIN and gained * j.horizon_s > j.cost_s
        )

    def give_shard(self) -> None:
        """Give a shard that is free to the first that can take it."""
        for job in self._facts.held:
            if not (job.room and job.movable and job.job not in self._sizing.why):
                continue
            if job.calm_s >= job.rests_s and job.shards < job.shard_bounds.max:
                self._sizing.resize(job, 0, "a shard is free", shards=1)
                return

    def move_worker(self) -> None:
        """Let one worker change its job if that pays, or have a job give up those without which it is faster."""
        able = self._receivers(rested=True)
        if self._free.left and any(self._free.usable(job) for job in able):
            able = []  # they are given what is free
        barred = self._lacking | self._sizing.why.keys()
        donors = [
            j
            for j in self._facts.held
            if j.workers > j.bounds.min
            and (able or j.speeds)
            and j.calm_s >= j.rests_s
            and j.movable
            and j.job not in barred
        ]
        if not donors:
            return
        lost, donor = min((_losing(j, j.lost), j.job) for j in donors)
        gives = self._held[donor]
        if lost < 0:
            slow = gives.workers - gives.best(gives.workers)
            self._sizing.resize(gives, -slow, "is faster without those that hold the others up")
            return
        if able and self._moves(gives, able, fastest=False):
            return
        mixed = [j for j in donors if j.speeds and j.fastest > j.slowest]
        if able and mixed:
            _, donor = min((_losing(j, j.lost_fastest), j.job) for j in mixed)
            self._moves(self._held[donor], able, fastest=True)

    def _moves(self, gives: HeldFact, able: list[HeldFact], *, fastest: bool) -> bool:
        """Have a job give its slowest worker, or its fastest, to the one that gains most by it; False if that does not
        pay.
        """
        speed = gives.fastest if fastest else gives.slowest
        lost = gives.lost_fastest if fastest else gives.lost
        ranked = [(_winning(j, speed, j.horizon_s), j.job) for j in able if j is not gives]
        if not ranked:
            return False
        _, to = max(ranked)
        takes = self._held[to]
        horizon_s = min(takes.horizon_s, gives.horizon_s)
        costs = worth(gives) * (lost * horizon_s + gives.cost_s)
        enough = _gained(takes, speed) > LEAST_GAIN
        if not enough or _winning(takes, speed, horizon_s) <= costs:
            return False
        self._sizing.resize(gives, -1, _because(f"{to} gains more by it", takes))
        self._sizing.resize(takes, 1, _because(f"gains more by it than {gives.job}", takes))
        if fastest:
            self._sizing.fastest.add(gives.job)
        return True

    def _receivers(self, *, rested: bool) -> list[HeldFact]:
        """Jobs that can be given a worker more, whose sizes are as they were told; `rested`: by another job.

        What a job has given up it is given again when it has rested, or something has happened since.
        """
        barred = self._lacking | self._sizing.why.keys()
        quiet_s = self._facts.quiet_s
        return [
            j
            for j in self._facts.held
            if j.workers < j.bounds.max
            and (not j.fed or j.calm_s >= (j.rests_s if rested else j.settles_s))
            and (j.trend >= 0 or j.calm_s >= j.rests_s or quiet_s < j.calm_s)
            and j.growable
            and j.job not in barred
        ]


def _losing(job: HeldFact, lost: float) -> float:
    """Seconds of training that a worker fewer takes, for what they count; below 0 where to have fewer pays anyway."""
    return worth(job) * (lost * job.horizon_s + job.cost_s)


def _winning(job: HeldFact, speed: float, horizon_s: float) -> float:
    """Seconds of training that a worker more of such a speed brings, for what they count."""
    return worth(job) * (_gained(job, speed) * horizon_s - job.cost_s)


def _gained(job: HeldFact, speed: float) -> float:
    return job.gained if speed == 1.0 else job.gain_by(speed, job.workers)


def _because(why: str, job: HeldFact) -> str:
    """With what its curve has to do with it."""
    if not job.fed or job.promise == 1.0:
        return why
    falls = "still falls fast" if job.promise > 1 else "has flattened"
    return f"{why} (counted {job.promise:.2g} times, since the loss of {job.job} {falls})"
