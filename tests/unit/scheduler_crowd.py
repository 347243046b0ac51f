"""A scheduler whose members do as they are told, to see what its policy makes of it."""

from __future__ import annotations

from scheduler_desk import Desk

from elps.contracts.ids import ShardId
from elps.contracts.state import Progress
from elps.scheduler.core.core import Core
from elps.scheduler.core.eps import Eps
from elps.scheduler.core.policy import Policy


class Crowd(Desk):
    """One shard and some agents of one slot, and leaders that work."""

    def __init__(self, agents: int, policy: Policy | None = None) -> None:
        super().__init__()
        self.core = Core([], self.now, policy=policy or Eps())
        self.wait(3)
        self.shard()
        for n in range(agents):
            self.agent(f"a{n}")
        self.done: dict[str, Progress] = {}

    def go(self, seconds: float) -> None:
        """Everybody does as told, and says so."""
        for _ in range(round(seconds)):
            jobs = [j for j, r in self.core.book.records.items() if r.allocation is not None]
            workers = {w: (j, a) for j in jobs for w, a in self.workers(j).items()}
            for agent in list(self.agents):
                there = [self.trainer(w, job=j) for w, (j, a) in workers.items() if a == agent]
                self.agents[agent]["trainers"] = there
            self.shards["s1"]["jobs"] = [
                self.hosts(
                    job, phase="running", ready=list(self.workers(job)), holders=[ShardId("s1")],
                    obeys=9, progress=self.done.get(job, Progress(iteration=1)),
                )
                for job in jobs
            ]  # fmt: skip
            self.wait(1)

    def sizes(self) -> dict[str, int]:
        return {
            job: len(record.allocation.workers)
            for job, record in self.core.book.records.items()
            if record.allocation is not None
        }
