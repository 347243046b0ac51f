"""``elps-shard``."""

from elps.psshard.app import create
from elps.runtime.main import run


def main() -> None:
    """Run a shard until it is told to stop."""
    run("shard", create)


if __name__ == "__main__":
    main()
