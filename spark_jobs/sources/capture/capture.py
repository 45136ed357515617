"""Files of Event Hubs Capture as events: the data source "eventhubs_capture".

Options besides the path: `layout` (of the files' names), `quarantine` (a folder for files that cannot be read; without
it they end the query), `columns` (of EVENTS, separated by commas: what is not asked for costs little), `secretStorage` (JSON
for the file system), and `partitionBytes` (about what one task reads).

A file is read whole or set aside whole: its events are in the output, or it is in the quarantine with a reason that
tells their number. With a quarantine, a task holds the events of one file in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.errors import InputError
from spark_jobs.platform.data_source import Source, TaskReader
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.files import NAME, CaptureFiles
from spark_jobs.sources.capture.layout import DEFAULT, ENDING
from spark_jobs.sources.files.spark_files import options_of, read_with_spark, url_for_spark


def read_capture(
    spark: SparkSession,
    path: str,
    *,
    quarantine: str | None = None,
    columns: Collection[str] | None = None,
    layout: str = DEFAULT,
    storage: Mapping[str, Any] | None = None,
) -> DataFrame:
    """The events of all capture files below `path`: EVENTS, or the chosen columns of it in that order.

    Raises InputError at once where there are no such files or they are named otherwise; files that cannot be read end
    the first action on the frame, or go to `quarantine`. Events that are in several files come several times.
    """
    chosen = None if columns is None else ",".join(columns)
    options = options_of(spark, path, quarantine, storage, layout=layout, columns=chosen)
    files = CaptureFiles.of(options)
    url = url_for_spark(spark, path, storage)
    if url is not None:
        files.quarantined(url)
        schema = StructType([EVENTS[column] for column in files.columns])
        return read_with_spark(spark, url, (ENDING,), partial(files.batches_of_content, url=url), schema)
    if not files.tasks():
        raise InputError(f"there are no capture files (*{ENDING}) in '{path}'")
    files.quarantined()
    return spark.read.format(NAME).options(**options).load()


class CaptureSource(Source):
    NAME = NAME

    def schema(self) -> StructType:
        return StructType([EVENTS[column] for column in CaptureFiles.of(self.options).columns])

    def reader(self, schema: StructType) -> TaskReader:  # noqa: ARG002 - Spark's interface
        files = CaptureFiles.of(self.options)
        return TaskReader(files.tasks, files.batches)
