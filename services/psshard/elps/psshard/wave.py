"""What the leader tells shards about copies that are to follow."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId, ShardId
from elps.psshard.assignment import Number

Partition = tuple[Number, Number, Number]
Port = Annotated[int, Meta(ge=1, le=65535)]


class Wave(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Partitions that are copied together: from where, to where."""

    number: Number
    copies: list[tuple[Number, Number, Number, ShardId, ShardId]]
    """Partition, its first element and end, the shard that owns it and the one that is to follow."""
    addresses: dict[ShardId, tuple[str, Port]]
    """Host and port of the data plane of each shard that follows."""
    standing: bool = False
    """They are replicas: they do not go anywhere."""

    def to_follow(self, me: ShardId) -> list[tuple[int, int, int]]:
        """Number, first element and end of what a shard is to follow."""
        return [(p, start, stop) for p, start, stop, _, target in self.copies if target == me]

    def to_feed(self, me: ShardId) -> dict[ShardId, list[PartitionId]]:
        """What a shard is to send copies of, by the shard that follows."""
        feeds: dict[ShardId, list[PartitionId]] = {}
        for p, _, _, source, target in self.copies:
            if source == me:
                feeds.setdefault(target, []).append(PartitionId(p))
        return feeds

    def check(self) -> None:
        """Raise `ProtocolError` when it cannot be carried out."""
        for p, start, stop, source, target in self.copies:
            if not start < stop or source == target or target not in self.addresses:
                raise ProtocolError(f"partition {p} cannot go from {source} to {target}")
