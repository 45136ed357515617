"""Tables as Parquet files, and texts, that tasks write and read through fsspec.

A table is overwritten in two steps: tasks add files, then the driver removes all but those. What a task has left that failed
goes with the old ones. So whoever reads a table while it is written may see both: `platform.results` has nobody do that.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from spark_jobs.lake.file_systems import file_system
from spark_jobs.schemas import arrow_schema
from spark_jobs.task_errors import fails_without_secrets
from tidemark.analysis.errors import InputError

_ENDING = ".parquet"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # as Spark calls it
_OTHERS = re.compile(r"/_delta_log/|/[^/=]+=[^/]*/")
_WRITTEN = "path string"
_FILES = "url string, path string"


def added(frame: DataFrame, url: str, partition_by: Sequence[str] = ()) -> DataFrame:
    """Adds the rows to the table at `url`, in folders by the column `partition_by` (one at most), as soon as the frame that
    it gives is collected: the paths of the new files.
    """
    by = next(iter(partition_by), None)
    return frame.mapInArrow(partial(_written, url=url, by=by, run=secrets.token_hex(8)), _WRITTEN)


def replace_others(
    url: str,
    paths: Collection[str],
    schema: StructType,
    *,
    partition_by: Sequence[str] = (),
    only: Collection[str] | None = None,
) -> None:
    """Removes all files but those that were added; with `only`, of these values of the column `partition_by`."""
    by, kept = next(iter(partition_by), None), set(paths)
    system, root = file_system(url)
    if not kept and by is None:
        path = f"{root}/part-none{_ENDING}"
        with system.open(path, "wb") as file:
            parquet.write_table(arrow_schema(schema).empty_table(), file)
        kept = {path}
    places = (root,) if by is None or only is None else tuple(f"{root}/{_place(by, each)}" for each in only)
    old = [path for place in places for path in _files(system, place) if path not in kept]
    if old:
        system.rm(old)


@fails_without_secrets
def _written(
    batches: Iterable[pa.RecordBatch], *, url: str, by: str | None, run: str
) -> Iterator[pa.RecordBatch]:
    system, root = file_system(url)
    context = TaskContext.get()
    assert context is not None  # a task has one
    name = f"part-{context.partitionId():05}-{context.taskAttemptId()}-{run}{_ENDING}"
    writers: dict[str, Any] = {}
    with ExitStack() as stack:
        for batch in batches:
            for place, rows in _cut(batch, by):
                path = f"{root}/{place}{name}"
                if path not in writers:
                    file = stack.enter_context(system.open(path, "wb"))
                    writers[path] = stack.enter_context(parquet.ParquetWriter(file, rows.schema))
                writers[path].write_batch(rows)
    yield pa.RecordBatch.from_pydict({"path": pa.array(list(writers), pa.string())})


def _cut(batch: pa.RecordBatch, by: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by their folder, which has the value instead of them."""
    if not batch.num_rows:
        return
    if by is None:
        yield "", batch
        return
    values, rest = batch.column(by), batch.drop_columns([by])
    for value in pc.unique(values):
        yield (
            f"{_place(by, value.as_py())}/",
            rest.filter(pc.is_in(values, pa.array([value.as_py()], values.type))),
        )


def _place(by: str, value: object) -> str:
    return f"{by}={_NO_VALUE if value is None else quote(str(value), safe='')}"


def _files(system: Any, root: str) -> list[str]:
    return [str(path) for path in system.find(root)]


def read_table(spark: SparkSession, urls: Sequence[str]) -> DataFrame:
    """The table whose files are below these, as `write_table` left it, without a column of the folders' names. Raises
    InputError where there is none.
    """
    files: list[tuple[str, str]] = []
    for url in urls:
        system, root = file_system(url)
        found = _files(system, root)
        odd = next((path for path in found if _OTHERS.search(path.removeprefix(root))), None)
        if odd is not None:
            raise InputError(
                f"{url} holds '{odd}': partitioned tables and Delta need Hadoop's file system for Azure in Spark; accepted "
                "here are Parquet files in one folder"
            )
        files += [(url, path) for path in found if path.endswith(_ENDING)]
    if not files:
        raise InputError(f"{', '.join(urls)}: no finished parquet table")
    system, _ = file_system(files[0][0])
    with system.open(files[0][1]) as file:
        first = from_arrow_schema(parquet.read_schema(file))
    schema = StructType([StructField(field.name, field.dataType) for field in first])  # as Spark reads files
    return spark.createDataFrame(files, _FILES).mapInArrow(_read, schema)


@fails_without_secrets
def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for row in (row for batch in batches for row in batch.to_pylist()):
        system, _ = file_system(row["url"])
        with system.open(row["path"]) as file:
            yield from parquet.ParquetFile(file).iter_batches()


# -- texts


def write_line(line: str, url: str) -> None:
    system, root = file_system(url)
    system.pipe_file(f"{root}/part-00000.txt", f"{line}\n".encode())


def read_lines(url: str) -> list[str]:
    """All lines of the files below; none where nothing is."""
    system, root = file_system(url)
    texts = [system.cat_file(path).decode() for path in _files(system, root)]
    return [line for text in texts for line in text.splitlines() if line]
