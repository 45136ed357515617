"""A recorded load under one policy: history, fleet, score."""
