"""What an agent is to do about its trainers, and what these are known by."""

from __future__ import annotations

from dataclasses import dataclass

from elps.contracts.epoch import Term
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import StartTrainer, StopTrainer


@dataclass(frozen=True)
class TrainerKey:
    """What a trainer is known by."""

    job: JobId
    term: Term
    worker: WorkerId


def key_of(command: StartTrainer | StopTrainer) -> TrainerKey:
    """The trainer that a command is about."""
    return TrainerKey(command.job, command.term, command.worker)


@dataclass(frozen=True)
class Fork:
    """Have the zygote fork this trainer."""

    key: TrainerKey
    start: StartTrainer


@dataclass(frozen=True)
class Terminate:
    """Ask the process to end (SIGTERM)."""

    key: TrainerKey


@dataclass(frozen=True)
class Kill:
    """End the process and all its descendants (SIGKILL)."""

    key: TrainerKey


@dataclass(frozen=True)
class ReplaceZygote:
    """The zygote does not tell of an exit: end it, and with it all its children."""

    reason: str


@dataclass(frozen=True)
class BeatNow:
    """What the beat would show has changed."""


Command = Fork | Terminate | Kill | ReplaceZygote | BeatNow
