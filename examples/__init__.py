"""Whole scenarios: each folder has its settings, its README and what runs it on a local stack of its own."""
