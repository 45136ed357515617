"""Data sources over files of records: which files a task reads, and what becomes of records that cannot be read.

Options besides the path: `quarantine` (a folder; without it a record that cannot be read ends the query), `secretStorage`
(JSON for the file system), `partitionBytes`, `wanted` (JSON as `path_times.FileFilter`: of which time files are read). A
record is in the output or among the rejects: a file `<name>.rejects` with the records as they were, and a reason for each in
`<name>.reason.json`. A file that cannot be read at all is set aside whole. Lines of a file of twice `partitionBytes` and
more are read by several tasks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from spark_jobs.platform.data_source import Source, TaskReader
from spark_jobs.platform.source_options import FOR_EVER
from spark_jobs.schemas import arrow_schema
from spark_jobs.sources.files.input_files import FileOptions, Folder, FoundFile, Quarantine, packed
from spark_jobs.sources.files.path_times import FileFilter, in_paths, patterns
from spark_jobs.sources.files.spark_files import options_of, read_files, url_for_spark
from spark_jobs.sources.records.records import (
    BOM,
    GZIP_MAGIC,
    Parsed,
    Record,
    Reject,
    RejectedError,
    parsed,
    records,
    texts,
)
from spark_jobs.task_errors import fails_without_secrets
from tidemark.analysis.errors import InputError

PARTITION_BYTES = 16 << 20
"""JSON of so many bytes takes a task a second or more."""

_HEAD = 1 << 10  # bytes that show what kind of file it is
_REASONS_KEPT = 1000  # in one reason file; the records are all kept


TIMED = ("date={Year}-{Month}-{Day}", "hour={Hour}")
"""Folders by the time of their records: those of CONSUMER_TELEMETRY_FOLDER."""

_look = in_paths(f"{TIMED[0]}/{TIMED[1]}/", f"{TIMED[0]}/")


class RecordSource(Source):
    """Subclasses name it, its files, and how a record of them becomes a row."""

    ENDINGS: ClassVar[tuple[str, ...]]

    @staticmethod
    def row(text: bytes, /) -> Mapping[str, Any]:
        """Of a record's JSON text. Raises RejectedError."""
        raise NotImplementedError

    @staticmethod
    def records(data: bytes, file: str) -> Iterator[Record]:  # some sources know its form by its name
        """A file's records. Raises RejectedError where it cannot be read at all, before the first of them."""
        return records(data)

    @staticmethod
    def has_lines(head: bytes, file: str) -> bool:  # some sources know its form by its name
        """Whether a file that begins so has a record on each line, so that it can be read from any line on."""
        return not head.startswith(GZIP_MAGIC) and not head.removeprefix(BOM).lstrip().startswith(b"[")

    @classmethod
    def parse(cls, data: bytes, file: str, *, size: float = math.inf) -> Iterator[Parsed]:
        """Some `size` bytes at a time. Raises RejectedError as `records`."""
        return parsed(cls.records(data, file), cls.row, arrow_schema(cls.SCHEMA), file, size=size)

    def reader(self, schema: StructType) -> TaskReader:  # Spark's interface
        files = RecordFiles.of(type(self), self.options)
        return TaskReader(files.tasks, files.batches)


