"""How a job's parameters are cut into partitions, and which shard gets which."""

from elps.placement.placing import place
from elps.placement.replicas import place_replicas
from elps.placement.slicing import MAX_PARTITION_BYTES, Slice, partitions

__all__ = ["MAX_PARTITION_BYTES", "Slice", "partitions", "place", "place_replicas"]
