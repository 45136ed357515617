"""Samples to rows of the table gauges, with and without Spark: Arrow in, Arrow out. Pure."""