@dataclass(frozen=True)
class RecordFiles(FileOptions):
    """The options, parsed, and which files a task reads."""

    source: type[RecordSource]

    @classmethod
    def of(cls, source: type[RecordSource], options: Mapping[str, str]) -> RecordFiles:
        return cls.read(options, source.NAME, "its files", PARTITION_BYTES, source=source)

    def tasks(self) -> list[list[FoundFile]]:
        """Raises InputError where there are no files."""
        look = None if self.wanted == FileFilter() else _look(self.wanted)
        found_files = [
            file
            for file in self.folder().find("", look)
            if file.name.lower().endswith(self.source.ENDINGS) and file.name.rpartition("/")[2][0] not in "._"
        ]
        if not found_files:
            endings = ", ".join(f"*{ending}" for ending in self.source.ENDINGS)
            when = "" if look is None else " of the time asked for"
            raise InputError(f"there are no files for {self.source.NAME} ({endings}){when} in '{self.path}'")
        return packed(found_files, self.partition_bytes, lambda name: not name.lower().endswith(".gz"))

    def batches(self, files: Sequence[FoundFile]) -> Iterator[pa.RecordBatch]:
        """Those of a task."""
        folder, aside = self.folder(), Aside(self.quarantined())
        for file in files:
            begin, data = self._content(folder, file)
            yield from self._batches(file.name, data, aside, begin)

    def _content(self, folder: Folder, file: FoundFile) -> tuple[int, memoryview]:
        """From which byte on a task reads, and what: lines belong to the piece that they begin in. A file without lines is
        the first piece's.
        """
        if file.end is None:
            return 0, folder.read(file.name)
        if not self.source.has_lines(bytes(folder.read(file.name, 0, _HEAD)), file.name):
            return file.begin, memoryview(b"") if file.begin else folder.read(file.name)
        begin, end = (at and folder.behind(file, b"\n", at - 1) for at in (file.begin, file.end))
        return begin, folder.read(file.name, begin, end) if begin < end else memoryview(b"")

    def batches_of_content(self, name: str, data: memoryview, *, url: str) -> Iterator[pa.RecordBatch]:
        """Those of a file below `url` that Spark has opened."""
        return self._batches(name, data, Aside(self.quarantined(url)))

    def _batches(self, name: str, data: memoryview, aside: Aside, begin: int = 0) -> Iterator[pa.RecordBatch]:
        """No more than some `partition_bytes` of a file are rows at a time."""
        size, rejects = self.partition_bytes, dict[int, list[Reject]]()
        try:
            for at, text in texts(data, size, partial(self.source.has_lines, file=name)):
                for parsed in self.source.parse(text, name, size=size):
                    rejects.setdefault(begin + at, []).extend(parsed.rejects)
                    yield parsed.batch
        except RejectedError as error:
            aside.file(name, data, str(error))
        for at, those in rejects.items():
            aside.records(f"{name}.from-byte-{at}" if at else name, those)


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
        reasons = [{"record": reject.number, "reason": reject.reason} for reject in rejects[:_REASONS_KEPT]]
        text = b"".join(reject.text.rstrip(b"\r\n") + b"\n" for reject in rejects)
        self._quarantine.take(
            f"{name}.rejects", text, rejects[0].reason, records=len(rejects), reasons=reasons
        )


def read_records(
    spark: SparkSession,
    source: type[RecordSource],
    path: str,
    quarantine: str | None,
    storage: Mapping[str, Any] | None,
    wanted: FileFilter | None = None,
) -> DataFrame:
    """A batch frame. Raises InputError at once where there are no files, or the quarantine is among them."""
    url = url_for_spark(spark, path, storage)
    asked = None if wanted is None else msgspec.json.encode(wanted).decode()
    options = options_of(spark, path, quarantine, storage, wanted=asked)
    files = RecordFiles.of(source, options)
    if url is not None:
        files.quarantined(url)
        task = partial(files.batches_of_content, url=url)
        folders = patterns(TIMED, {}, files.wanted.hours(datetime.now(UTC)))
        return read_files(spark, url, source.ENDINGS, task, source.SCHEMA, folders=folders)
    files.tasks()
    files.quarantined()
    return spark.read.format(source.NAME).options(**options).load()


# -- streams -----------------------------------------------------------------------------------------------


def stream_lines(
    spark: SparkSession,
    source: type[RecordSource],
    path: str,
    quarantine: str | None,
    max_files_per_trigger: int | None,
) -> DataFrame:
    """JSON lines as they come, by Spark's own stream of files, which knows each file it has read.

    Spark lists and reads the files: `path` is for its file systems. Raises InputError as `read_records`, but the
    folder may be empty yet.
    """
    url = url_for_spark(spark, path, None)
    files = RecordFiles.of(source, options_of(spark, path, quarantine, None))
    files.quarantined(url)
    reader = spark.readStream.format("text").options(recursiveFileLookup="true", maxFileAge=FOR_EVER)
    if max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", str(max_files_per_trigger))
    lines = reader.load(path).select("value", f.col("_metadata.file_path").alias("file"))
    return lines.mapInArrow(partial(_parse_lines, files=files, url=url), source.SCHEMA)


@fails_without_secrets
def _parse_lines(
    batches: Iterable[pa.RecordBatch], files: RecordFiles, url: str | None
) -> Iterator[pa.RecordBatch]:
    aside = Aside(files.quarantined(url))
    for batch in batches:
        by_file: dict[str, list[bytes]] = {}
        for row in batch.to_pylist():
            by_file.setdefault(row["file"], []).append(row["value"].encode())
        for file, lines in by_file.items():
            name = local_name(file)
            [parsed] = files.source.parse(b"\n".join(lines), name)
            if parsed.rejects:
                # A file may come in several batches, and again after a restart: the same rejects, the same name.
                digest = hashlib.sha256(b"\n".join(reject.text for reject in parsed.rejects)).hexdigest()[:12]
                aside.records(f"{name}.{digest}", parsed.rejects)
            yield parsed.batch


def local_name(url: str) -> str:
    """A local file's path, as the batch source names it; other URLs stay."""
    parsed_url = urlsplit(url)
    return unquote(parsed_url.path) if parsed_url.scheme == "file" else url
