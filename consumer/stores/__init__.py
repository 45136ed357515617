"""Where checkpoints, leases and dead letters are kept: one folder for each technology."""
