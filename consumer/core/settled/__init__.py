"""Which events of a partition are settled: the low-water mark, and the runs beyond it."""
