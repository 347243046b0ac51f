"""What a leader's job is doing, in a word and a reason for people."""

from __future__ import annotations

from elps.contracts.messages import Phase
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Finish, Rest

QUIET_S = 1.0
"""A wait that lasts longer is told, with whom it is for."""


def has_values(clock: Clock) -> bool:
    """Whether every partition has its first values, so that trainers may be lent work.

    Not whether their gate is announced: that waits for an evaluation of them, for which trainers are needed.
    """
    return min(clock.held.values()) >= clock.start


def live_phase(
    clock: Clock | None,
    now: float,
    *,
    unreachable: str,
    beginning: str,
    from_store: bool,
    store_trouble: str,
    lag: str,
    pausing: bool,
) -> tuple[Phase, str]:
    """Phase and reason of a job that has not ended; `now` is monotonic seconds, `beginning` what an opening waits for,
    `from_store` whether the first values are those of a checkpoint.

    An empty reason means that training goes on as it should.
    """
    if unreachable:
        return "waiting", f"cannot reach {unreachable}"
    if clock is None:
        return "loading", beginning
    if not has_values(clock):
        behind = ", ".join(s for s, v in clock.held.items() if v < clock.start)
        refused = (
            f"; the store refuses them: {store_trouble}" if from_store and store_trouble else ""
        )
        return "loading", f"waiting for the first values on {behind}{refused}"
    if not clock.workers and clock.needs_workers:
        return "waiting", "no worker is ready"
    if clock.over:
        return "waiting", store_trouble or "going back to the newest checkpoint"
    if not clock.begun:
        return "loading", clock.waiting_for(now)
    quiet = clock.waiting_for(now) if clock.quiet_s(now) > QUIET_S else ""
    return ("pausing" if pausing else "running"), "; ".join(filter(None, (quiet, lag)))


def end_of(command: Finish | Rest) -> tuple[Phase, str]:
    """Phase and reason of a job that has come to its end, or rests."""
    if isinstance(command, Finish):
        return "finished", f"{command.reason}, at iteration {command.version}"
    return "paused", f"paused at iteration {command.version}"
