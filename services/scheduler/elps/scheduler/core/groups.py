"""Groups of jobs: a weight and a quota each, kept under whatever policy decides.

A group with a weight counts as much as one job of that weight, shared after theirs by its jobs with a place and those
that can be given one. A quota bounds what they all have: the policy is told of no more that they could take, and what
its decision gives beyond that is left out. Where a policy changes sizes, jobs give way to a newcomer of their own group
for which the quota leaves no room. Else nothing is taken from a group that is over its quota, which may have been
lowered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from elps.contracts.ids import JobId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.places import counted, too_large
from elps.scheduler.core.policy import Decision, Facts, HeldFact, Policy, QueuedFact, Resize

EXPECTED = "expected text like 'vision=weight:2,workers:8,shards:4; nlp=workers:4'"


@dataclass(frozen=True)
class Group:
    """What is set for one."""

    weight: float | None = None
    workers: int | None = None
    shards: int | None = None


def read(text: str) -> dict[str, Group]:
    """Groups by name; `ValueError` says what is wrong. Empty text: none."""
    groups: dict[str, Group] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, rules = part.partition("=")
        if not equals or not name.strip() or name.strip() in groups:
            raise ValueError(f"{part!r}: {EXPECTED}, each group once")
        groups[name.strip()] = _group(part, rules)
    return groups


def _group(part: str, rules: str) -> Group:
    found: dict[str, float] = {}
    for rule in rules.split(","):
        what, _, number = (word.strip() for word in rule.partition(":"))
        try:
            value = float(number)
        except ValueError:
            raise ValueError(f"{part!r}: {number!r} is no number; {EXPECTED}") from None
        whole = what == "weight" or value.is_integer()
        if what not in ("weight", "workers", "shards") or not 0 < value < 1e6 or not whole:
            raise ValueError(f"{part!r}: {rule.strip()!r}; {EXPECTED}")
        found[what] = value
    return Group(
        weight=found.get("weight"),
        workers=int(found["workers"]) if "workers" in found else None,
        shards=int(found["shards"]) if "shards" in found else None,
    )


Job = TypeVar("Job", HeldFact, QueuedFact)


class Grouped:
    """A policy whose decisions keep to the groups' rules."""

    def __init__(self, policy: Policy, groups: Mapping[str, Group]) -> None:
        self._policy, self._groups = policy, dict(groups)
        self.name, self.resizes, self.told_held = policy.name, policy.resizes, True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        left = {name: _Left(group, name, facts) for name, group in self._groups.items()}
        offered: list[QueuedFact] = []
        waiting: list[QueuedFact] = []
        waits: list[tuple[JobId, str]] = []
        for job in facts.queued:
            group = left.get(job.group)
            if group is None or too_large(job, facts):
                offered.append(job)  # one that is too large waits, and takes nothing
            elif why := group.too_much(job):
                waits.append((job.job, why))
                waiting.append(job)
            else:
                offered.append(group.narrowed(job))
        sums = self._sums(facts, offered)
        held = [left[j.group].bounded(j) if j.group in left else j for j in facts.held]
        decision = self._policy.decide(
            replace(
                facts,
                queued=tuple([self._weighted(job, sums) for job in offered]),
                held=tuple([self._weighted(job, sums) for job in held]),
            )
        )
        if self.resizes:
            decision = self._giving_way(facts, decision, waiting)
        return self._kept(facts, replace(decision, waits=(*decision.waits, *waits)))

    def _giving_way(
        self, facts: Facts, decision: Decision, waiting: Sequence[QueuedFact]
    ) -> Decision:
        """Have jobs of each group give way to the first that its quota has no room for, if they can.

        One after the other: not while others of the group change their size.
        """
        changed = {resize.job for resize in decision.resizes}
        done = {job.group for job in facts.held if job.job in changed}
        donors: dict[str, _Donors] = {}
        gives: list[Resize] = []
        for job in waiting:
            if job.group in done:
                continue
            if (own := donors.get(job.group)) is None:
                left = _Left(self._groups[job.group], job.group, facts)
                own = donors[job.group] = _Donors(left, job.group, facts)
            if given := own.give_way(job):
                gives += given
                done.add(job.group)
        return replace(decision, resizes=(*decision.resizes, *gives))

    def _sums(self, facts: Facts, offered: Sequence[QueuedFact]) -> dict[str, float]:
        """What the jobs of each group weigh that its weight is shared by.

        Those with a place, and of those that wait the ones in front whose least the pool can give: else a long queue
        would make the group's running jobs count for nothing.
        """
        sums: dict[str, float] = {}
        for job in facts.held:
            sums[job.group] = sums.get(job.group, 0.0) + job.weight
        room = facts.worker_slots - sum(job.least for job in facts.held)
        for waits in offered:
            if too_large(waits, facts):
                continue
            room -= waits.workers.min
            if room < 0:
                break
            sums[waits.group] = sums.get(waits.group, 0.0) + waits.weight
        return sums

    def _weighted(self, job: Job, sums: Mapping[str, float]) -> Job:
        """A job with its part of its group's weight."""
        group = self._groups.get(job.group)
        if group is None or group.weight is None:
            return job
        part = job.weight / max(job.weight, sums.get(job.group, 0.0))
        return replace(job, weight=group.weight * part)

    def _kept(self, facts: Facts, decision: Decision) -> Decision:
        """Without what several of a group would get beyond its quota."""
        left = {name: _Left(group, name, facts) for name, group in self._groups.items()}
        names = {j.job: j.group for j in facts.held} | {j.job: j.group for j in facts.queued}
        before = {j.job: j for j in facts.held}
        for start in decision.starts:
            if (group := left.get(names[start.job])) is not None:
                group.take(len(start.agents), len(start.shards))
        over: set[JobId] = set()
        for resize in sorted(decision.resizes, key=lambda r: _more(before[r.job], r)):
            more = _more(before[resize.job], resize)
            group = left.get(names[resize.job])
            if group is not None and max(more) > 0 and not group.takes(*more):
                over.add(resize.job)
        kept = tuple(resize for resize in decision.resizes if resize.job not in over)
        return replace(decision, resizes=kept)


