"""Tables as Parquet, Delta or Iceberg, and short texts: Spark writes them and reads them, wherever it reaches; its Python elsewhere.

No path is looked at to guess what it means: `qualified` asks Spark. See `results` for tables that appear together.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.lake import iceberg, tables
from spark_jobs.lake.file_systems import is_lake
from spark_jobs.platform.classic import SPARK_ERRORS
from spark_jobs.platform.failures import first_line, is_absence
from spark_jobs.platform.rows import collected
from tidemark.analysis.errors import InputError, JobError
from tidemark.foundation.version import install_hint

JARS = {"delta": "io.delta:...", "iceberg": "org.apache.iceberg:iceberg-spark-runtime-..."}
"""What Spark needs to read and write a format by itself."""
VERSIONED = tuple(JARS)
"""Formats whose log keeps old versions of a table: what is replaced can still be read."""
FORMATS = ("parquet", *VERSIONED)

_Value = TypeVar("_Value")

_NOWHERE = "tidemark-no-such-file"
_NO_FILE_SYSTEM = ("No FileSystem for scheme", "ClassNotFoundException")  # what Hadoop says


def check_format(fmt: str) -> str:
    """`fmt`. Raises InputError for what is no format."""
    if fmt not in FORMATS:
        raise InputError(f"--format (or TIDEMARK_SPARK_FORMAT) is '{fmt}'; accepted: {', '.join(FORMATS)}")
    return fmt


# -- where a path is


def check_folder(path: str, option: str) -> str:
    """`path`, a folder to write to. Raises InputError for one that Spark would not find again: it reads by patterns."""
    found = sorted(set(path) & set("*?[]{}\\"))
    if found:
        raise InputError(
            f"{option} is '{path}', in which {' '.join(found)} would be a pattern; accepted: a name without"
        )
    return path


def qualified(spark: SparkSession, path: str) -> str:
    """The URL that Spark's file systems give a path, which need not exist: file:/data/out, abfss://..., dbfs:/out.

    A path without a scheme belongs to Spark's default file system, which a platform chooses. Raises InputError where Spark
    has no file system for it.
    """
    try:
        _ = spark.read.text(f"{path.rstrip('/')}/{_NOWHERE}").schema
    except AnalysisException as error:
        told = (error.getMessageParameters() or {}).get("path", "")
        if is_absence(error) and told.endswith(_NOWHERE):
            return told.removesuffix(_NOWHERE).rstrip("/") or "/"
        raise InputError(f"Spark cannot look at '{path}': {first_line(error)}") from error
    except SPARK_ERRORS as error:
        raise InputError(f"Spark cannot look at '{path}': {first_line(error)}") from error
    raise InputError(f"'{path}/{_NOWHERE}' exists; give another folder")


def is_pythons(spark: SparkSession, path: str) -> bool:
    """True for a place in a data lake that Spark has no file system for: Python's tasks write there, and read."""
    if not is_lake(path):
        return False
    try:
        qualified(spark, path)
    except InputError as error:
        # Not where Spark has one that fails: with other rights, another might do what this may not.
        return any(sign in str(error.__cause__) for sign in _NO_FILE_SYSTEM)
    return False


def local_folder(spark: SparkSession, path: str) -> Path | None:
    """The folder on this machine that Spark means by the path; None where it means one elsewhere."""
    if is_pythons(spark, path):
        return None
    scheme, colon, rest = qualified(spark, path).partition(":")
    return Path("/" + rest.lstrip("/")) if colon and scheme == "file" else None


# -- texts


def write_line(spark: SparkSession, line: str, path: str) -> None:
    """Writes one line of text as the folder `path`, over what is there: the line is there whole, or nothing is."""
    if is_pythons(spark, path):
        tables.write_line(line, path)
        return
    spark.createDataFrame([(line,)], "value string").coalesce(1).write.mode("overwrite").text(path)


def read_lines(spark: SparkSession, path: str, kind: type[_Value], *, what: str, advice: str) -> list[_Value]:
    """The values that `write_line` wrote as JSON to folders in `path`; none where nothing is.

    Raises JobError where Spark cannot read them, and with the advice for what is none.
    """
    try:
        if is_pythons(spark, path):
            lines = tables.read_lines(path)
        else:
            found = collected(spark.read.option("recursiveFileLookup", "true").text(path))
            lines = [row.value for row in found]
    except SPARK_ERRORS as error:
        if is_absence(error):
            return []
        raise JobError(f"{path} cannot be read: {first_line(error)}") from error
    try:
        return [msgspec.json.decode(line, type=kind) for line in lines]
    except msgspec.DecodeError as error:
        raise JobError(f"{path} holds what is no {what}: {error}; {advice}") from error


