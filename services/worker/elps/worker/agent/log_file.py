"""A log file of bounded size."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import structlog

from elps.contracts.ids import JobId, WorkerId

log = structlog.get_logger(__name__)


def log_path(log_dir: Path, job: JobId, worker: WorkerId) -> Path:
    """Where the output of a trainer is kept."""
    return log_dir / "jobs" / job / f"{worker}.log"


def remove_logs(log_dir: Path, job: JobId) -> None:
    """Remove what is kept of all trainers of a job.

    Of several agents that share the folder, the first to rename it has it to itself.
    """
    folder = log_dir / "jobs" / job
    gone = folder.with_name(f".{job}.{secrets.token_hex(4)}")  # no name of a job
    try:
        shutil.rmtree(folder.rename(gone))
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("trainer_logs_not_removed", path=str(folder), error=str(error))
    else:
        log.info("trainer_logs_removed", job=job)


class LogFile:
    """Lines of one trainer. When full, the file is kept once under the name with ``.1`` and begun anew.

    A disk that is full or not writable is reported once and never ends anything.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open nothing yet: a trainer that prints nothing leaves no file."""
        self._path = path
        self._max_bytes = max_bytes
        self._file: BinaryIO | None = None
        self._size = 0
        self._failed = False

    def write(self, lines: Sequence[str]) -> None:
        """Append lines."""
        if self._failed:
            return
        try:
            for line in lines:
                self._append(line.encode(errors="replace") + b"\n")
            if self._file:
                self._file.flush()
        except OSError as error:
            self._failed = True
            log.warning("trainer_log_not_written", path=str(self._path), error=str(error))

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                log.warning("trainer_log_not_written", path=str(self._path), error=str(error))

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
            self._size = self._file.tell()
        if self._size and self._size + len(data) > self._max_bytes:
            self._file.close()
            self._path.replace(self._path.with_suffix(".log.1"))
            self._file = self._path.open("wb")
            self._size = 0
        self._file.write(data)
        self._size += len(data)
