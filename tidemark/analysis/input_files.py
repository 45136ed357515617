"""Files that people and Azure export: which belong to an input, and their rows by each file's own header."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet

from tidemark.analysis.errors import InputError
from tidemark.analysis.export_text import is_hidden, without_marks
from tidemark.foundation.wording import file_problem

TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")
"""Of files that `table_rows` reads, in any case."""


def files_in(path: Path, endings: tuple[str, ...], option: str = "") -> list[Path]:
    """The file, or the files of a folder, sorted. Raises InputError where there are none; `option` stands before the path.

    A file that Spark would not take by its ending is refused, so that both ways read the same files. What is no file has no
    ending: the output of another program, as /dev/fd/63.
    """
    where = f"{option} {path}".lstrip()
    if not path.exists():
        raise InputError(f"{where} does not exist; a file or a folder is accepted")
    if not path.is_dir():
        if path.is_file() and not path.name.lower().endswith(endings):
            raise InputError(f"{path} does not end in {' or '.join(endings)}; rename it to what it is")
        return [path]
    paths = (file for file in path.rglob("*") if file.name.lower().endswith(endings))
    files = sorted(file for file in paths if not is_hidden(file.relative_to(path)))
    if not files:
        raise InputError(f"{where} is a folder without files that end in {' or '.join(endings)}")
    return files


def bytes_of(file: Path) -> bytes:
    """Raises InputError."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {file_problem(error)}") from error


def text_of(file: Path) -> str:
    """The text of a file, which may be packed. Raises InputError."""
    data = bytes_of(file)
    try:
        return (gzip.decompress(data) if file.name.lower().endswith(".gz") else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {file_problem(error)}") from error


def table_rows(
    name: str, data: bytes | memoryview, wanted: Collection[str] | None = None
) -> tuple[Sequence[str], Iterator[dict[str, Any]]]:
    """The columns of a CSV or Parquet file, and each row by them; of Parquet only the columns that are `wanted` (all).

    Raises InputError, naming the file and the row: for what cannot be read, for a name that is there twice, for a row of more
    or fewer cells, and for a file of which fewer rows can be read than it says.
    """
    if name.lower().endswith(".parquet"):
        return _parquet_rows(name, data, wanted)
    rows = _cells(name, data)
    names = next(rows, [])
    if twice := sorted({column for column in names if names.count(column) > 1}):
        raise InputError(f"{name} has the column {twice[0]} twice; accepted is one of each name")
    return names, _by_name(names, rows, name)


def _cells(name: str, data: bytes | memoryview) -> Iterator[list[str]]:
    file: Any = io.BytesIO(data)
    if name.lower().endswith(".gz"):
        file = gzip.GzipFile(fileobj=file)
    try:
        lines = without_marks(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        yield from csv.reader(lines, strict=True)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise InputError(f"{name} cannot be read: {file_problem(error)}") from error


def _by_name(names: Sequence[str], rows: Iterator[list[str]], where: str) -> Iterator[dict[str, str]]:
    for number, cells in enumerate((row for row in rows if row), start=2):
        if len(cells) != len(names):
            more = "more" if len(cells) > len(names) else "fewer"
            raise InputError(
                f"{where}, row {number}: it has {more} cells than the file has columns: {len(cells)} for {len(names)}"
            )
        yield dict(zip(names, cells, strict=True))


def _parquet_rows(
    name: str, data: bytes | memoryview, wanted: Collection[str] | None
) -> tuple[Sequence[str], Iterator[dict[str, Any]]]:
    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
        columns = [column for column in names if wanted is None or column in wanted]
        batches = list(file.iter_batches(columns=columns))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{name} cannot be read: {file_problem(error)}") from error
    read = sum(batch.num_rows for batch in batches)
    if read != file.metadata.num_rows:
        raise InputError(
            f"{name} is damaged: it has {file.metadata.num_rows:,} rows, of which {read:,} can be read"
        )
    return names, _as_python(batches, name)


def _as_python(batches: Sequence[pa.RecordBatch], where: str) -> Iterator[dict[str, Any]]:
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except (
            ValueError,
            OverflowError,
        ) as error:  # a time that Python has not; Arrow's errors are ValueErrors
            raise InputError(f"{where} cannot be read: {file_problem(error)}") from error
