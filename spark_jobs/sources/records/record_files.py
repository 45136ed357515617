"""Data sources over files of records: which files a task reads, and what becomes of records that cannot be read.

Options besides the path: `quarantine` (a folder; without it a record that cannot be read ends the query), `secretStorage`
(JSON for the file system), `partitionBytes`. A record is in the output or among the rejects: a file `<name>.rejects`
with the records as they were, and a reason for each in `<name>.reason.json`. A file that cannot be read at all is set
aside whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from spark_jobs.errors import InputError
from spark_jobs.platform.data_source import Source, TaskReader
from spark_jobs.platform.source_options import FOR_EVER
from spark_jobs.schemas import arrow_schema
from spark_jobs.sources.files.input_files import FileOptions, Folder, FoundFile, Quarantine, packed
from spark_jobs.sources.files.spark_files import folder_for_python, options_of, read_with_spark, url_for_spark
from spark_jobs.sources.records.records import (
    Parsed,
    ReadRow,
    Reject,
    RejectedError,
    parsed,
    records,
    unpacked,
)

PARTITION_BYTES = 16 << 20
"""JSON of so many bytes takes a task a second or more."""

_REASONS_KEPT = 1000  # in one reason file; the records are all kept


@dataclass(frozen=True)
class RecordSettings(FileOptions):
    """The options, parsed."""

    source: str
    endings: tuple[str, ...]

    @classmethod
    def of(cls, source: str, endings: tuple[str, ...], options: Mapping[str, str]) -> RecordSettings:
        return cls.read(options, source, "its files", PARTITION_BYTES, source=source, endings=endings)

    def files(self) -> list[FoundFile]:
        """Raises InputError where there are none."""
        found = [
            file
            for file in self.folder().find("")
            if file.name.lower().endswith(self.endings) and not _is_hidden(file.name)
        ]
        if not found:
            endings = ", ".join(f"*{ending}" for ending in self.endings)
            raise InputError(f"there are no files for {self.source} ({endings}) in '{self.path}'")
        return found

    def tasks(self) -> list[list[FoundFile]]:
        return packed(self.files(), self.partition_bytes)


def _is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith((".", "_"))


class RecordSource(Source):
    """Subclasses name it, its files, and how a file of them is read."""

    ENDINGS: ClassVar[tuple[str, ...]]

    @staticmethod
    def parse(data: bytes, file: str) -> Parsed:
        """A file's records. Raises RejectedError where it cannot be read at all."""
        raise NotImplementedError

    def reader(self, schema: StructType) -> TaskReader:  # noqa: ARG002 - Spark's interface
        settings = RecordSettings.of(self.NAME, self.ENDINGS, self.options)
        return TaskReader(settings.tasks, partial(_batches_of, settings, type(self).parse))


def _batches_of(
    settings: RecordSettings, parse: Callable[[bytes, str], Parsed], files: Sequence[FoundFile]
) -> Iterator[pa.RecordBatch]:
    folder, aside = settings.folder(), Aside(settings.quarantined())
    for file in files:
        yield from _batches(file.name, folder.read(file.name), parse, aside)


def _batches(
    name: str, data: memoryview, parse: Callable[[bytes, str], Parsed], aside: Aside
) -> Iterator[pa.RecordBatch]:
    try:
        found = parse(unpacked(data), name)
    except RejectedError as error:
        aside.file(name, data, str(error))
        return
    aside.records(name, found.rejects)
    yield found.batch


