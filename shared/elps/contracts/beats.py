"""Heartbeats from the network: decoded, and checked where their types say too little.

What members and jobs are called becomes part of routing keys, file names and keys in the store; and what is kept of
each of many members is of bounded size. Everything wrong raises `InvalidDocument`.
"""

from __future__ import annotations

from elps.contracts.codec import decode
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import id_problem, worker_id_problem
from elps.contracts.messages import AgentBeat, MemberMessage, ShardBeat

MAX_WORD_CHARACTERS = 255
"""Longest name of a host, as the system has them; versions and incarnations are shorter."""


def read_beat(body: bytes) -> MemberMessage:
    """A member's heartbeat."""
    beat: MemberMessage = decode(body, MemberMessage)  # type: ignore[arg-type]  # a union
    problems = [
        _word("incarnation", beat.incarnation),
        _word("host", beat.host),
        _word("version", beat.version),
    ]
    match beat:
        case ShardBeat():
            problems += [
                _named("shard", id_problem(beat.shard)),
                _word("data_host", beat.data_host),
            ]
            jobs = [hosted.job for hosted in beat.jobs] + list(beat.refused)
            problems += [_named("job", id_problem(job)) for job in jobs]
        case AgentBeat():
            problems.append(_named("agent", id_problem(beat.agent)))
            for trainer in beat.trainers:
                problems.append(_named("job", id_problem(trainer.job)))
                problems.append(_named("worker", worker_id_problem(trainer.worker)))
    if found := [problem for problem in problems if problem]:
        raise InvalidDocument("heartbeat", found)
    return beat


def _named(what: str, problem: str | None) -> str:
    return f"{what}: {problem}" if problem else ""


def _word(what: str, value: str) -> str:
    if len(value) <= MAX_WORD_CHARACTERS:
        return ""
    return f"{what}: {len(value)} characters, expected at most {MAX_WORD_CHARACTERS}"
