"""Tables in formats besides Delta, in folders of their own below a job's output, and tables of others. Each table is replaced
as a whole, for itself.

Iceberg needs its runtime in Spark. Tried by hand on Spark 3.5 with runtime 1.10; no test has the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.platform.classic import SPARK_ERRORS
from spark_jobs.platform.failures import first_line
from spark_jobs.platform.rows import collected
from spark_jobs.tables import task_files
from spark_jobs.tables.places import has_source, is_pythons, qualified
from tidemark.analysis.errors import InputError, JobError

FORMATS = ("delta", "parquet", "iceberg")


def check_format(fmt: str) -> str:
    """`fmt`. Raises InputError for what is no format."""
    if fmt not in FORMATS:
        raise InputError(f"--format (or TIDEMARK_SPARK_FORMAT) is '{fmt}'; accepted: {', '.join(FORMATS)}")
    return fmt


def check_runtime(spark: SparkSession, fmt: str) -> None:
    """Raises JobError where Spark cannot write the format."""
    if fmt == "iceberg" and not has_source(spark, fmt):
        raise JobError(
            "--format iceberg needs its runtime in Spark: add it (spark-submit --packages org.apache.iceberg:"
            "iceberg-spark-runtime-...), or write --format parquet, from which docs/spark.md shows how to make an Iceberg"
            " table on one machine"
        )


def write(frame: DataFrame, folder: str, name: str, fmt: str) -> None:
    """Writes the table `<folder>/<fmt>/<name>`, over what is there."""
    spark, place = frame.sparkSession, f"{folder}/{fmt}"
    if fmt == "iceberg":
        frame.writeTo(_iceberg(spark, qualified(spark, place), name)).using("iceberg").createOrReplace()
    else:
        write_parquet(frame, f"{place}/{name}")


def read(spark: SparkSession, folder: str, name: str, fmt: str) -> DataFrame:
    """A table that `write` wrote."""
    place = f"{folder}/{fmt}"
    if fmt == "iceberg":
        return spark.read.table(_iceberg(spark, qualified(spark, place), name))
    return read_parquet(spark, [f"{place}/{name}"])


def _iceberg(spark: SparkSession, warehouse: str, name: str) -> str:
    """The table's name in a catalog of Iceberg's, whose warehouse is the folder."""
    catalog = f"tidemark_{crc32(warehouse.encode()):08x}"
    key = f"spark.sql.catalog.{catalog}"
    spark.conf.set(key, "org.apache.iceberg.spark.SparkCatalog")
    for setting, value in (("type", "hadoop"), ("warehouse", warehouse), ("cache-enabled", "false")):
        spark.conf.set(f"{key}.{setting}", value)
    return f"{catalog}.`{name}`"


def write_parquet(frame: DataFrame, path: str, partition_by: Sequence[str] = ()) -> None:
    """Writes the frame as Parquet files, over what is there. That is no single step: while it lasts, and after a failure, what
    was there is gone.
    """
    if is_pythons(frame.sparkSession, path):
        new = [row.path for row in collected(task_files.added(frame, path, None))]
        task_files.remove_others(path, new or [task_files.add_empty(path, frame.schema)])
        return
    frame.write.mode("overwrite").partitionBy(*partition_by).parquet(path)


def read_parquet(spark: SparkSession, paths: Sequence[str], schema: StructType | None = None) -> DataFrame:
    """The table whose parts are at `paths`. Where the `schema` is known, Spark needs no job to look for it. Raises InputError
    where there is none.
    """
    try:
        if is_pythons(spark, paths[0]):
            return task_files.read(spark, task_files.parquet_files(paths), schema)
        return (spark.read if schema is None else spark.read.schema(schema)).parquet(*paths)
    except SPARK_ERRORS as error:
        # A file that is no Parquet is an error of Java's that pyspark does not translate.
        raise InputError(f"{', '.join(paths)}: no finished parquet table: {first_line(error)}") from error