def _more(job: HeldFact, resize: Resize) -> tuple[int, int]:
    return resize.workers - job.workers, resize.shards - job.shards


class _Left:
    """What one group may still take."""

    def __init__(self, group: Group, name: str, facts: Facts) -> None:
        held = [job for job in facts.held if job.group == name]
        self._name, self._group = name, group
        workers, shards = sum(j.workers for j in held), sum(j.shards for j in held)
        self._workers = 10**9 if group.workers is None else group.workers - workers
        self._shards = 10**9 if group.shards is None else group.shards - shards

    def too_much(self, job: QueuedFact) -> str:
        """Why a job that waits cannot be given its least now; empty: it can, as far as the group goes."""
        lacking = []
        if self._group.workers is not None and job.workers.min > max(self._workers, 0):
            lacking.append(_told(job.workers.min, "worker", self._workers, self._group.workers))
        if self._group.shards is not None and job.shards.min > max(self._shards, 0):
            lacking.append(_told(job.shards.min, "shard", self._shards, self._group.shards))
        if not lacking:
            return ""
        return (
            f"the quota of its group {self._name}: {'; '.join(lacking)}; others go ahead meanwhile"
        )

    def lacking(self, job: QueuedFact) -> tuple[int, int]:
        """Workers and shards of its least for which the quota leaves no room."""
        return (
            max(0, job.workers.min - max(self._workers, 0)),
            max(0, job.shards.min - max(self._shards, 0)),
        )

    def narrowed(self, job: QueuedFact) -> QueuedFact:
        """A job that may start, with what it may have at most; that is counted as if it got it."""
        workers, shards = min(job.workers.max, self._workers), min(job.shards.max, self._shards)
        self.take(workers, shards)
        if (workers, shards) == (job.workers.max, job.shards.max):
            return job
        return replace(
            job,
            workers=Size(min=job.workers.min, max=workers),
            shards=Size(min=job.shards.min, max=shards),
        )

    def bounded(self, job: HeldFact) -> HeldFact:
        """A job with a place, which grows no further than the quota goes."""
        most = max(job.workers, min(job.bounds.max, job.workers + max(self._workers, 0)))
        widest = max(job.shards, min(job.shard_bounds.max, job.shards + max(self._shards, 0)))
        return replace(
            job,
            bounds=Size(min=min(job.bounds.min, most), max=most),
            shard_bounds=Size(min=min(job.shard_bounds.min, widest), max=widest),
        )

    def take(self, workers: int, shards: int) -> None:
        """Count something off."""
        self._workers, self._shards = self._workers - workers, self._shards - shards

    def takes(self, workers: int, shards: int) -> bool:
        """Count it off if it is there."""
        if max(workers, 0) > max(self._workers, 0) or max(shards, 0) > max(self._shards, 0):
            return False
        self.take(workers, shards)
        return True


class _Donors:
    """The jobs of one group that can give something up to another of theirs."""

    def __init__(self, left: _Left, name: str, facts: Facts) -> None:
        """`left` as the jobs with a place leave it."""
        self._left = left
        own = [job for job in facts.held if job.group == name and job.movable]
        own.sort(key=lambda h: (not h.fed, -h.workers, h.job))
        #: each with the workers and shards that it can do without
        self._able = [
            (job, max(0, job.workers - job.bounds.min), _spare_shards(job)) for job in own
        ]
        self._spare = sum(w for _, w, _ in self._able), sum(s for _, _, s in self._able)

    def give_way(self, to: QueuedFact) -> list[Resize]:
        """What they give up so that one has its least; nothing where that would not be enough."""
        workers, shards = self._left.lacking(to)
        if workers > self._spare[0] or shards > self._spare[1]:
            return []
        gives = []
        for donor, spare, narrow in self._able:
            fewer, narrower = min(workers, spare), min(shards, narrow)
            if fewer or narrower:
                workers, shards = workers - fewer, shards - narrower
                size = donor.workers - fewer, donor.shards - narrower
                gives.append(Resize(donor.job, *size, f"gives way to {to.job}, of its group"))
        return gives


def _spare_shards(job: HeldFact) -> int:
    """One at a time."""
    return min(1, max(0, job.shards - job.shard_bounds.min), len(job.gives))


def _told(asked: int, what: str, left: int, quota: int) -> str:
    if asked > quota:
        return f"it asks for {counted(asked, what)}, more than the {quota} that it may have"
    return f"it asks for {counted(asked, what)}, {quota - left} of {quota} are taken"