class Aside:
    """Where what cannot be read goes: to the quarantine, or, without one, into an InputError."""

    def __init__(self, quarantine: Quarantine | None) -> None:
        self._quarantine = quarantine

    def file(self, name: str, data: memoryview, reason: str) -> None:
        if self._quarantine is None:
            raise InputError(
                f"the file '{name}' cannot be read: {reason}; give a quarantine folder to set such files aside"
            )
        self._quarantine.take(name, data, reason)

    def records(self, name: str, rejects: Sequence[Reject]) -> None:
        if not rejects:
            return
        if self._quarantine is None:
            first = rejects[0]
            raise InputError(
                f"record {first.number} of '{name}' cannot be read: {first.reason}"
                f" ({len(rejects)} such in the file); give a quarantine folder to set such records aside"
            )
        reasons = [{"record": each.number, "reason": each.reason} for each in rejects[:_REASONS_KEPT]]
        text = b"".join(each.text.rstrip(b"\r\n") + b"\n" for each in rejects)
        self._quarantine.take(
            f"{name}.rejects", text, rejects[0].reason, records=len(rejects), reasons=reasons
        )


def read_records(
    spark: SparkSession,
    source: type[RecordSource],
    path: str,
    quarantine: str | None,
    storage: Mapping[str, Any] | None,
) -> DataFrame:
    """A batch frame. Raises InputError at once where there are no files, or the quarantine is among them."""
    url = url_for_spark(spark, path, storage)
    options = options_of(spark, path, quarantine, storage)
    settings = RecordSettings.of(source.NAME, source.ENDINGS, options)
    if url is not None:
        _aside(path, url, settings.quarantine)
        task = partial(_read_file, source=source, url=url, quarantine=settings.quarantine)
        return read_with_spark(spark, url, source.ENDINGS, task, source.SCHEMA)
    settings.files()
    settings.quarantined()
    return spark.read.format(source.NAME).options(**options).load()


def _read_file(
    name: str, data: memoryview, *, source: type[RecordSource], url: str, quarantine: str | None
) -> Iterator[pa.RecordBatch]:
    return _batches(name, data, source.parse, _aside(name, url, quarantine))


# -- streams -----------------------------------------------------------------------------------------------


def stream_lines(
    spark: SparkSession,
    path: str,
    read: ReadRow,
    schema: StructType,
    quarantine: str | None,
    max_files_per_trigger: int | None,
) -> DataFrame:
    """JSON lines as they come, by Spark's own stream of files, which knows each file it has read.

    Spark lists and reads the files: `path` is for its file systems. Raises InputError as `read_records`, but the
    folder may be empty yet.
    """
    url = url_for_spark(spark, path, None)
    if quarantine:
        quarantine = folder_for_python(spark, quarantine)
    _aside(path, url, quarantine)
    reader = spark.readStream.format("text").options(recursiveFileLookup="true", maxFileAge=FOR_EVER)
    if max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", str(max_files_per_trigger))
    lines = reader.load(path).select("value", f.col("_metadata.file_path").alias("file"))
    task = partial(
        _parse_lines, read=read, schema=arrow_schema(schema), aside=partial(_aside, path, url, quarantine)
    )
    return lines.mapInArrow(task, schema)


def _aside(path: str, url: str | None, quarantine: str | None) -> Aside:
    """`url` is given where Spark opens the files."""
    return Aside(Quarantine(quarantine, Folder(path) if url is None else url) if quarantine else None)


def _parse_lines(
    batches: Iterable[pa.RecordBatch], read: ReadRow, schema: pa.Schema, aside: Callable[[], Aside]
) -> Iterator[pa.RecordBatch]:
    where = aside()
    for batch in batches:
        by_file: dict[str, list[bytes]] = {}
        for line, url in zip(
            batch.column("value").to_pylist(), batch.column("file").to_pylist(), strict=True
        ):
            by_file.setdefault(url, []).append(line.encode())
        for url, lines in by_file.items():
            name = local_name(url)
            found = parsed(records(b"\n".join(lines)), read, schema, name)
            if found.rejects:
                # A file may come in several batches, and again after a restart: the same rejects, the same name.
                digest = hashlib.sha256(b"\n".join(each.text for each in found.rejects)).hexdigest()[:12]
                where.records(f"{name}.{digest}", found.rejects)
            yield found.batch


def local_name(url: str) -> str:
    """A local file's path, as the batch source names it; other URLs stay."""
    parsed_url = urlsplit(url)
    return unquote(parsed_url.path) if parsed_url.scheme == "file" else url
