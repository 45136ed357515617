"""Telemetry by minute, hour and day: backlogs, rates, refusals, lag, scale actions, capacity and cost."""
