"""Recorded arrivals of a queue, and instances of its plan: from Azure Monitor's metrics into one file."""
