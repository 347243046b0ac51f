"""Prometheus metrics, made from the state at each scrape: what is not in the state any more has no series.

Labels are bounded: job ids of live jobs (the newest `MAX_JOBS`), names of their metrics, states, phases, kinds. There
is no label for workers, iterations or addresses; those are questions for the API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from elps.contracts.state import JobState
from elps.contracts.telemetry import IterationRow, WorkerTiming
from elps.monitor.core.jobs import Job
from elps.monitor.desk import Desk
from elps.monitor.health import health

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_JOBS = 500
MAX_METRICS = 8
"""Evaluated metrics of a job, in the order of their names."""

_PHASES: dict[str, Callable[[WorkerTiming], float]] = {
    "compute": lambda t: t.compute_s,
    "pull": lambda t: t.pull_s,
    "push": lambda t: t.push_s,
    "wait": lambda t: t.wait_s,
    "lease": lambda t: t.lease_s,
}


class Metrics(Collector):
    """Collects from the desk's state."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._stack()
        yield from self._intake()
        live = [job for job in self._desk.state.jobs.newest(2**31) if not job.ended]
        yield from self._jobs(live[-MAX_JOBS:])
        yield _gauge(
            "elps_jobs_unlisted",
            "Live jobs without series of their own",
            max(0, len(live) - MAX_JOBS),
        )

    def _stack(self) -> Iterator[Metric]:
        desk, now_s = self._desk, self._desk.clock.monotonic()
        build = GaugeMetricFamily("elps_build_info", "Version of the monitor", labels=["version"])
        build.add_metric([desk.version], 1)
        yield build
        up = GaugeMetricFamily(
            "elps_part_up", "Whether a part of the stack is there", labels=["part"]
        )
        for name, part in health(desk.state, now_s, desk.around).parts.items():
            up.add_metric([name], part.status == "ok")
        yield up
        members = GaugeMetricFamily(
            "elps_members", "Processes by kind and liveness", labels=["kind", "liveness"]
        )
        slots = GaugeMetricFamily("elps_slots", "Slots of live members", labels=["kind", "use"])
        shards = [
            (liveness, member.beat.slots, len(member.beat.jobs))
            for member, liveness, _ in desk.state.members.shards.listed(now_s)
        ]
        agents = [
            (liveness, member.beat.slots, len(member.beat.trainers))
            for member, liveness, _ in desk.state.members.agents.listed(now_s)
        ]
        for kind, listed in (("shard", shards), ("agent", agents)):
            for wanted in ("alive", "leaving", "lost"):
                members.add_metric([kind, wanted], sum(found == wanted for found, _, _ in listed))
            alive = [(offered, used) for found, offered, used in listed if found == "alive"]
            slots.add_metric([kind, "free"], sum(max(0, offered - used) for offered, used in alive))
            slots.add_metric([kind, "used"], sum(used for _, used in alive))
        yield members
        yield slots
        states = dict.fromkeys(JobState, 0)
        for job in desk.state.jobs:
            states[job.state] += 1
        family = GaugeMetricFamily(
            "elps_jobs", "Jobs that the monitor keeps, by state", labels=["state"]
        )
        for state, count in states.items():
            family.add_metric([state.value], count)
        yield family

    def _intake(self) -> Iterator[Metric]:
        desk = self._desk
        taken = CounterMetricFamily("elps_monitor_messages", "Messages taken", labels=["source"])
        for source, count in desk.taken.items():
            taken.add_metric([source], count)
        yield taken
        refused = CounterMetricFamily(
            "elps_monitor_refused",
            "What could not be read, by where it came from",
            labels=["source"],
        )
        for source, count in desk.refused.items():
            refused.add_metric([source], count)
        refused.add_metric(["history"], desk.histories.unreadable)
        yield refused
        rows = CounterMetricFamily("elps_monitor_rows", "Iteration rows taken")
        rows.add_metric([], desk.state.rows)
        yield rows
        yield _gauge(
            "elps_monitor_row_cells",
            "Rows and workers' parts of rows in memory",
            desk.state.jobs.cells,
        )
        yield _gauge("elps_monitor_log_bytes", "Log lines in memory", desk.state.logs.size_bytes)

    def _jobs(self, jobs: list[Job]) -> Iterator[Metric]:
        def family(name: str, text: str, value: Callable[[Job], float | None]) -> Metric:
            made = GaugeMetricFamily(name, text, labels=["job"])
            for job in jobs:
                if (number := value(job)) is not None:
                    made.add_metric([job.id], number)
            return made

        yield family("elps_job_iteration", "Iterations completed", lambda j: j.progress.iteration)
        yield family(
            "elps_job_iterations",
            "Iterations in the whole job",
            lambda j: j.progress.iterations or None,
        )
        yield family("elps_job_passes", "Passes over the data", lambda j: j.progress.passes)
        yield family(
            "elps_job_loss", "Mean loss of the newest iteration", lambda j: j.progress.loss
        )
        yield family(
            "elps_job_samples_per_second", "Samples a second of late", lambda j: j.history.rate()[0]
        )
        yield family(
            "elps_job_iteration_seconds",
            "Duration of iterations of late",
            lambda j: j.history.rate()[1],
        )
        yield family("elps_job_workers", "Workers in the newest iteration", _workers)
        yield family(
            "elps_job_skipped_samples", "Samples skipped", lambda j: j.progress.skipped_samples
        )
        yield family(
            "elps_job_redone_iterations",
            "Iterations redone",
            lambda j: j.progress.redone_iterations,
        )
        metric = GaugeMetricFamily("elps_job_metric", "Newest evaluation", labels=["job", "metric"])
        phase = GaugeMetricFamily(
            "elps_job_phase_seconds",
            "Mean over workers in the newest iteration",
            labels=["job", "phase"],
        )
        for job in jobs:
            for name in sorted(job.progress.metrics)[:MAX_METRICS]:
                if (value := job.progress.metrics[name]) is not None:
                    metric.add_metric([job.id, name], value)
            last: IterationRow | None = job.history.rows.last
            if last is not None and last.workers:
                for name, of in _PHASES.items():
                    phase.add_metric([job.id, name], sum(map(of, last.workers)) / len(last.workers))
        yield metric
        yield phase


def _workers(job: Job) -> int | None:
    last = job.history.rows.last
    return len(last.workers) if last is not None else None


def _gauge(name: str, text: str, value: float) -> Metric:
    made = GaugeMetricFamily(name, text)
    made.add_metric([], value)
    return made
