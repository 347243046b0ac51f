"""How a trainer gets connections to the shards of its job: dialled until they answer, some ahead of need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from elps.contracts.errors import ElpsError, ProtocolError, RetryLater
from elps.contracts.messages import StartTrainer
from elps.wire.connection import Connection
from elps.wire.handshake import Hello, Purpose, Refused, dial

AHEAD_S = 5.0
"""How long a shard is dialled that is not needed yet; it may not have been told of the job."""
SOON_S = 1.0
"""How long one is waited for that is being made when it is needed."""

Place = tuple[str, str, int]
"""A shard, its host and port."""


class ShardUnreachable(ElpsError):
    """A shard of the job cannot be reached."""


class CalledAway(ElpsError):
    """The leader says something else meanwhile: what the trainer is at is not wanted any more."""


class StaleTerm(ElpsError):
    """A shard has seen a higher term: this trainer's time is over."""


def reach(
    start: StartTrainer,
    host: str,
    port: int,
    peer: str,
    purpose: Purpose,
    within_s: float,
    called_away: Callable[[], bool] = lambda: False,
) -> Connection:
    """Dial until it answers, or `called_away` says that it need not; a refusal may be over in a moment.

    (The job is not hosted there yet, say.)
    """
    hello = Hello(job=start.job, purpose=purpose, sender=start.worker, term=start.term.number)
    deadline, pause_s = time.monotonic() + within_s, 0.01
    while True:
        try:
            return dial(host, port, hello, start.secret, peer=peer)
        except (Refused, RetryLater) as error:
            if isinstance(error, Refused) and error.code == "over":
                raise StaleTerm(str(error)) from None
            if called_away():
                raise CalledAway(str(error)) from None
            if time.monotonic() > deadline:
                raise ShardUnreachable(
                    f"{peer} could not be reached for {within_s:g} s: {error}"
                ) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.5)


def places_of(shards: Any) -> list[Place]:
    """Read the addresses of shards; `ProtocolError` when they are none."""
    try:
        return [(str(s["id"]), str(s["host"]), int(s["port"])) for s in shards]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"addresses that cannot be read: {error!r}") from None


@dataclass
class _Dialled:
    """A connection that is being made."""

    done: threading.Event = field(default_factory=lambda: threading.Event())
    unwanted: bool = False
    connection: Connection | None = None  #: set before `done`, if it was made

    @property
    def failed(self) -> bool:
        return self.done.is_set() and self.connection is None


class Ahead:
    """Connections to shards that are about to hold partitions, made while the trainer does something else.

    A head start, no more: what cannot be made, or breaks before it is needed, is dialled as ever.
    """

    def __init__(self, start: StartTrainer) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._dialled: dict[tuple[Place, Purpose], _Dialled] = {}

    def connect(self, places: Iterable[Place]) -> None:
        """Begin to connect to these, and hang up on all others."""
        purposes: tuple[Purpose, ...] = ("pull", "push")
        wanted = [(place, purpose) for place in places for purpose in purposes]
        with self._lock:
            here = self._dialled.items()
            others = [key for key, dialled in here if key not in wanted or dialled.failed]
            dropped = [self._dialled.pop(key) for key in others]
            new = {key: _Dialled() for key in wanted if key not in self._dialled}
            self._dialled |= new
        for key, dialled in new.items():
            threading.Thread(target=self._dial, args=(*key, dialled), daemon=True).start()
        for dialled in dropped:
            self._drop(dialled)

    def take(self, place: Place, purpose: Purpose) -> Connection | None:
        """One that was begun, once it is there; None where none was, or it does not come."""
        with self._lock:
            dialled = self._dialled.pop((place, purpose), None)
        if dialled is None:
            return None
        if dialled.done.wait(SOON_S):
            return dialled.connection
        self._drop(dialled)
        return None

    def close(self) -> None:
        """Hang up on all."""
        self.connect(())

    def _drop(self, dialled: _Dialled) -> None:
        with self._lock:
            dialled.unwanted = True
            connection = dialled.connection
        if connection is not None:
            connection.close()

    def _dial(self, place: Place, purpose: Purpose, dialled: _Dialled) -> None:
        name, host, port = place
        try:
            connection = reach(
                self._start, host, port, name, purpose, AHEAD_S, lambda: dialled.unwanted
            )
        except ElpsError:
            pass  # who needs it finds out why
        else:
            with self._lock:
                unwanted = dialled.unwanted
                dialled.connection = None if unwanted else connection
            if unwanted:
                connection.close()
        dialled.done.set()
