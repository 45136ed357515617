"""Tables of results, as Parquet or Delta. A table is there whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.errors import InputError, JobError

Mode = Literal["overwrite", "append"]
FORMATS = ("parquet", "delta")


def check_format(fmt: str) -> str:
    """`fmt`. Raises InputError for what is no format."""
    if fmt not in FORMATS:
        raise InputError(f"--format (or TIDEMARK_SPARK_FORMAT) is '{fmt}'; accepted: {' or '.join(FORMATS)}")
    return fmt


def write_table(
    frame: DataFrame,
    path: str,
    *,
    fmt: str = "parquet",
    mode: Mode = "overwrite",
    partition_by: Sequence[str] = (),
) -> None:
    """Writes the frame as the table at `path`, a local folder or a URL that Spark knows.

    A local Parquet table is replaced in one rename, after all of it was written. On other file systems Spark's
    committer writes `_SUCCESS` last. Delta commits by its log: through Spark's own source where that is on the class
    path, else, for local folders, through the package deltalake.

    Raises InputError for an unknown format, JobError where Delta cannot be written.
    """
    check_format(fmt)
    if fmt == "delta":
        _write_delta(frame, path, mode, partition_by)
    elif mode == "append" or not is_local(path):
        frame.write.mode(mode).partitionBy(*partition_by).parquet(path)
    else:
        _replace(frame, Path(local(path)), partition_by)


def read_table(spark: SparkSession, path: str, fmt: str = "parquet") -> DataFrame:
    """The table at `path`. Raises InputError where there is none, or one that was never finished."""
    check_format(fmt)
    if is_local(path) and not _is_complete(Path(local(path)), fmt):
        raise InputError(f"{path} holds no finished {fmt} table")
    if fmt == "parquet":
        return spark.read.parquet(path)
    if has_delta(spark):
        return spark.read.format("delta").load(path)
    return spark.read.parquet(*_delta_files(path))


def is_delta(spark: SparkSession, path: str) -> bool:
    """True where the table at `path` is one of Delta Lake: it has a log."""
    if is_local(path):
        return Path(local(path), "_delta_log").is_dir()
    try:
        _ = spark.read.text(f"{path}/_delta_log").schema
    except PySparkException:
        return False
    return True


def is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file:")


def local(path: str) -> str:
    """A local path without `file:`."""
    return path.removeprefix("file:").replace("///", "/", 1) if path.startswith("file:") else path


def has_delta(spark: SparkSession) -> bool:
    """True where Spark itself reads and writes Delta Lake."""
    try:
        _ = spark.read.format("delta").load("/tidemark-no-such-table").schema
    except (PySparkException, Py4JJavaError) as error:
        # With Delta Lake it is the table that is not found.
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def _is_complete(folder: Path, fmt: str) -> bool:
    return (folder / ("_SUCCESS" if fmt == "parquet" else "_delta_log")).exists()


def _replace(frame: DataFrame, folder: Path, partition_by: Sequence[str]) -> None:
    """Writes beside the folder, then takes its place."""
    staging, old = (folder.with_name(f".{folder.name}.{part}") for part in ("new", "old"))
    frame.write.mode("overwrite").partitionBy(*partition_by).parquet(str(staging))
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _write_delta(frame: DataFrame, path: str, mode: Mode, partition_by: Sequence[str]) -> None:
    if has_delta(frame.sparkSession):
        writer = frame.write.format("delta").mode(mode).partitionBy(*partition_by)
        if mode == "overwrite":
            writer = writer.option("overwriteSchema", "true")
        writer.save(path)
        return
    if not is_local(path):
        raise JobError(
            f"{path}: Spark has no Delta Lake here; add its package (spark-submit --packages io.delta:...), write to a"
            " local folder, or choose --format parquet"
        )
    _write_deltalake(frame, Path(local(path)), mode, partition_by)


def _write_deltalake(frame: DataFrame, folder: Path, mode: Mode, partition_by: Sequence[str]) -> None:
    """Through Parquet files of Spark's, batch by batch: the result need not fit the driver's memory."""
    try:
        import deltalake  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise JobError(
            "--format delta needs a Delta Lake jar in Spark or pip install 'tidemark[delta]'"
        ) from None
    from pyarrow import dataset  # type: ignore[import-untyped]  # noqa: PLC0415 - only here

    staging = folder.with_name(f".{folder.name}.rows")
    folder.parent.mkdir(parents=True, exist_ok=True)
    frame.write.mode("overwrite").parquet(str(staging))
    try:
        rows = dataset.dataset(staging, format="parquet").scanner().to_reader()
        deltalake.write_deltalake(
            folder,
            rows,
            mode=mode,
            partition_by=list(partition_by) or None,
            schema_mode="overwrite" if mode == "overwrite" else None,
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _delta_files(path: str) -> list[str]:
    import pyarrow as pa  # noqa: PLC0415 - only here

    try:
        import deltalake  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise JobError(
            f"{path}: reading Delta needs a jar in Spark or pip install 'tidemark[delta]'"
        ) from None
    folder = Path(local(path))
    files = deltalake.DeltaTable(folder).get_add_actions()
    return [
        str(folder / unquote(file)) for file in pa.table(files)["path"].to_pylist()
    ]  # the log quotes its names
