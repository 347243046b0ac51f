"""Replicas of partitions to shards: never beside the original, on another host if there is one, balanced by bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elps.contracts.ids import PartitionId, ShardId


def place_replicas(
    sizes_bytes: Mapping[PartitionId, int],
    owners: Mapping[PartitionId, ShardId],
    shards: Sequence[ShardId],
    hosts: Mapping[ShardId, str],
) -> dict[PartitionId, ShardId]:
    """Give every partition a second shard; empty when some partition can have none.

    Largest first, each to the shard with the fewest bytes of replicas among those on another host than its owner's, or
    among all others if there is no such host. A shard whose host is not known counts as a host of its own. Ties go to
    the lower id.
    """
    load = dict.fromkeys(sorted(set(shards)), 0)
    placed: dict[PartitionId, ShardId] = {}
    for p in sorted(sizes_bytes, key=lambda p: (-sizes_bytes[p], p)):
        owner = owners[p]
        others = [s for s in load if s != owner]
        if not others:
            return {}
        apart = [s for s in others if hosts.get(s, s) != hosts.get(owner, owner)]
        placed[p] = min(apart or others, key=lambda s: (load[s], s))
        load[placed[p]] += sizes_bytes[p]
    return placed
