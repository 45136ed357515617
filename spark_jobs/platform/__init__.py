"""Spark itself: sessions, settings, rows, progress and failures."""
