"""The trainers of one agent: a state machine of events in, commands out.

    WAITING ──(a slot is free)──▶ FORKING ──began──▶ RUNNING ──exited──▶ EXITED ──stop──▶ forgotten
       └─────────── stop, leave ──────┴── exited (also: could not be forked) ──┘

Commands from the scheduler may be lost, doubled and reordered, therefore:

- a trainer is known by (job, term, worker), and starting a known one changes nothing;
- whoever was stopped is remembered for a while, so that a late start does not resurrect it;
- a start under a newer term ends the job's trainers of older terms, and a start under an older term is dropped. Two
  nonces under one term number mean that the store handed a number out twice: the second is refused, visibly;
- an exited trainer stays in the beat until the scheduler has it stopped, so that no exit is missed.

A trainer that is being ended holds its process slot until it is gone, but not its claim: a start that comes in the
meantime waits for the slot. More claims than slots are refused and shown as exited with the reason.

Ending goes in steps, each with a deadline: terminate, kill, replace the zygote (it is the parent and must tell of the
exit; one that does not within the bound is stuck). Nothing waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from elps.contracts.epoch import Term
from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import AgentId, JobId
from elps.contracts.messages import StartTrainer, StopTrainer, TrainerState, TrainerStatus
from elps.worker.core.commands import (
    BeatNow,
    Command,
    Fork,
    Kill,
    ReplaceZygote,
    Terminate,
    TrainerKey,
    key_of,
)

REMEMBER_STOPPED_S = 120.0
"""How long a stopped trainer cannot be started: far longer than a control message can be late."""
MAX_REMEMBERED = 4096
MAX_EXITED = 32
"""Exited trainers kept in the beat; with the bound on an exit's text this keeps a beat below the message limit."""
STUCK_S = 5.0
"""From SIGKILL to the news of the exit; it takes milliseconds unless the zygote does not run."""


class Stage(Enum):
    """Where a trainer is on its way."""

    WAITING = "waiting"
    FORKING = "forking"
    RUNNING = "running"
    EXITED = "exited"


_SHOWN: dict[Stage, TrainerState] = {
    Stage.WAITING: "starting",
    Stage.FORKING: "starting",
    Stage.RUNNING: "running",
    Stage.EXITED: "exited",
}


class _Step(Enum):
    TERMINATED = "terminated"
    KILLED = "killed"


@dataclass
class _Ending:
    """A trainer with a process that shall go."""

    step: _Step
    #: When the next step is due.
    deadline: float
    #: Whether nobody wants to hear of the exit: it was stopped or superseded, not ended because the agent leaves.
    forget: bool


@dataclass
class _Trainer:
    start: StartTrainer
    stage: Stage
    #: 0 until forked, then the process id, also after the exit.
    pid: int = 0
    #: Empty unless EXITED.
    exit: str = ""
    #: Only in FORKING and RUNNING.
    ending: _Ending | None = None
    #: Only when EXITED: by itself, with nothing more to do.
    done: bool = False
    cut_off: bool = False


