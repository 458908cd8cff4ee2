"""Pure reductions over all shards of a job: the same answer however it was sharded."""
