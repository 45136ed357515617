"""Schedules of the platform's timers: the NCRONTAB pattern, and the times samples are due by it."""
