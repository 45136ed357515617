"""Records in text files: lines of JSON, or one JSON document with a list; what is no record is reported by its number. Pure."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
_CHECKED = 1 << 20  # bytes decompressed at a time to see whether the file is whole


class RejectedError(ValueError):
    """A record cannot be read; the message says why, and what is accepted."""


class Reject(NamedTuple):
    """`number` is the line in the file, or the place in its list, from 1."""

    number: int
    text: bytes
    reason: str


class Parsed(NamedTuple):
    """Rows by column, and the records that are none."""

    batch: pa.RecordBatch
    rejects: list[Reject]


Record = tuple[int, bytes]
"""Number and JSON text."""

ReadRow = Callable[[bytes], Mapping[str, Any]]
"""The row of a record's JSON text. Raises RejectedError."""


def texts(
    data: bytes | memoryview, size: int, has_lines: Callable[[bytes], bool]
) -> Iterator[tuple[int, bytes]]:
    """The text, decompressed where it is gzip, with the place that it begins at. Lines in gzip come some `size` bytes at a
    time, so that nobody holds all of a large file; `has_lines` recognises them by how the text begins.

    Raises RejectedError for gzip that is cut or damaged, before anything of it comes.
    """
    if bytes(data[: len(GZIP_MAGIC)]) != GZIP_MAGIC:
        yield 0, bytes(data)
        return
    with gzip.GzipFile(fileobj=BytesIO(data)) as file:
        try:
            head = file.read(size)
            pieces = len(head) == size and has_lines(head)
            whole = b"" if pieces else head + file.read()
            while file.read(_CHECKED):
                pass
        except (OSError, EOFError, zlib.error) as error:
            raise RejectedError(f"the file is not whole: {error}") from error
        if not pieces:
            yield 0, whole
            return
        begin = file.seek(0)
        while piece := file.read(size) + file.readline():
            yield begin, piece
            begin += len(piece)


def records(data: bytes) -> Iterator[Record]:
    """The records of JSON lines, of a list, or of one document with a list of `entries` or `value`.

    Raises RejectedError for a list that is no JSON, before the first record.
    """
    text = data.removeprefix(BOM)
    listed = _listed(text)
    if listed is not None:
        yield from enumerate(listed, start=1)
        return
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _listed(text: bytes) -> list[bytes] | None:
    if not text.lstrip().startswith(b"["):
        return None
    try:
        return [bytes(member) for member in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except msgspec.DecodeError as error:
        raise RejectedError(f"the file begins as a JSON list, but is none: {error}") from error


def parsed(
    of_file: Iterable[Record],
    read: ReadRow,
    schema: pa.Schema,
    file: str | None = None,
    *,
    size: float = math.inf,
) -> Iterator[Parsed]:
    """Each record as a row of `schema`, or as a reject; some `size` bytes of records at a time, and once where there are none.
    `file` fills the column of that name, if there is one.
    """
    rows: list[dict[str, Any]] = []
    rejects: list[Reject] = []
    filled = 0
    for number, text in of_file:
        if filled >= size:
            yield Parsed(pa.RecordBatch.from_pylist(rows, schema=schema), rejects)
            rows, rejects, filled = [], [], 0
        filled += len(text)
        try:
            rows.append({**read(text), "file": file})
        except RejectedError as error:
            rejects.append(Reject(number, text, str(error)))
    yield Parsed(pa.RecordBatch.from_pylist(rows, schema=schema), rejects)
