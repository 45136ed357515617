"""Files of Event Hubs Capture as events: the data source "eventhubs_capture", batch and streaming.

Options besides the path: `layout` (of the files' names), `quarantine` (a folder for files that cannot be read; without
it they end the query), `columns` (of EVENTS, separated by commas: what is not asked for costs little), `secretStorage` (JSON
for the file system), `partitionBytes` (about what one task reads), and for streams `maxFilesPerTrigger`.

A file is read whole or set aside whole: its events are in the output, or it is in the quarantine with a reason that
tells their number. With a quarantine, a task holds the events of one file in memory.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.errors import InputError
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.avro_container import CorruptFileError, announced_events
from spark_jobs.sources.capture.decoder import Source, decode_file
from spark_jobs.sources.capture.layout import DEFAULT, ENDING, CaptureLayout, Place
from spark_jobs.sources.capture.offsets import CaptureFile
from spark_jobs.sources.files.input_files import Folder, Quarantine
from spark_jobs.sources.files.spark_files import folder_for_python, read_with_spark, url_for_spark
from spark_jobs.sources.options import STORAGE, check_secrets, needs_stream_limits, positive

NAME = "eventhubs_capture"

PARTITION_BYTES = 32 << 20
"""About one second of decoding: enough to outweigh a task's start, little enough to keep all cores busy."""


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
    if quarantine and not storage:
        quarantine = folder_for_python(spark, quarantine)
    options = _given(path, quarantine, columns, layout, storage)
    settings = CaptureSettings.of(options)
    url = url_for_spark(spark, path, storage)
    if url is not None:
        if quarantine:
            Quarantine(quarantine, url)
        task = partial(_read_file, settings=settings, url=url)
        schema = StructType([EVENTS[column] for column in settings.columns])
        return read_with_spark(spark, url, (ENDING,), task, schema)
    if not settings.files():
        raise InputError(f"there are no capture files (*{ENDING}) in '{path}'")
    settings.quarantined()
    return spark.read.format(NAME).options(**options).load()


def stream_capture(
    spark: SparkSession,
    path: str,
    *,
    quarantine: str | None = None,
    columns: Collection[str] | None = None,
    layout: str = DEFAULT,
    storage: Mapping[str, Any] | None = None,
    max_files_per_trigger: int | None = None,
) -> DataFrame:
    """As `read_capture`, for files as they come; the oldest windows first. The folder may be empty yet, but is there."""
    if not storage:
        path = folder_for_python(spark, path)
        quarantine = folder_for_python(spark, quarantine) if quarantine else None
    options = _given(path, quarantine, columns, layout, storage)
    if max_files_per_trigger is not None:
        options["maxFilesPerTrigger"] = str(max_files_per_trigger)
    settings = CaptureSettings.of(options)
    settings.files()
    settings.quarantined()
    return spark.readStream.format(NAME).options(**options).load()


def _given(
    path: str,
    quarantine: str | None,
    columns: Collection[str] | None,
    layout: str,
    storage: Mapping[str, Any] | None,
) -> dict[str, str]:
    options = {"path": path, "layout": layout}
    if quarantine is not None:
        options["quarantine"] = quarantine
    if columns is not None:
        options["columns"] = ",".join(columns)
    if storage:
        options[STORAGE] = json.dumps(dict(storage))
    return options


