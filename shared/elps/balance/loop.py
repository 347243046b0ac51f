"""Balanced batches for someone's own training loop, without any service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elps.balance.balancer import Balancer, Decision
from elps.balance.newcomers import Member
from elps.balance.observing import Observation
from elps.balance.policy import Policy
from elps.contracts.ids import WorkerId


class LoopBalancer:
    """Sizes for the workers of a loop that one writes oneself, in PyTorch or anything else.

    Every iteration: let each worker compute `sizes` samples, report how long each took, go on with the new sizes.
    Each process of a distributed loop can keep its own: the same reports give the same sizes.

    A machine twice as fast as the other, and the batches that follow it:

    >>> from elps.balance import LoopBalancer
    >>> balancer = LoopBalancer(["fast", "slow"], batch=90)
    >>> balancer.sizes
    {'fast': 45, 'slow': 45}
    >>> for _ in range(10):
    ...     seconds = {"fast": balancer.sizes["fast"] / 200, "slow": balancer.sizes["slow"] / 100}
    ...     sizes = balancer.report(seconds)
    >>> sizes
    {'fast': 60, 'slow': 30}

    Gradients are to be *summed* over samples and divided by the whole batch. Where a framework averages the gradients
    of means over workers, as PyTorch's DistributedDataParallel does, multiply each worker's mean loss by its weight
    first, and the result is the same:

    >>> balancer.weights
    {'fast': 1.3333333333333333, 'slow': 0.6666666666666666}
    """

    def __init__(
        self,
        workers: Sequence[str],
        batch: int,
        *,
        policy: str = "lb-bsp",
        granule: int = 1,
        maximum: int | None = None,
    ) -> None:
        """Begin with equal batches. `maximum` bounds each worker's batch (memory); `policy` as `Policy.named`."""
        members = [Member(WorkerId(name), maximum=maximum) for name in workers]
        if not members:
            raise ValueError("there are no workers to balance")
        self._batch, self._iteration = batch, 0
        # A batch is given out whole here: nobody could be lent more of it.
        chosen = replace(Policy.named(policy), may_tail=False)
        self._balancer = Balancer(batch, members, granule=granule, policy=chosen)

    @property
    def sizes(self) -> dict[str, int]:
        """Samples for each worker in the next iteration; they sum to the batch."""
        return {str(name): size for name, size in self._balancer.decision.sizes.items()}

    @property
    def weights(self) -> dict[str, float]:
        """Factors that turn the mean over workers of their mean losses into the mean over the batch."""
        sizes = self.sizes
        return {name: size * len(sizes) / self._batch for name, size in sizes.items()}

    @property
    def decision(self) -> Decision:
        """The last decision, with its reason."""
        return self._balancer.decision

    def report(
        self, seconds: Mapping[str, float], *, cpu: Mapping[str, float] | None = None
    ) -> dict[str, int]:
        """Say how long each worker computed its `sizes`, and optionally how much processor time it has now (cores).

        Workers may be missing, and times may be nonsense: they are not believed then. Gives the new sizes.
        """
        self._iteration += 1
        self._balancer.observe(
            self._iteration,
            [
                Observation(name, size, seconds.get(name), cpu_process=(cpu or {}).get(name))
                for name, size in self._balancer.decision.sizes.items()
            ],
        )
        return self.sizes
