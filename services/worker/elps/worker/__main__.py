"""Start of the worker service."""

from __future__ import annotations

from elps.runtime.main import run
from elps.worker.app import create


def main() -> None:
    """Run the agent until SIGTERM or SIGINT."""
    run("worker", create)


if __name__ == "__main__":
    main()
