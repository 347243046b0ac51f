"""The update protocol as pure state machines: what a shard accepts, and how the leader keeps a job's clock."""
