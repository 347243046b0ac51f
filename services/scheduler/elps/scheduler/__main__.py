"""The console script ``elps-scheduler``."""

from __future__ import annotations

from typing import NoReturn

from elps.runtime.main import run
from elps.scheduler.app import create


def main() -> NoReturn:
    """Run the scheduler as this process."""
    run("scheduler", create)


if __name__ == "__main__":
    main()
