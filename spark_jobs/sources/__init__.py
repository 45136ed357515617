"""Inputs of the jobs. `register` makes the Python data sources known to a session by their short names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

SOURCES: tuple[type[DataSource], ...] = ()


def register(spark: SparkSession) -> None:
    """Registers the Python data sources; again is harmless."""
    for source in SOURCES:
        spark.dataSource.register(source)
