"""Telling errors of the user's code from ours."""

from __future__ import annotations

import traceback
from types import TracebackType

from elps.contracts.errors import ElpsError, TaskError


class UserCode:
    """A context in which what the user's code raises becomes a `TaskError` with the original as `__cause__`.

    `MemoryError` goes on as it is: it is a death of the process, which another one may survive, and
    no fault of the task that every worker would meet. So do `SystemExit` and `KeyboardInterrupt`.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, ElpsError | MemoryError):
            text = str(error)
            message = f"{self._doing}: {type(error).__name__}{': ' if text else ''}{text}"
            raise TaskError(message) from error


def traceback_text(error: BaseException, limit_chars: int = 32_768) -> str:
    """The traceback of the user's error behind a `TaskError` (or of the error itself), its end if
    it is too long.
    """
    text = "".join(traceback.format_exception(error.__cause__ or error))
    return text if len(text) <= limit_chars else "…\n" + text[-limit_chars:]
