"""Where checkpoints, leases and dead letters are kept: a folder for each technology, and memory."""
