"""The shards of a job as its leader dials them."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

from elps.contracts.ids import ShardId
from elps.contracts.messages import Address
from elps.psshard.peers import Peers

ME, OTHER = ShardId("shard-1"), ShardId("shard-2")


def listening() -> tuple[socket.socket, Address]:
    """A place where a shard may be dialled, and its address."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(10)
    return server, Address(shard=OTHER, host="127.0.0.1", port=server.getsockname()[1])


def peers(*shards: Address) -> Peers:
    host = SimpleNamespace(job="j", secret="s", term=SimpleNamespace(number=1), shards=list(shards))
    orders = SimpleNamespace(
        member=SimpleNamespace(report_always_to=lambda _: None), close=lambda: None
    )

    def ignore(*_: object) -> None:
        pass

    return Peers(cast(Any, host), ME, cast(Any, orders), ignore, ignore, ignore, ignore)


def test_a_shard_that_was_started_again_is_dialled_where_it_listens_now() -> None:
    """It may be given to the job again before the leader has hung up on the process of that name before it."""
    (before, old), (now, new) = listening(), listening()
    known = peers(old)
    known.start()
    before.accept()[0].close()
    known.know([new])
    now.accept()[0].close()
    known.know([new])  # the word is repeated
    known.close()
    before.close()
    now.close()
