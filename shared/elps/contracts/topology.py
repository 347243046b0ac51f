"""Names of exchanges, queues, routing keys and store keys: the address book of the control plane."""

from __future__ import annotations

from elps.contracts.ids import AgentId, JobId, ShardId

JOBS = "elps.jobs"
"""Durable topic exchange for users: keys submit, kill, pause, resume, scale, suspend, explain, policy, delete."""
MEMBERS = "elps.members"
"""Topic exchange: heartbeats of agents (key ``agent``), shards (``shard``) and the scheduler (``scheduler``)."""
COMMANDS = "elps.commands"
"""Direct exchange: the scheduler's commands; the routing key is the member's id."""
EVENTS = "elps.events"
"""Topic exchange: what happened to jobs, key ``job.<id>.<what>``."""
TELEMETRY = "elps.telemetry"
"""Topic exchange: rows of finished iterations, key ``job.<id>``, log lines, key ``log.<id>``, and what the monitor
passes on of the rows to the scheduler, key ``timings.<id>``."""
QUERY = "elps.query"
"""Topic exchange and queue of the monitor's queries."""
DEAD = "elps.dead"
"""Fanout exchange and queue for messages that could not be read or handled, with the reason in a header."""

SCHEDULER_JOBS_QUEUE = "elps.scheduler.jobs"

SUBMIT, KILL, PAUSE, RESUME, SCALE, SUSPEND, EXPLAIN, POLICY, DELETE = (
    "submit",
    "kill",
    "pause",
    "resume",
    "scale",
    "suspend",
    "explain",
    "policy",
    "delete",
)
AGENT_BEAT, SHARD_BEAT, SCHEDULER_BEAT = "agent", "shard", "scheduler"


def command_queue(member: ShardId | AgentId) -> str:
    """Name of the exclusive queue from which one member takes its commands."""
    return f"elps.commands.{member}"


def event_key(job: JobId, what: str) -> str:
    """Routing key of an event of a job."""
    return f"job.{job}.{what}"


DELETED = "deleted"
"""What the event is called after which nothing of a job is kept anywhere."""
DELETED_KEYS = f"job.*.{DELETED}"
"""All of them."""


def telemetry_key(job: JobId) -> str:
    """Routing key of iteration rows of a job."""
    return f"job.{job}"


TIMINGS_KEYS = "timings.#"
"""All of them."""


def timings_key(job: JobId) -> str:
    """Routing key of what the scheduler needs of a job's rows to balance its batches."""
    return f"timings.{job}"


PROBE_KEY = "probe"
"""Routing key of telemetry that no queue takes: whoever publishes it learns whether the broker takes messages."""


def log_key(job: JobId) -> str:
    """Routing key of log lines of a job."""
    return f"log.{job}"


# --- keys in the store: those of a job that end with it when it is killed begin with `job_prefix` ---------------------

JOB_INDEX = "elps:jobs"
"""Hash: job id to its encoded `JobRecord`; one read gives all jobs."""

POLICY_KEY = "elps:scheduler:chosen"
"""The policy that a user has chosen while the stack ran, with the setting that it replaces."""
FORGOTTEN_KEY = "elps:scheduler:forgotten"
"""How far the counts of arrivals and terms had come among the jobs of which no record is kept any more."""
CHARGE = "elps:scheduler:charge"
"""Lease of the scheduler that is in charge."""
EVENTS_KEPT = "elps:monitor:events"
"""The newest events, as the monitor has numbered them."""
HISTORIES_SEAL = "elps:monitor:seal"
"""What the monitor wrote last: if it is another, the store has lost something, or another monitor has written."""


def history_key(job: JobId) -> str:
    """Hash of the monitor: name of a piece to some of the job's finished iterations or evaluations."""
    return f"elps:monitor:history:{job}"


def job_prefix(job: JobId) -> str:
    """What all keys of a job other than its record begin with."""
    return f"elps:job:{job}:"


def term_key(job: JobId) -> str:
    """Counter of the job's terms."""
    return job_prefix(job) + "term"


def manifests_key(job: JobId) -> str:
    """Hash: checkpoint name to its encoded manifest; a checkpoint is valid once its manifest is here."""
    return job_prefix(job) + "manifests"


def skips_key(job: JobId, first_term: int) -> str:
    """Skips that were granted; under a name of their own for each of several jobs that had this id in turn."""
    return job_prefix(job) + (f"skips:{first_term}" if first_term else "skips")


def chunk_key(job: JobId, checkpoint: str, partition: int, array: str) -> str:
    """One partition's array in one checkpoint."""
    return f"{job_prefix(job)}ckpt:{checkpoint}:{partition}:{array}"
