"""The parameter shard: partitions of parameters and optimizer state, and for some jobs the leader's clock."""
