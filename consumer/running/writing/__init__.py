"""Writes of batches, of parked events, and of dead letters again: calls to a sink and its stores, whose failures are results."""
