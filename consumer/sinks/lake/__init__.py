"""Rows appended to Delta tables and Parquet files in a data lake, exactly once."""
