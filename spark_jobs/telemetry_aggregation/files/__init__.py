"""Parquet files of samples on this machine: which are taken, and read in the order of time."""
