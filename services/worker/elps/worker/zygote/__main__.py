"""Start of the zygote: ``python -P -m elps.worker.zygote CONTROL AGENT TRAINER MODULE…``."""

from __future__ import annotations

import socket
import sys

from elps.worker.zygote.server import serve


def main(arguments: list[str]) -> int:
    """Serve on the inherited socket whose descriptor is the first argument."""
    control, agent, trainer, *modules = arguments
    return serve(socket.socket(fileno=int(control)), int(agent), trainer, modules)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
