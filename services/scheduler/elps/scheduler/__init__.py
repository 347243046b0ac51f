"""The scheduler: jobs, the pool of workers and shards, and who gets what."""
