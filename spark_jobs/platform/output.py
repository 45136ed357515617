"""Tables as Parquet or Delta, and short texts: Spark writes them and reads them, wherever it reaches; its Python elsewhere.

No path is looked at to guess what it means: `qualified` asks Spark. See `results` for tables that appear together.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.errors import InputError, JobError
from spark_jobs.lake import tables
from spark_jobs.lake.file_systems import is_lake
from spark_jobs.platform.classic import SPARK_ERRORS
from spark_jobs.platform.rows import collected

FORMATS = ("parquet", "delta")

_Value = TypeVar("_Value")

_NOWHERE = "tidemark-no-such-file"
_ABSENT = "PATH_NOT_FOUND"
_NO_FILE_SYSTEM = ("No FileSystem for scheme", "ClassNotFoundException")  # what Hadoop says

# Of the features a Delta table may ask a reader for, those that change nothing for one who reads the files of the log.
_PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


def check_format(fmt: str) -> str:
    """`fmt`. Raises InputError for what is no format."""
    if fmt not in FORMATS:
        raise InputError(f"--format (or TIDEMARK_SPARK_FORMAT) is '{fmt}'; accepted: {' or '.join(FORMATS)}")
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
        if error.getCondition() == _ABSENT and told.endswith(_NOWHERE):
            return told.removesuffix(_NOWHERE).rstrip("/") or "/"
        raise InputError(f"Spark cannot look at '{path}': {_line(error)}") from error
    except SPARK_ERRORS as error:
        raise InputError(f"Spark cannot look at '{path}': {_line(error)}") from error
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


def _line(error: Exception) -> str:
    """The first line that says something: py4j's own says only that there was an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("An error occurred while calling")), "")


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
        if isinstance(error, AnalysisException) and error.getCondition() == _ABSENT:
            return []
        raise JobError(f"{path} cannot be read: {_line(error)}") from error
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

    Overwriting Parquet is no single step: while it lasts, and after a failure, what was there is gone. Delta commits by
    its log: through Spark's own source where that is on the class path, else, for folders of this machine, through the
    package deltalake. `only` are values of the first of `partition_by`: these partitions are replaced, others stay.

    Raises InputError for an unknown format, JobError where Delta cannot be written.
    """
    check_format(fmt)
    if fmt == "delta":
        _write_delta(frame, path, partition_by, only)
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
    """The table at `paths`, which are parts of one; of Delta there is one path, and `version` may be an old one. Where the
    `schema` is known, Spark needs no job to look for that of Parquet files.

    Raises InputError where there is none, JobError where Delta cannot be read.
    """
    check_format(fmt)
    given = [paths] if isinstance(paths, str) else list(paths)
    try:
        if fmt == "parquet" and is_pythons(spark, given[0]):
            return tables.read_table(spark, given)
        if fmt == "parquet":
            return (spark.read if schema is None else spark.read.schema(schema)).parquet(*given)
        if has_delta(spark):
            reader = spark.read.format("delta")
            frame = (reader if version is None else reader.option("versionAsOf", str(version))).load(given[0])
            _ = frame.schema
            return frame
    except AnalysisException as error:
        raise InputError(f"{', '.join(given)}: no finished {fmt} table: {_line(error)}") from error
    return _read_deltalake(spark, given[0], version)


def read_parquet_or_delta(spark: SparkSession, path: str) -> DataFrame:
    """A table of somebody else's: of a Delta table only what its log calls live. Raises InputError and JobError."""
    return read_table(spark, path, "delta" if is_delta(spark, path) else "parquet")


def is_delta(spark: SparkSession, path: str) -> bool:
    """True where the table at `path` is one of Delta Lake: it has a log."""
    try:
        _ = spark.read.text(f"{path.rstrip('/')}/_delta_log").schema
    except SPARK_ERRORS:
        return False
    return True


def has_delta(spark: SparkSession) -> bool:
    """True where Spark itself reads and writes Delta Lake."""
    try:
        _ = spark.read.format("delta").load("/tidemark-no-such-table").schema
    except SPARK_ERRORS as error:
        # With Delta Lake it is the table that is not found.
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def delta_version(spark: SparkSession, path: str) -> int:
    """The newest version of the Delta table."""
    if has_delta(spark):
        [row] = collected(spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").select("version"))
        return int(row.version)
    return int(_deltalake().DeltaTable(_delta_folder(spark, path)).version())


def _write_delta(
    frame: DataFrame, path: str, partition_by: Sequence[str], only: Collection[str] | None
) -> None:
    spark = frame.sparkSession
    where = None
    if only is not None and is_delta(spark, path):
        where = f"{partition_by[0]} IN ({', '.join(repr(each) for each in sorted(only))})"
    if has_delta(spark):
        writer = frame.write.format("delta").mode("overwrite").partitionBy(*partition_by)
        writer.option(*(("replaceWhere", where) if where else ("overwriteSchema", "true"))).save(path)
        return
    folder = _delta_folder(spark, path)
    lake = _deltalake()
    from pyarrow import dataset  # noqa: PLC0415 - only here

    # Through Parquet files of Spark's, batch by batch: the result need not fit the driver's memory.
    staging = folder.with_name(f".{folder.name}.rows")
    frame.write.mode("overwrite").parquet(f"file:{staging}")
    try:
        lake.write_deltalake(
            folder,
            dataset.dataset(staging, format="parquet").scanner().to_reader(),
            mode="overwrite",
            partition_by=list(partition_by) or None,
            schema_mode=None if where else "overwrite",
            predicate=where,
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _deltalake() -> Any:
    """The package. Raises JobError."""
    try:
        import deltalake  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise JobError("Delta needs a Delta Lake jar in Spark or pip install 'tidemark[delta]'") from None
    return deltalake


def _delta_folder(spark: SparkSession, path: str) -> Path:
    """Where the package deltalake finds the table. Raises JobError for one that is not on this machine."""
    folder = local_folder(spark, path)
    if folder is None:
        raise JobError(
            f"{path}: Spark has no Delta Lake here; add its package (spark-submit --packages io.delta:...), use a folder"
            " of this machine, or choose --format parquet"
        )
    return folder


def _read_deltalake(spark: SparkSession, path: str, version: int | None) -> DataFrame:
    """The files that the log calls live, read by Spark. Raises InputError, and JobError for what files alone do not tell."""
    folder, lake = _delta_folder(spark, path), _deltalake()
    try:
        table = lake.DeltaTable(folder, version=version)
    except lake.exceptions.TableNotFoundError as error:
        raise InputError(f"{path} holds no finished delta table") from error
    protocol, settings = table.protocol(), table.metadata().configuration
    unknown = set(protocol.reader_features or ()) - _PLAIN_FEATURES
    if settings.get("delta.columnMapping.mode", "none") != "none":
        unknown.add("columnMapping")
    if unknown:
        raise JobError(
            f"{path} uses features of Delta Lake that need its jar in Spark (--packages io.delta:...): "
            f"{', '.join(sorted(unknown))}"
        )
    # From the log, since a partition's column is in no file: its type, too, would be a guess.
    schema = from_arrow_schema(pa.schema(table.schema().to_arrow()))
    live = pa.table(table.get_add_actions())["path"].to_pylist()
    if not live:
        return spark.createDataFrame([], schema)
    files = [f"file:{folder / unquote(file)}" for file in live]  # the log quotes its names
    return spark.read.schema(schema).option("basePath", f"file:{folder}").parquet(*files)
