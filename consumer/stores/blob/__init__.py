"""Checkpoints, leases and dead letters in Blob Storage."""
