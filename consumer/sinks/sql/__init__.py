"""Writes rows in transactions, together with the position."""
