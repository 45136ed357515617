"""Samples in Parquet files, a stretch of time each: read, and made into rows, by whoever owns it."""
