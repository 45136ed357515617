"""Files of Event Hubs Capture as events: the data source "eventhubs_capture".

Options besides the path: `layout` (of the files' names), `quarantine` (a folder for files that cannot be read; without
it they end the query), `columns` (of EVENTS, separated by commas: what is not asked for costs little), `secretStorage` (JSON
for the file system), `partitionBytes` (about what one task reads), and `wanted` (JSON as `path_times.FileFilter`: of which time,
hub and partitions files are listed and read).

A file of twice `partitionBytes` and more is read by several tasks, each a piece from one sync marker to another. A file
or piece is read whole or set aside whole: its events are in the output, or it is in the quarantine with a reason that
names their number. With a quarantine, a task holds the events of one file or piece in memory. What Spark opens is one task's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.platform.data_source import Source, TaskReader
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.files import NAME, CaptureFiles
from spark_jobs.sources.capture.layout import DEFAULT, ENDING
from spark_jobs.sources.files.input_files import FoundFile
from spark_jobs.sources.files.path_times import FileFilter
from spark_jobs.sources.files.spark_files import options_of, read_files, url_for_spark
from spark_jobs.task_errors import fails_without_secrets


class TaskTransform(NamedTuple):
    """What each task makes of its batches before Spark sees them, and the schema of that."""

    work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: StructType


def read_capture(
    spark: SparkSession,
    path: str,
    *,
    quarantine: str | None = None,
    columns: Collection[str] | None = None,
    layout: str = DEFAULT,
    storage: Mapping[str, Any] | None = None,
    wanted: FileFilter | None = None,
    then: TaskTransform | None = None,
) -> DataFrame:
    """The events of all capture files below `path`: EVENTS, or the chosen columns of it in that order; or what tasks make of
    them `then`.

    Raises InputError at once where there are no such files or they are named otherwise; files that cannot be read end
    the first action on the frame, or go to `quarantine`. Events that are in several files come several times. Files that
    are not `wanted`, by their paths, are neither listed nor read; of the others all events come.
    """
    chosen = None if columns is None else ",".join(columns)
    asked = None if wanted is None else msgspec.json.encode(wanted).decode()
    options = options_of(spark, path, quarantine, storage, layout=layout, columns=chosen, wanted=asked)
    files = CaptureFiles.of(options)
    schema = StructType([EVENTS[column] for column in files.columns])
    url = url_for_spark(spark, path, storage)
    if url is not None:
        files.quarantined(url)
        folders = files.layout.globs(files.wanted, datetime.now(UTC))
        read = partial(files.batches_of_content, url=url)
        frame = read_files(spark, url, (ENDING,), read, schema, folders=folders)
        return frame if then is None else frame.mapInArrow(then.work, then.schema)
    files.check()
    files.quarantined()
    tasks = [(msgspec.json.encode(task).decode(),) for task in files.tasks()]
    rows = spark.createDataFrame(tasks, "task string").repartition(max(len(tasks), 1))
    # Spark makes rows of what a source gives, and rows of these; here once. That is a third of the processor time.
    work, made = (None, schema) if then is None else then
    return rows.mapInArrow(partial(_of_tasks, files=files, work=work), made)


@fails_without_secrets
def _of_tasks(
    batches: Iterable[pa.RecordBatch],
    files: CaptureFiles,
    work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None,
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for task in batch["task"].to_pylist():
            read = files.batches(msgspec.json.decode(task, type=list[FoundFile]))
            yield from read if work is None else work(read)


class CaptureSource(Source):
    NAME = NAME

    def schema(self) -> StructType:
        return StructType([EVENTS[column] for column in CaptureFiles.of(self.options).columns])

    def reader(self, schema: StructType) -> TaskReader:  # Spark's interface
        files = CaptureFiles.of(self.options)
        return TaskReader(files.tasks, files.batches)
