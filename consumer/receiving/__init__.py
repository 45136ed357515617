"""Receives a partition in order, each event once, over whatever happens to connections."""
