"""Tables of others: read, whatever they are, and merged into."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.platform.classic import SPARK_ERRORS
from spark_jobs.platform.failures import first_line
from spark_jobs.tables.places import has, has_source, is_delta, is_pythons, local_folder, qualified
from spark_jobs.tables.plain import read_parquet
from spark_jobs.tables.stores import JAR, committed
from tidemark.analysis.errors import InputError, JobError


def read_parquet_or_delta(spark: SparkSession, path: str) -> DataFrame:
    """A table of somebody else's: of a Delta table only what its log calls live. Raises InputError and JobError."""
    return read_delta(spark, path) if is_delta(spark, path) else read_parquet(spark, [path])


def read_delta(spark: SparkSession, path: str) -> DataFrame:
    """Raises InputError where there is none, JobError where it cannot be read."""
    if not has_source(spark, "delta"):
        is_here = not is_pythons(spark, path)
        url = str(_own_folder(spark, path)) if is_here else path.rstrip("/")
        live_rows: DataFrame = committed().read_live(spark, url, None, is_here=is_here)
        return live_rows
    try:
        frame = spark.read.format("delta").load(path)
        _ = frame.schema
    except SPARK_ERRORS as error:
        raise InputError(f"{path}: no finished delta table: {first_line(error)}") from error
    return frame


def merge_rows(frame: DataFrame, table: str, keys: Sequence[str]) -> None:
    """MERGE into a table of somebody else's, in one commit: rows with the same keys are replaced where they differ, others
    are inserted, and none is deleted. Columns that the frame has not stay as they are. Twice is as once.

    `table` is the path of a Delta table, which is made where there is none, or a name that a catalog of the session knows.
    Raises JobError where it cannot be merged into, and InputError for a path where a table of Iceberg is.
    """
    spark = frame.sparkSession
    name = ".".join(f"`{part}`" for part in table.split("."))
    if "/" in table:
        if not is_delta(spark, table):
            if has(spark, table, "metadata"):
                raise InputError(
                    f"{table} holds a table of Iceberg, which is merged into by its name in a catalog"
                )
            # Empty at first: another run may make it at the same time, and neither may lose its rows.
            _make_delta(frame.limit(0), table)
        if not has_source(spark, "delta"):
            folder = _own_folder(spark, table)
            with _staged(frame, folder) as rows:
                committed().delta_log.merge(folder, rows, keys)
            return
        name = f"delta.`{qualified(spark, table)}`"
    columns = [f"`{column}`" for column in frame.columns]
    same = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in keys)
    equal = " AND ".join(f"t.{column} <=> s.{column}" for column in columns)
    update = ", ".join(f"t.{column} = s.{column}" for column in columns)
    values = ", ".join(f"s.{column}" for column in columns)
    command = (
        f"MERGE INTO {name} AS t USING {{rows}} AS s ON {same} WHEN MATCHED AND NOT ({equal}) THEN UPDATE SET {update} "  # noqa: S608 - names, no values
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )
    try:
        spark.sql(command, rows=frame)
    except SPARK_ERRORS as error:
        raise JobError(f"Spark cannot merge into {table}: {first_line(error)}") from error


def _make_delta(frame: DataFrame, path: str) -> None:
    """Makes the frame the table, unless there is one."""
    spark = frame.sparkSession
    if has_source(spark, "delta"):
        frame.write.format("delta").mode("ignore").save(path)
        return
    package = committed()
    schema = package.delta_log.Schema.from_json(package.nullable_json(frame.schema))
    package.delta_log.make_table(str(_own_folder(spark, path)), schema)


@contextmanager
def _staged(frame: DataFrame, folder: Path) -> Iterator[Path]:
    """The rows as Parquet files of Spark's, beside the folder: a package that reads them batch by batch needs no memory for
    all. Others may merge into the table meanwhile, so their name is this run's alone.
    """
    rows = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.rows")
    frame.write.mode("overwrite").parquet(f"file:{rows}")
    try:
        yield rows
    finally:
        shutil.rmtree(rows, ignore_errors=True)


def _own_folder(spark: SparkSession, path: str) -> Path:
    """Where the package finds the Delta table. Raises JobError for one that is not on this machine."""
    folder = local_folder(spark, path)
    if folder is None:
        raise JobError(
            f"{path}: Spark has no Delta Lake here; add its jar ({JAR}), or use a folder of this machine"
        )
    return folder
