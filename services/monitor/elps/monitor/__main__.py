"""``elps-monitor``."""

from elps.monitor.app import create
from elps.runtime.main import run


def main() -> None:
    """Run the monitor until it is told to stop."""
    run("monitor", create)


if __name__ == "__main__":
    main()
