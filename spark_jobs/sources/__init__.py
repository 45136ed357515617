"""Inputs of the jobs. `register` makes the Python data sources known to a session by their short names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the Python data sources; again is harmless."""
    from spark_jobs.sources.capture import CaptureSource  # noqa: PLC0415 - what a source needs is loaded with Spark

    for source in (CaptureSource,):
        spark.dataSource.register(source)
