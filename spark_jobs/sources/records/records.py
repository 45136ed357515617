"""Records in text files: lines of JSON, or one JSON document with a list; what is no record is told by its number. Pure."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"


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


def unpacked(data: bytes | memoryview) -> bytes:
    """Decompressed where it is gzip. Raises RejectedError for gzip that is cut or damaged."""
    raw = bytes(data)
    if not raw.startswith(GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise RejectedError(f"the file is not whole: {error}") from error


def records(data: bytes) -> Iterator[Record]:
    """The records of JSON lines, of a list, or of one document with a list of `entries` or `value`.

    Raises RejectedError for a list that is no JSON.
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
        return [bytes(each) for each in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except msgspec.DecodeError as error:
        raise RejectedError(f"the file begins as a JSON list, but is none: {error}") from error


def parsed(found: Iterable[Record], read: ReadRow, schema: pa.Schema, file: str | None = None) -> Parsed:
    """Each record as a row of `schema`, or as a reject. `file` fills the column of that name, if there is one."""
    rows: list[dict[str, Any]] = []
    rejects: list[Reject] = []
    for number, text in found:
        try:
            rows.append({**read(text), "file": file})
        except RejectedError as error:
            rejects.append(Reject(number, text, str(error)))
    return Parsed(pa.RecordBatch.from_pylist(rows, schema=schema), rejects)