class Roster:
    """All trainers of one agent. `now` is a monotonic time in seconds."""

    def __init__(
        self, agent: AgentId, slots: int, *, stop_grace_s: float, leave_grace_s: float
    ) -> None:
        """Take the times from SIGTERM to SIGKILL: for a trainer that is stopped, and when the agent leaves."""
        self._agent = agent
        self._slots = slots
        self._stop_grace_s = stop_grace_s
        self._leave_grace_s = leave_grace_s
        #: In the order of arrival; processes (FORKING, RUNNING) never outnumber the slots.
        self._trainers: dict[TrainerKey, _Trainer] = {}
        #: Until when a start of this trainer is ignored; in the order of expiry.
        self._stopped: dict[TrainerKey, float] = {}
        self._leaving = False

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        """Whether no trainer is started any more."""
        return self._leaving

    def processes(self) -> list[TrainerKey]:
        """Trainers that have a process or are about to get one."""
        return [k for k, t in self._trainers.items() if t.stage in (Stage.FORKING, Stage.RUNNING)]

    def statuses(self) -> list[TrainerStatus]:
        """What the beat shows."""
        return [
            TrainerStatus(
                job=k.job,
                term=k.term,
                worker=k.worker,
                state=_SHOWN[t.stage],
                pid=t.pid,
                exit=t.exit,
                done=t.done,
                cut_off=t.cut_off,
            )
            for k, t in self._trainers.items()
        ]

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, or None."""
        return min((t.ending.deadline for t in self._trainers.values() if t.ending), default=None)

    # --- events from the scheduler ------------------------------------------------------------------------------------

    def start(self, command: StartTrainer, now: float) -> list[Command]:
        """The scheduler wants a trainer to run."""
        key = key_of(command)
        self._expire(now)
        if key in self._trainers or key in self._stopped:
            return []
        in_force = self._term_of(key.job)
        if in_force is not None and key.term.number < in_force.number:
            return []
        if in_force is not None and key.term.number == in_force.number and key.term != in_force:
            return self._refuse(
                command,
                f"not started: term {key.term.number} with nonce {key.term.nonce} meets the same number with nonce "
                f"{in_force.nonce} here; a higher term is needed",
                now,
            )
        if self._leaving:
            return self._refuse(command, f"not started: agent {self._agent} is leaving", now)
        commands = self._supersede(key, now)
        claims = [
            k for k, t in self._trainers.items() if t.stage is not Stage.EXITED and not t.ending
        ]
        if len(claims) >= self._slots:
            holders = ", ".join(str(k.worker) for k in claims)
            return [
                *commands,
                *self._refuse(
                    command,
                    f"not started: all {self._slots} slots of agent {self._agent} are taken by {holders}",
                    now,
                ),
            ]
        self._trainers[key] = _Trainer(command, Stage.WAITING)
        return [*commands, *self._admit(), BeatNow()]

    def stop(self, command: StopTrainer, now: float) -> list[Command]:
        """The scheduler wants a trainer ended and forgotten; also those of the same worker under older terms."""
        self._expire(now)
        key = key_of(command)
        self._remember(key, now)
        commands: list[Command] = []
        for known in list(self._trainers):
            older = (
                known.job == key.job
                and known.worker == key.worker
                and known.term.number < key.term.number
            )
            if known == key or older:
                commands += self._end(known, now, self._stop_grace_s, forget=True)
        return [*commands, *self._admit(), BeatNow()]

    def leave(self, now: float) -> list[Command]:
        """The agent is to go: end every trainer, start none. Their exits stay in the beat."""
        if self._leaving:
            return []
        self._leaving = True
        commands: list[Command] = []
        for key, trainer in self._trainers.items():
            if trainer.stage is Stage.WAITING:
                trainer.stage, trainer.exit = (
                    Stage.EXITED,
                    f"not started: agent {self._agent} is leaving",
                )
            elif trainer.stage is not Stage.EXITED:
                commands += self._end(key, now, self._leave_grace_s, forget=False)
        return [*commands, BeatNow()]

    # --- events from the zygote ---------------------------------------------------------------------------------------

    def forked(self, key: TrainerKey, pid: int) -> list[Command]:
        """The process exists."""
        self._with_process(key, "forked").pid = pid
        return [BeatNow()]

    def began(self, key: TrainerKey, pid: int) -> list[Command]:
        """The process runs the trainer's code; may be known before the zygote tells of the fork."""
        trainer = self._with_process(key, "began")
        trainer.stage, trainer.pid = Stage.RUNNING, pid
        return [BeatNow()]

    def exited(
        self, key: TrainerKey, how: str, now: float, *, done: bool = False, cut_off: bool = False
    ) -> list[Command]:
        """The process is gone, or never came to be; `how` says why, for people.

        `done`: its exit code says success. `cut_off`: it says that those it works with are out of reach.
        """
        trainer = self._with_process(key, "exited")
        if trainer.ending and trainer.ending.forget:
            del self._trainers[key]
            self._remember(key, now)
        else:
            trainer.done = done and trainer.ending is None
            trainer.cut_off = cut_off and trainer.ending is None
            trainer.stage, trainer.exit, trainer.ending = Stage.EXITED, how, None
            self._bound_exited(now)
        return [*self._admit(), BeatNow()]

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        """Take the next step with every trainer whose time has run out."""
        commands: list[Command] = []
        for key, trainer in self._trainers.items():
            ending = trainer.ending
            if ending is None or now < ending.deadline:
                continue
            if ending.step is _Step.TERMINATED:
                commands.append(Kill(key))
            else:
                commands.append(
                    ReplaceZygote(
                        f"no news of the exit of {key.worker} for {STUCK_S:g} s after SIGKILL"
                    )
                )
            ending.step, ending.deadline = _Step.KILLED, now + STUCK_S
        return commands

    # --- inside -------------------------------------------------------------------------------------------------------

    def _with_process(self, key: TrainerKey, event: str) -> _Trainer:
        trainer = self._trainers.get(key)
        if trainer is None or trainer.stage not in (Stage.FORKING, Stage.RUNNING):
            state = trainer.stage.value if trainer else "unknown"
            raise IllegalEvent(
                f"{event}: trainer {key.worker} of term {key.term.number} is {state}, it has no process"
            )
        return trainer

    def _admit(self) -> list[Command]:
        """Fork who waits, as far as there are slots without a process."""
        commands: list[Command] = []
        free = self._slots - len(self.processes())
        for key, trainer in self._trainers.items():
            if free > 0 and trainer.stage is Stage.WAITING:
                trainer.stage = Stage.FORKING
                commands.append(Fork(key, trainer.start))
                free -= 1
        return commands

    def _end(
        self, key: TrainerKey, now: float, grace_s: float, *, forget: bool
    ) -> Sequence[Command]:
        trainer = self._trainers[key]
        if trainer.stage in (Stage.WAITING, Stage.EXITED):
            del self._trainers[key]
            return ()
        if trainer.ending:
            trainer.ending.forget |= forget
            trainer.ending.deadline = min(trainer.ending.deadline, now + grace_s)
            return ()
        trainer.ending = _Ending(_Step.TERMINATED, now + grace_s, forget)
        return (Terminate(key),)

    def _supersede(self, newcomer: TrainerKey, now: float) -> list[Command]:
        commands: list[Command] = []
        for key in list(self._trainers):
            if key.job == newcomer.job and key.term.number < newcomer.term.number:
                self._remember(key, now)
                commands += self._end(key, now, self._stop_grace_s, forget=True)
        return commands

    def _refuse(self, command: StartTrainer, reason: str, now: float) -> list[Command]:
        self._trainers[key_of(command)] = _Trainer(command, Stage.EXITED, exit=reason)
        self._bound_exited(now)
        return [BeatNow()]

    def _term_of(self, job: JobId) -> Term | None:
        """The highest term known of a job; among equal numbers the one that came first."""
        highest: Term | None = None
        known = [
            k for k, t in self._trainers.items() if t.pid or t.stage is not Stage.EXITED
        ] + list(self._stopped)
        for key in known:
            if key.job == job and (highest is None or key.term.number > highest.number):
                highest = key.term
        return highest

    def _bound_exited(self, now: float) -> None:
        exited = [k for k, t in self._trainers.items() if t.stage is Stage.EXITED]
        for key in exited[: max(0, len(exited) - MAX_EXITED)]:
            del self._trainers[key]
            self._remember(key, now)

    def _remember(self, key: TrainerKey, now: float) -> None:
        self._stopped.pop(key, None)
        self._stopped[key] = now + REMEMBER_STOPPED_S
        while len(self._stopped) > MAX_REMEMBERED:
            del self._stopped[next(iter(self._stopped))]

    def _expire(self, now: float) -> None:
        while self._stopped and (oldest := next(iter(self._stopped.items())))[1] <= now:
            del self._stopped[oldest[0]]

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself; for tests."""
        assert len(self.processes()) <= self._slots
        claims = [
            t for t in self._trainers.values() if t.stage is not Stage.EXITED and not t.ending
        ]
        assert len(claims) <= self._slots
        waiting = [t for t in self._trainers.values() if t.stage is Stage.WAITING]
        assert not waiting or len(self.processes()) == self._slots, (
            "a slot is free while somebody waits"
        )
        assert not (self._leaving and waiting)
        for key, trainer in self._trainers.items():
            has_process = trainer.stage in (Stage.FORKING, Stage.RUNNING)
            assert key == key_of(trainer.start)
            assert (trainer.exit != "") == (trainer.stage is Stage.EXITED)
            assert not trainer.done or trainer.stage is Stage.EXITED
            assert trainer.ending is None or has_process
            assert not self._leaving or not has_process or trainer.ending
            assert key not in self._stopped or (trainer.ending and trainer.ending.forget)
