"""The errors of elps, one subclass per thing that the caller can do about it."""

from __future__ import annotations

from collections.abc import Sequence


class ElpsError(Exception):
    """Base of all errors raised on purpose; its text is fit to be shown to a user."""


class RetryLater(ElpsError):
    """A peer, the broker or the store did not answer in time; the same call may succeed later."""


class Superseded(ElpsError):
    """Another one has taken over what the caller was in charge of; nothing was changed."""


class ProtocolError(ElpsError):
    """A peer sent bytes that do not follow the protocol; its connection is closed."""


class IllegalEvent(ElpsError):
    """A state machine was given an event that its state does not allow; nothing was changed."""


class InvalidDocument(ElpsError):
    """A document from a user is wrong.

    `problems` lists every fault as ``path: what is wrong, what was expected``.
    """

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        self.what = what
        self.problems = tuple(problems)
        super().__init__(f"{what}: " + "; ".join(self.problems))


class TaskError(ElpsError):
    """The user's task or data did something that training cannot go on with; fix the task."""


class SetupError(ElpsError):
    """The environment is not fit (a missing program, a wrong setting); the text says what to do."""
