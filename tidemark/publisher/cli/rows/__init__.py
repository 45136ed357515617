"""Rows of Parquet, Avro and Capture files, and what becomes of a row: Avro by a schema registry, CloudEvents."""