# -- tables


def write_table(
    frame: DataFrame,
    path: str,
    *,
    fmt: str = "parquet",
    partition_by: Sequence[str] = (),
    only: Collection[str] | None = None,
) -> None:
    """Writes the frame as the table at `path`, as Spark understands it, over what is there.

    Overwriting Parquet is no single step: while it lasts, and after a failure, what was there is gone. Delta and Iceberg
    commit by their logs, through Spark's own source; Delta in folders of this machine also through the package deltalake.
    `only` are values of the first of `partition_by`: these partitions are replaced, others stay.

    Raises InputError for an unknown format, JobError where Delta or Iceberg cannot be written.
    """
    check_format(fmt)
    if fmt in VERSIONED:
        _write_version(frame, path, fmt, partition_by, only)
        return
    if is_pythons(frame.sparkSession, path):
        paths = [row.path for row in collected(tables.added(frame, path, partition_by))]
        tables.replace_others(path, paths, frame.schema, partition_by=partition_by, only=only)
        return
    writer = frame.write.mode("overwrite").partitionBy(*partition_by)
    if only is not None:
        writer = writer.option("partitionOverwriteMode", "dynamic")
    writer.parquet(path)


def move_files(files: Sequence[str], folder: Path) -> None:
    """Makes Parquet files of this machine the table in the folder, over what is there. They are on the same disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        Path(file).replace(folder / Path(file).name)


def read_table(
    spark: SparkSession,
    paths: Sequence[str] | str,
    fmt: str = "parquet",
    *,
    version: int | None = None,
    schema: StructType | None = None,
) -> DataFrame:
    """The table at `paths`, which are parts of one; of Delta and Iceberg there is one path, and `version` may be an old one.
    Where the `schema` is known, Spark needs no job to look for that of Parquet files.

    Raises InputError where there is none, JobError where Delta or Iceberg cannot be read.
    """
    check_format(fmt)
    given = [paths] if isinstance(paths, str) else list(paths)
    try:
        if fmt in VERSIONED:
            return _read_version(spark, given[0], fmt, version)
        if is_pythons(spark, given[0]):
            return tables.read_table(spark, given)
        return (spark.read if schema is None else spark.read.schema(schema)).parquet(*given)
    except (
        SPARK_ERRORS
    ) as error:  # a file that is no Parquet is an error of Java's that pyspark does not translate
        raise InputError(f"{', '.join(given)}: no finished {fmt} table: {first_line(error)}") from error


def read_parquet_or_delta(spark: SparkSession, path: str) -> DataFrame:
    """A table of somebody else's: of a Delta table only what its log calls live. Raises InputError and JobError."""
    return read_table(spark, path, "delta" if is_delta(spark, path) else "parquet")


def is_delta(spark: SparkSession, path: str) -> bool:
    """True where the table at `path` is one of Delta Lake: it has a log. Raises JobError where Spark cannot tell."""
    return _has(spark, path, "_delta_log")


def _has(spark: SparkSession, path: str, name: str) -> bool:
    """An error is not the answer that nothing is there: a table would be made over one that is."""
    try:
        _ = spark.read.text(f"{path.rstrip('/')}/{name}").schema
    except SPARK_ERRORS as error:
        if is_absence(error) or is_pythons(spark, path):
            return False
        raise JobError(f"Spark cannot look at {path}: {first_line(error)}") from error
    return True


def has_source(spark: SparkSession, fmt: str) -> bool:
    """True where Spark itself reads and writes Delta Lake, or Iceberg."""
    try:
        _ = spark.read.format(fmt).load("/tidemark-no-such-table").schema
    except SPARK_ERRORS as error:
        # With the jar it is the table that is not found, or the catalog.
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def newest_version(spark: SparkSession, path: str, fmt: str) -> int:
    """The newest version of the Delta table, or snapshot of the Iceberg table."""
    if not has_source(spark, fmt):
        return int(_package(fmt).newest(_own_folder(spark, path)))
    url = qualified(spark, path)  # Delta takes a relative path for the name of a table
    if fmt == "iceberg":
        version = iceberg.newest(spark, url)
    else:
        version = spark.sql(f"DESCRIBE HISTORY delta.`{url}` LIMIT 1").select("version")
    [row] = collected(version)
    return int(row[0])


