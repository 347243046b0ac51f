"""What a leader tells the world about its job: progress, events, rows."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec

import msgspec
import structlog

from elps.contracts.ids import WorkerId
from elps.contracts.job import Feedback
from elps.contracts.messages import HostJob, JobEvent
from elps.contracts.state import Progress
from elps.contracts.telemetry import ExtraLeases, IterationRow, WorkerTiming
from elps.contracts.texts import LOGGED_CHARACTERS, REASON_CHARACTERS, shortened
from elps.optim.schedule import factor
from elps.psshard.bridge import Bridge
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Evaluated, IterationDone, Remark, Timing
from elps.psshard.core.inheriting import Inheritance
from elps.psshard.core.rules import Rules
from elps.psshard.core.stopping import Trend
from elps.psshard.core.throttle import MOST_S
from elps.psshard.origin import Source
from elps.psshard.trainers import Around
from elps.storage.checkpoints import Manifest
from elps.stream.interval import Interval

log = structlog.get_logger()


P = ParamSpec("P")
Method = Callable[Concatenate["Reporter", P], None]


def _one_at_a_time(method: Method[P]) -> Method[P]:
    """Hold the reporter's lock, so that no change is lost between reading the progress and replacing it."""

    @functools.wraps(method)
    def locked(self: Reporter, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with self._lock:
            method(self, *args, **kwargs)

    return locked


def gives_feedback(wanted: Feedback, iterations: int, before: float, passes: float) -> bool:
    """Whether a job gives its early feedback with an iteration, as far as iterations and passes say that.

    Evaluations have a beat of their own. `before` and `passes`: passes that were done before it and are done now.
    """
    if wanted == Feedback():
        return before < 1.0 <= passes
    return iterations == wanted.iterations or before < wanted.passes <= passes


class Reporter:
    """Keeps a job's progress and sends its events and rows; any thread may call it."""

    def __init__(self, host: HostJob, bridge: Bridge) -> None:
        self._host, self._bridge = host, bridge
        self._lock = threading.RLock()  #: every change is of the whole progress
        self.progress: Progress = host.progress
        self._saving: tuple[int, float] | None = None  #: checkpoint under way, since when
        self._rests_s = 0.0  #: what its writers may rest in all
        self._rules: Rules | None = None
        self._steps = 0  #: optimizer steps, for the learning rate shown
        self._around: dict[WorkerId, Around] = {}  #: as last told, of those with a part in a row
        self._waiting: dict[WorkerId, float] = {}  #: of those without: cores that they can have

    @_one_at_a_time
    def opened(self, rules: Rules, source: Source) -> None:
        """The job begins, or begins again."""
        self._rules, self._saving = rules, None
        start, steps, checkpoint, skips = 0, 0, None, list[tuple[int, int]]()
        if isinstance(source, Manifest):
            start = checkpoint = source.iteration
            steps, skips = max((p.steps for p in source.partitions), default=0), source.skips
        elif isinstance(source, Inheritance):
            start, steps, checkpoint = source.version, source.steps, self.progress.checkpoint
            skips = [(i.lo, i.hi) for i in source.skips]
            known = self.progress.skipped_samples  # as the scheduler has heard, which may be late
            self._change(skipped_samples=max(known, sum(hi - lo for lo, hi in skips)))
        self._steps = steps
        redone = max(0, self.progress.iteration - start)
        self._change(
            iteration=start,
            iterations=rules.iterations,
            passes=rules.geometry.passes(start),
            samples=_counted(rules, start, skips),
            checkpoint=checkpoint,
            redone_iterations=self.progress.redone_iterations + redone,
        )
        if not isinstance(
            source, Inheritance
        ):  # evaluations that are done again are not counted twice
            self._change(**_trend(source or Progress())._asdict())
        known_at = self.progress.metrics_iteration
        told_at = source.metrics_iteration if isinstance(source, Manifest) else None
        # The scheduler may not have heard of the newest evaluation, which is not done again.
        if isinstance(source, Manifest) and told_at is not None and told_at > (known_at or -1):
            self._change(metrics=source.metrics, metrics_iteration=source.metrics_iteration)

    @property
    def trend(self) -> Trend:
        """How the metric that the job watches has come along."""
        return _trend(self.progress)

    def evaluated_at(self, source: Source) -> int:
        """The newest version that needs no evaluation when the job begins there; -1 if there is none."""
        known = self.progress if isinstance(source, Inheritance) else source
        at = known.metrics_iteration if known is not None else None
        return at if at is not None else -1

    @_one_at_a_time
    def follow(self, clock: Clock, now: float) -> None:
        """Take over where the clock is."""
        self._change(iteration=clock.t, iterations=clock.end, training_s=clock.trained_s(now))

    def news(self, news: IterationDone | Evaluated | Remark, plan: int, n: int) -> None:
        """Send what the clock has to tell; `n` is of the epoch under which it happened."""
        match news:
            case IterationDone():
                self.iteration_done(news, plan, n)
            case Evaluated(version, metrics, trend):
                self.evaluated(version, metrics, trend)
            case Remark(happened, reason, about, iteration):
                self.event(happened, reason, worker=about, iteration=iteration)

    @_one_at_a_time
    def noticed(self, worker: WorkerId, around: Around) -> None:
        """Take what a trainer's machine has left; it goes with the next row."""
        self._around[worker] = around

    @_one_at_a_time
    def noticed_waiting(self, worker: WorkerId, around: Around) -> None:
        """Take what it has left for a trainer that waits; it goes with the rows in which that has no part."""
        if around.cpu_process is not None:
            self._waiting[worker] = around.cpu_process

    @_one_at_a_time
    def gone(self, worker: WorkerId) -> None:
        """A trainer's connection has ended."""
        self._waiting.pop(worker, None)

    @_one_at_a_time
    def iteration_done(self, done: IterationDone, plan: int, n: int) -> None:
        """Send an iteration's row."""
        assert self._rules is not None
        document, geometry = self._host.document, self._rules.geometry
        self._steps += done.count > 0
        step = self._steps if self._rules.staleness is None else done.iteration + 1
        rate = factor(document.schedule, max(step, 1), self._rules.iterations)
        lr = document.optimizer.lr * rate
        passes = geometry.passes(done.iteration + 1)
        self._waiting = {w: c for w, c in self._waiting.items() if w not in done.timings}
        around = self._around = {w: self._around.get(w, Around()) for w in done.timings}
        self._bridge.row(
            self._host.job,
            IterationRow(
                iteration=done.iteration,
                passes=passes,
                samples=done.count,
                skipped=done.skipped,
                loss=done.loss,
                duration_s=done.duration_s,
                at=time.time(),
                term=self._host.term.number,
                plan=plan,
                n=n,
                lr=lr,
                workers=[
                    WorkerTiming(
                        worker=worker,
                        samples=t.samples,
                        compute_s=t.compute_s,
                        pull_s=t.pull_s,
                        wait_s=t.wait_s,
                        push_s=t.push_s,
                        lease_s=t.lease_s,
                        extra=_extra(t),
                        **around[worker]._asdict(),
                    )
                    for worker, t in done.timings.items()
                ],
                waiting=dict(self._waiting),
            ),
        )
        loss = done.loss if done.loss is not None else self.progress.loss
        samples, before = self.progress.samples + done.count, self.progress.passes
        self._change(passes=passes, loss=loss, samples=samples)
        if gives_feedback(document.feedback, done.iteration + 1, before, passes):
            self._bridge.beat()  # the user waits for it, and so do the jobs behind this one

    @_one_at_a_time
    def evaluated(self, version: int, metrics: dict[str, float], trend: Trend) -> None:
        """Send an evaluation."""
        shown = {n: v if math.isfinite(v) else None for n, v in metrics.items()}
        self._change(metrics=shown, metrics_iteration=version, **trend._asdict())
        self.event("evaluated", "", iteration=version, metrics=shown)

    def saving(self, version: int | None, now: float, *, hurry: bool = False) -> None:
        """A checkpoint is being written; None: it was given up."""
        rests_s = 0.0 if hurry else MOST_S
        if version is None:
            self._saving = None
        elif self._saving is None or (self._saving[0], self._rests_s) != (version, rests_s):
            self._saving, self._rests_s = (version, now), rests_s

    def lag(self, now: float, limit_s: float, trouble: str) -> str:
        """Which checkpoint takes longer than `limit_s` and its writers' rests, for people; empty when none does."""
        if self._saving is None:
            return ""
        if now - self._saving[1] <= (limit_s if trouble else limit_s + self._rests_s):
            return ""
        version, since = self._saving
        lags = f"checkpoint of version {version} is not in the store after {now - since:.0f} s"
        return f"{lags}: {trouble}" if trouble else lags

    @_one_at_a_time
    def checkpointed(self, version: int) -> None:
        """Send word of a valid checkpoint."""
        self._saving = None
        self._change(checkpoint=version)
        self.event("checkpointed", f"version {version} is in the store", iteration=version)

    @_one_at_a_time
    def skipped(self, interval: Interval) -> None:
        """Count skipped samples."""
        self._change(skipped_samples=self.progress.skipped_samples + interval.size)

    def event(
        self,
        what: str,
        reason: str,
        *,
        worker: WorkerId | None = None,
        iteration: int | None = None,
        metrics: dict[str, float | None] | None = None,
    ) -> None:
        """Send an event of the job and log it."""
        at = iteration if iteration is not None else self.progress.iteration
        why = shortened(reason, LOGGED_CHARACTERS)
        log.info(what, job=self._host.job, reason=why, worker=worker, iteration=at)
        self._bridge.event(
            JobEvent(
                job=self._host.job,
                what=what,
                at=time.time(),
                reason=shortened(reason, REASON_CHARACTERS),
                iteration=at,
                worker=worker,
                metrics=metrics or {},
                term=self._host.term.number,
            )
        )

    def _change(self, **changes: object) -> None:
        self.progress = msgspec.structs.replace(self.progress, **changes)


def _extra(timing: Timing) -> ExtraLeases | None:
    if not timing.extra_leases:
        return None
    return ExtraLeases(
        leases=timing.extra_leases,
        samples=timing.extra_samples,
        compute_s=timing.extra_s,
        wait_s=timing.extra_wait_s,
    )


def _trend(known: Progress | Manifest) -> Trend:
    return Trend(known.best, known.best_iteration, known.stale)


def _counted(rules: Rules, start: int, skips: Iterable[tuple[int, int]]) -> int:
    """Samples that count in the iterations before `start`: those done twice count once."""
    done = rules.geometry.iteration(start).lo
    return done - sum(min(hi, done) - lo for lo, hi in skips if lo < done)
