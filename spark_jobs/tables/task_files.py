"""Parquet files that tasks write and read through fsspec, where Spark has no file system."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from spark_jobs.schemas import arrow_schema
from spark_jobs.tables.file_systems import file_system
from spark_jobs.task_errors import fails_without_secrets
from tidemark.analysis.errors import InputError

_ENDING = ".parquet"
_PARTITION = re.compile(r"/[^/=]+=[^/]*/")
_WRITTEN = "path string, size long, rows long, day string"


def added(frame: DataFrame, url: str, by: str | None, prefix: str = "") -> DataFrame:
    """Adds the rows to the folder `url`, in folders by the column `by`, as soon as the frame that it gives is collected: the
    new files, by their paths below `url`; a task without rows adds none.
    """
    named = prefix or secrets.token_hex(8)
    return frame.mapInArrow(partial(_written, url=url, by=by, prefix=named), _WRITTEN)


def add_empty(url: str, schema: StructType) -> str:
    """Adds a file without rows to the folder `url`; returns its path below it."""
    system, root = file_system(url)
    name = f"part-none{_ENDING}"
    with system.open(f"{root}/{name}", "wb") as file:
        parquet.write_table(arrow_schema(schema).empty_table(), file)
    return name


def remove_others(url: str, paths: Collection[str]) -> None:
    """Removes all files below the folder but those that were added."""
    system, root = file_system(url)
    kept = {f"{root}/{path}" for path in paths}
    old = [path for path in _files(system, root) if path not in kept]
    if old:
        system.rm(old)


@fails_without_secrets
def _written(
    batches: Iterable[pa.RecordBatch], *, url: str, by: str | None, prefix: str
) -> Iterator[pa.RecordBatch]:
    system, root = file_system(url)
    context = TaskContext.get()
    assert context is not None  # a task has one
    name = f"{prefix}-{context.partitionId():05}-{context.taskAttemptId()}{_ENDING}"
    writers: dict[str, Any] = {}
    rows: Counter[str] = Counter()
    days: dict[str, str | None] = {}
    with ExitStack() as stack:
        for batch in batches:
            for day, part in _by_value(batch, by):
                path = name if day is None else f"{by}={day}/{name}"
                if path not in writers:
                    file = stack.enter_context(system.open(f"{root}/{path}", "wb"))
                    writers[path] = stack.enter_context(parquet.ParquetWriter(file, part.schema))
                writers[path].write_batch(part)
                rows[path] += part.num_rows
                days[path] = day
    written = [
        {"path": path, "size": system.info(f"{root}/{path}")["size"], "rows": rows[path], "day": days[path]}
        for path in writers
    ]
    kinds = {"path": pa.string(), "size": pa.int64(), "rows": pa.int64(), "day": pa.string()}
    yield pa.RecordBatch.from_pylist(written, schema=pa.schema(kinds))


def _by_value(batch: pa.RecordBatch, by: str | None) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The rows by their value, which is in the name of their folder instead of them."""
    if not batch.num_rows:
        return
    if by is None:
        yield None, batch
        return
    values, rest = batch.column(by), batch.drop_columns([by])
    for value in pc.unique(values):
        yield value.as_py(), rest.filter(pc.equal(values, value))


def _files(system: Any, root: str) -> list[str]:
    return [str(path) for path in system.find(root)]


def parquet_files(urls: Sequence[str]) -> list[str]:
    """The URLs of all Parquet files below these. Raises InputError where there is none, and for a table whose files do not
    tell all.
    """
    files: list[str] = []
    for url in urls:
        system, root = file_system(url)
        names = [path.removeprefix(root) for path in _files(system, root)]
        odd = next((path for path in names if _PARTITION.search(path)), None)
        if odd is not None:
            raise InputError(
                f"{url} holds '{odd}': partitioned tables need Hadoop's file system for Azure in Spark; accepted "
                "here are Parquet files in one folder"
            )
        files += [f"{url.rstrip('/')}{path}" for path in names if path.endswith(_ENDING)]
    if not files:
        raise InputError(f"{', '.join(urls)}: no finished parquet table")
    return files


def read(spark: SparkSession, urls: Sequence[str], schema: StructType | None = None) -> DataFrame:
    """The rows of the Parquet files at these URLs, of which there are some."""
    if schema is None:
        system, path = file_system(urls[0])
        with system.open(path) as file:
            schema = StructType([*map(_nullable, from_arrow_schema(parquet.read_schema(file)))])
    return spark.createDataFrame([(url,) for url in urls], "url string").mapInArrow(_read, schema)


def _nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType)  # as Spark reads files


@fails_without_secrets
def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for url in (url for batch in batches for url in batch["url"].to_pylist()):
        system, path = file_system(url)
        with system.open(path) as file:
            yield from parquet.ParquetFile(file).iter_batches()