def _write_version(
    frame: DataFrame, path: str, fmt: str, partition_by: Sequence[str], only: Collection[str] | None
) -> None:
    spark = frame.sparkSession
    if has_source(spark, fmt):
        if fmt == "delta":
            _write_delta(frame, path, partition_by, only)
        else:
            iceberg.replace(frame, qualified(spark, path), partition_by, only)
        return
    package, folder = _package(fmt), _own_folder(spark, path)
    with _staged(frame.sortWithinPartitions(*partition_by) if partition_by else frame, folder) as rows:
        package.replace(folder, rows, partition_by, only)


@contextmanager
def _staged(frame: DataFrame, folder: Path) -> Iterator[Path]:
    """The rows as Parquet files of Spark's, beside the folder: a package that reads them batch by batch needs no memory for
    all.
    """
    rows = folder.with_name(f".{folder.name}.rows")
    frame.write.mode("overwrite").parquet(f"file:{rows}")
    try:
        yield rows
    finally:
        shutil.rmtree(rows, ignore_errors=True)


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
            if _has(spark, table, "metadata"):
                raise InputError(
                    f"{table} holds a table of Iceberg, which is merged into by its name in a catalog"
                )
            # Empty at first: another run may make it at the same time, and neither may lose its rows.
            _make_delta(frame.limit(0), table)
        if not has_source(spark, "delta"):
            folder = _own_folder(spark, table)
            with _staged(frame, _unshared(folder)) as rows:
                _package("delta").merge(folder, rows, keys)
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
    folder = _own_folder(spark, path)
    with _staged(frame, _unshared(folder)) as rows:
        _package("delta").make(folder, rows)


def _unshared(folder: Path) -> Path:
    """A name for rows that are this run's alone: others may merge into the table meanwhile."""
    return folder.with_name(f"{folder.name}.{secrets.token_hex(8)}")


def _write_delta(
    frame: DataFrame, path: str, partition_by: Sequence[str], only: Collection[str] | None
) -> None:
    writer = frame.write.format("delta").mode("overwrite").partitionBy(*partition_by)
    if only is not None and is_delta(frame.sparkSession, path):
        where = f"{partition_by[0]} IN ({', '.join(repr(each) for each in sorted(only))})"
        writer.option("replaceWhere", where).save(path)
    else:
        writer.option("overwriteSchema", "true").save(path)


def check_writer(spark: SparkSession, fmt: str) -> None:
    """Raises JobError where neither Spark nor a package can write the format, InputError for an unknown one."""
    if check_format(fmt) in VERSIONED and not has_source(spark, fmt):
        _package(fmt)


def _package(fmt: str) -> Any:
    """The module that writes and reads Delta tables without Spark's. Raises JobError."""
    if fmt != "delta":
        raise JobError(
            f"--format {fmt} needs its runtime in Spark: add it (spark-submit --packages {JARS[fmt]}), or write --format "
            "parquet, from which docs/spark.md shows how to make an Iceberg table on one machine"
        )
    try:
        return import_module("spark_jobs.lake.delta")
    except ModuleNotFoundError:
        raise JobError(
            f"--format {fmt} needs its jar in Spark ({JARS[fmt]}) or its package: {install_hint(fmt)}"
        ) from None


def _own_folder(spark: SparkSession, path: str) -> Path:
    """Where the package finds the Delta table. Raises JobError for one that is not on this machine."""
    folder = local_folder(spark, path)
    if folder is None:
        raise JobError(
            f"{path}: Spark has no delta here; add its package (spark-submit --packages {JARS['delta']}), use a folder of"
            " this machine, or choose --format parquet"
        )
    return folder


def _read_version(spark: SparkSession, path: str, fmt: str, version: int | None) -> DataFrame:
    if has_source(spark, fmt):
        if fmt == "delta":
            reader = spark.read if version is None else spark.read.option("versionAsOf", str(version))
            frame = reader.format("delta").load(path)
        else:
            frame = iceberg.read(spark, qualified(spark, path), version)
        _ = frame.schema
        return frame
    package, folder = _package(fmt), _own_folder(spark, path)
    columns, files = package.live(folder, version)
    schema = from_arrow_schema(columns)
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", f"file:{folder}")
    return reader.parquet(*(f"file:{file}" for file in files))
