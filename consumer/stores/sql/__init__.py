"""Checkpoints, leases and dead letters in SQL: tables, and what is done with their rows."""
