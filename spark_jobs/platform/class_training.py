"""The short session that leaves the archive of classes: `python -m spark_jobs.platform.class_training`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from spark_jobs.errors import JobError
from spark_jobs.java.class_archive import archive_of
from spark_jobs.java.home import ensure_java
from spark_jobs.platform.classic import SPARK_ERRORS, end_java
from spark_jobs.platform.rows import collected, done_by_tasks
from spark_jobs.platform.session import is_managed, prepared_session


def make_archive(home: Path) -> Path:
    """Makes the archive for the Java in `home`, which takes half a minute, unless it is there.

    Others of this Spark go. Raises JobError where this Java, or the folder of Spark, can have none.
    """
    if is_managed(os.environ):
        raise JobError(
            "the environment names a session of Spark that is not started here, so no archive can help it"
        )
    spark = Path(_find_spark_home())
    archive = archive_of(home, spark)
    if archive.exists():
        return archive
    if not (home / "lib" / "server" / "classes.jsa").exists():
        raise JobError(f"the Java in {home} brings no archive of its own classes, on which others build")
    try:
        with tempfile.TemporaryDirectory(prefix="classes-", dir=spark) as scratch:
            unfinished = Path(scratch, "classes.jsa")
            _leave_classes(unfinished, scratch)
            for old in spark.glob("classes-*.jsa"):
                old.unlink(missing_ok=True)
            unfinished.replace(archive)
    except OSError as error:
        raise JobError(str(error)) from None
    except SPARK_ERRORS as error:
        raise JobError(str(error).partition("\n")[0]) from None
    return archive


def _leave_classes(archive: Path, scratch: str) -> None:
    """Java writes the archive as it ends."""
    options = f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={archive}" -Xlog:disable'
    session = prepared_session(
        "classes", cores=1, memory="1g", extra={"spark.driver.defaultJavaOptions": options}
    )
    try:
        _exercise(session, scratch)
    finally:
        end_java(session)


def _exercise(spark: SparkSession, scratch: str) -> None:
    """A little of all that jobs do: tables, Python over Arrow's batches, a shuffle, a join, rows on the driver, tasks without a query."""
    spark.range(1000).select(
        (F.col("id") % 7).alias("key"),
        F.timestamp_seconds("id").alias("at"),
        F.col("id").cast("string").alias("text"),
        (F.col("id") * 0.5).alias("value"),
    ).write.partitionBy("key").parquet(f"{scratch}/table")
    table = spark.read.parquet(f"{scratch}/table")
    totals = table.groupBy(F.window("at", "1 minute").start.alias("minute"), "key").agg(
        F.count("*").alias("rows"),
        F.sum("value").alias("sum"),
        F.percentile_approx("value", 0.5).alias("middle"),
    )
    collected(table.mapInArrow(_unchanged, table.schema).join(totals, "key").orderBy("at", "minute").limit(9))
    done_by_tasks(spark, str, range(2))


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    """Says in one line where the archive is, or why there is none."""
    try:
        print(f"archive of Spark's classes: {make_archive(ensure_java())}")  # noqa: T201 - this is what the command is for
    except JobError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
