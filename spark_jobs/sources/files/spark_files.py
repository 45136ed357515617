"""Input files as rows, with their content: what Spark opens, with its own file systems and rights, and what tasks open.

Sources of many small records open files of this machine themselves (`input_files`): Python maps a local file into memory, which is faster than what Spark could hand it. Elsewhere it matters that there is
one identity: who may write a job's results may read its inputs, set up once, in Spark. fsspec, which knows nothing of
Spark's rights, opens what Spark has no file system for, and what is given with `storage`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.platform.failures import first_line
from spark_jobs.platform.rows import first_of
from spark_jobs.platform.source_options import STORAGE
from spark_jobs.sources.files.input_files import REASON, Folder
from spark_jobs.tables.file_systems import file_system
from spark_jobs.tables.places import is_pythons, qualified
from spark_jobs.task_errors import fails_without_secrets
from tidemark.analysis.errors import InputError

ReadFile = Callable[[str, memoryview], Iterator[pa.RecordBatch]]
"""From a file's URL and content to its batches."""

LISTED = StructType().add("path", "string").add("modificationTime", "timestamp")
OPENED = StructType().add("path", "string").add("content", "binary")


def url_for_spark(spark: SparkSession, path: str, storage: Mapping[str, Any] | None) -> str | None:
    """The URL by which Spark opens the input; None where Python opens it."""
    if storage:
        return None
    try:
        url = qualified(spark, path)
    except InputError:
        return None  # a kind of URL that Spark does not know
    return None if url.startswith("file:") else url


def folder_for_python(spark: SparkSession, path: str) -> str:
    """The folder that Spark means by the path, as Python opens it: for what tasks write, such as a quarantine."""
    try:
        url = qualified(spark, path)
    except InputError:
        return path  # a kind of URL that Spark does not know
    return "/" + url.removeprefix("file:").lstrip("/") if url.startswith("file:") else url


def options_of(
    spark: SparkSession,
    path: str,
    quarantine: str | None,
    storage: Mapping[str, Any] | None,
    **more: str | None,
) -> dict[str, str]:
    """The options of a source of files; what is None is left out."""
    if quarantine and not storage:
        quarantine = folder_for_python(spark, quarantine)
    kept = json.dumps(dict(storage)) if storage else None
    given = {"path": path, "quarantine": quarantine, STORAGE: kept, **more}
    return {name: value for name, value in given.items() if value is not None}


def set_aside(spark: SparkSession, quarantine: str | None) -> int | None:
    """How many records and events lie in the quarantine, a file of which nobody knows how many it holds as one; None without
    a quarantine. What earlier runs put there counts, until somebody empties it.
    """
    if quarantine is None:
        return None
    folder = Folder(folder_for_python(spark, quarantine))
    try:
        reasons = [json.loads(bytes(folder.read(file.name))) for file in folder.find(REASON)]
    except InputError:
        return 0  # nothing was ever put there
    return sum(reason.get("records") or reason.get("events") or 1 for reason in reasons)


def list_files(
    spark: SparkSession, url: str, endings: Sequence[str], *, folders: Sequence[str] = ()
) -> DataFrame:
    """LISTED of all files below the URL with one of these endings, in any case, for `open_files`: by Spark, or, of a lake that
    it has no file system for, by fsspec. No content is read.

    `folders` are patterns below the URL: where there are any of these, Spark lists no others. Raises InputError where there is
    no file. Files whose names begin with `_` or `.` are none, as always with Spark.
    """
    if is_pythons(spark, url):
        return _listed_by_fsspec(spark, url, endings)
    glob = "{" + ",".join(f"*{_any_case(ending)}" for ending in endings) + "}"
    reader = spark.read.format("binaryFile").options(recursiveFileLookup="true", pathGlobFilter=glob)
    try:
        files = _pruned(reader, url, folders) or reader.load(url)
        first = first_of(files.select("path"))
    except AnalysisException as error:
        raise InputError(f"'{url}' cannot be read: {first_line(error)}") from error
    if first is None:
        raise _no_files(url, endings)
    return files


def open_files(files: DataFrame) -> DataFrame:
    """OPENED of files of `list_files`: by Spark, or by tasks through fsspec."""
    if "content" in files.columns:
        return files.select(*OPENED.names)
    return files.select("path").mapInArrow(_with_content, OPENED)


def read_files(
    spark: SparkSession,
    url: str,
    endings: Sequence[str],
    read: ReadFile,
    schema: StructType,
    *,
    folders: Sequence[str] = (),
) -> DataFrame:
    """What `read` makes of all files of `list_files`."""
    files = open_files(list_files(spark, url, endings, folders=folders))
    return files.mapInArrow(partial(_read_all, read=read), schema)


def _no_files(url: str, endings: Sequence[str]) -> InputError:
    return InputError(f"there are no files ({', '.join(f'*{ending}' for ending in endings)}) in '{url}'")


def _listed_by_fsspec(spark: SparkSession, url: str, endings: Sequence[str]) -> DataFrame:
    system, root = file_system(url)
    listed = [
        (f"{url.rstrip('/')}{name.removeprefix(root)}", info["last_modified"])
        for name, info in sorted(system.find(root, detail=True).items())
        if name.lower().endswith(tuple(endings)) and name.rpartition("/")[2][0] not in "._"
    ]
    if not listed:
        raise _no_files(url, endings)
    return spark.createDataFrame(listed, LISTED).repartition(len(listed))


@fails_without_secrets
def _with_content(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for url in batch["path"].to_pylist():
            system, path = file_system(url)
            contents = pa.array([system.cat_file(path)], pa.binary())
            yield pa.RecordBatch.from_arrays([pa.array([url]), contents], OPENED.names)


def _pruned(reader: DataFrameReader, url: str, folders: Sequence[str]) -> DataFrame | None:
    """None where no folder is like these."""
    if not folders:
        return None
    try:
        # One pattern for all: of several paths Spark wants each to be there.
        files = reader.load(f"{url}/{{{','.join(folders)}}}")
        _ = files.schema
    except AnalysisException:
        return None
    return files


def _any_case(ending: str) -> str:
    """A pattern for the ending in capital and small letters."""
    return "".join(f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() else letter for letter in ending)


@fails_without_secrets
def _read_all(batches: Iterable[pa.RecordBatch], read: ReadFile) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for url, content in zip(batch.column("path"), batch.column("content"), strict=True):
            data = memoryview(content.as_buffer()).cast("B")  # bytes, not signed numbers
            yield from read(url.as_py(), data)
