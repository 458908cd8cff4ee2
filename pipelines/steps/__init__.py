"""Row functions of the Ray Data chains: one file a step, its cardinality stated."""