@dataclass(frozen=True)
class CaptureSettings:
    """The options, parsed. Raises InputError naming the one at fault."""

    path: str
    layout: str
    quarantine: str | None
    columns: tuple[str, ...]
    storage: dict[str, Any]
    partition_bytes: int
    max_files: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CaptureSettings:
        check_secrets(options)
        path = options.get("path")
        if not path:
            raise InputError(f'the source "{NAME}" needs a path: the folder of the capture files')
        storage = options.get(STORAGE)
        limit = options.get("maxFilesPerTrigger")
        return cls(
            path=path,
            layout=options.get("layout") or DEFAULT,
            quarantine=options.get("quarantine") or None,
            columns=_columns(options.get("columns")),
            storage=json.loads(storage) if storage else {},
            partition_bytes=positive("partitionBytes", options.get("partitionBytes") or str(PARTITION_BYTES)),
            max_files=None if limit is None else positive("maxFilesPerTrigger", limit),
        )

    def folder(self) -> Folder:
        return Folder(self.path, self.storage)

    def quarantined(self) -> Quarantine | None:
        return Quarantine(self.quarantine, self.folder(), self.storage) if self.quarantine else None

    def files(self) -> list[CaptureFile]:
        layout = CaptureLayout(self.layout)
        return [CaptureFile(*found, layout.place(found.name)) for found in self.folder().find(ENDING)]

    def tasks(self, files: Sequence[CaptureFile]) -> list[Files]:
        """Files in their order, so many together as make up `partition_bytes`."""
        tasks: list[list[CaptureFile]] = []
        size = self.partition_bytes
        for file in files:
            if size >= self.partition_bytes:
                tasks.append([])
                size = 0
            tasks[-1].append(file)
            size += file.size
        return [Files(task) for task in tasks]


def _columns(text: str | None) -> tuple[str, ...]:
    names = tuple(EVENTS.fieldNames())
    if not text:
        return names
    chosen = {name.strip() for name in text.split(",")}
    unknown = sorted(chosen - set(names))
    if unknown:
        raise InputError(f"columns name {', '.join(unknown)}; accepted: {', '.join(names)}")
    return tuple(name for name in names if name in chosen)


class Files(InputPartition):
    """What one task reads."""

    def __init__(self, files: Sequence[CaptureFile]) -> None:
        self.files = tuple(files)


class CaptureSource(DataSource):
    """The data source "eventhubs_capture"."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        columns = CaptureSettings.of(self.options).columns
        return StructType([EVENTS[column] for column in columns])

    def reader(self, schema: StructType) -> CaptureReader:  # noqa: ARG002 - Spark's interface
        return CaptureReader(CaptureSettings.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's interface
        needs_stream_limits(NAME)
        from spark_jobs.sources.capture.stream import CaptureStreamReader  # noqa: PLC0415 - not before 4.2

        return CaptureStreamReader(CaptureSettings.of(self.options))


class CaptureReader(DataSourceReader):
    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        return self._settings.tasks(self._settings.files())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(self._settings, partition)


# -- in a task ---------------------------------------------------------------------------------------------


def batches_of(settings: CaptureSettings, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The batches of a task. Nothing is kept between two files but the settings."""
    if not isinstance(partition, Files):  # Spark's stand-in where there are no files
        return
    folder, quarantine = settings.folder(), settings.quarantined()
    for file in partition.files:
        try:
            data = folder.read(file.name)
        except FileNotFoundError as error:
            raise InputError(f"the capture file '{file.name}' was deleted before it was read") from error
        yield from _decoded(file.name, file.place, data, settings, quarantine)


def _read_file(
    name: str, data: memoryview, *, settings: CaptureSettings, url: str
) -> Iterator[pa.RecordBatch]:
    quarantine = Quarantine(settings.quarantine, url) if settings.quarantine else None
    return _decoded(name, CaptureLayout(settings.layout).place(name), data, settings, quarantine)


def _decoded(
    name: str, place: Place, data: memoryview, settings: CaptureSettings, quarantine: Quarantine | None
) -> Iterator[pa.RecordBatch]:
    try:
        batches = decode_file(data, Source(place.hub, place.partition, name), settings.columns)
        yield from batches if quarantine is None else list(batches)
    except CorruptFileError as error:
        if quarantine is None:
            raise InputError(
                f"the capture file '{name}' cannot be read: {error}; give a quarantine folder to set such files aside and"
                " go on"
            ) from error
        quarantine.take(name, data, str(error), events=_events(data, error))


def _events(data: memoryview, error: CorruptFileError) -> int:
    return max(error.events, announced_events(data))
