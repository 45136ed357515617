"""Checkpoints, leases and dead letters in memory: for tests, and for a dry run."""
