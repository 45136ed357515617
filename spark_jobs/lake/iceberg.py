"""Iceberg tables by Iceberg's runtime in Spark. Tried by hand on Spark 3.5 with runtime 1.10; no test has the runtime.

A table's `url` is its folder, as Spark's file systems name it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from zlib import crc32

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def replace(frame: DataFrame, url: str, partition_by: Sequence[str], only: Collection[str] | None) -> None:
    """Writes the frame as the table, in place of all rows or, with `only`, of these partitions."""
    name = _name(frame.sparkSession, url)
    writer = frame.writeTo(name).using("iceberg")
    if only is not None and frame.sparkSession.catalog.tableExists(name):
        writer.overwrite(F.col(partition_by[0]).isin(sorted(only)))
    else:
        (writer.partitionedBy(*map(F.col, partition_by)) if partition_by else writer).createOrReplace()


def newest(spark: SparkSession, url: str) -> DataFrame:
    """One row: the id of the newest snapshot."""
    refs = spark.read.table(f"{_name(spark, url)}.refs")
    return refs.where("name = 'main'").select("snapshot_id")


def read(spark: SparkSession, url: str, version: int | None) -> DataFrame:
    """The rows of a snapshot, or of the newest."""
    # Spark ignores an option for the version where a table is read by its name.
    at = "" if version is None else f" VERSION AS OF {version}"
    return spark.sql(f"SELECT * FROM {_name(spark, url)}{at}")  # noqa: S608 - no values


def _name(spark: SparkSession, url: str) -> str:
    """The table's name in a catalog of Iceberg's whose warehouse is the folder around the table."""
    folder, _, name = url.rpartition("/")
    catalog = f"tidemark_{crc32(folder.encode()):08x}"
    key = f"spark.sql.catalog.{catalog}"
    spark.conf.set(key, "org.apache.iceberg.spark.SparkCatalog")
    for setting, value in (("type", "hadoop"), ("warehouse", folder), ("cache-enabled", "false")):
        spark.conf.set(f"{key}.{setting}", value)
    return f"{catalog}.`{name}`"
