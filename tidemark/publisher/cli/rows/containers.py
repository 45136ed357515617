"""Rows of Parquet, Avro and Capture files, numbered from 1, as the lines of `tidemark publish`.

Such a file does not grow, and its rows have no offsets in bytes. So a bookmark counts rows, and its digest is that of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from typing import Any, BinaryIO, NoReturn

import msgspec

from tidemark.foundation.version import install_hint
from tidemark.foundation.wording import count_text
from tidemark.publisher.cli.text.lines import Bookmark, InputLine
from tidemark.publisher.errors import InvalidProducerStateError, PublishSettingsError

_CHUNK = 1024 * 1024  # bytes
_ROWS_AT_ONCE = 500  # of Parquet; chosen: as the command reads lines
_CAPTURE = ("SequenceNumber", "EnqueuedTimeUtc", "SystemProperties", "Properties", "Body")
"""The fields of a record of Event Hubs Capture."""
_PARTITION_KEY = "x-opt-partition-key"

PARQUET, AVRO = "parquet", "avro"
_SUFFIXES = {".parquet": PARQUET, ".pq": PARQUET, ".avro": AVRO}
_NEEDS = {PARQUET: ("pyarrow", "parquet"), AVRO: ("fastavro", "decoders")}
"""Format -> its package, and the extra that has it."""


def format_of(suffix: str) -> str | None:
    """The format of a file by its suffix; None for lines."""
    return _SUFFIXES.get(suffix.lower())


class RowsInput:
    """The rows of a file, in the place of a PublishedInput. Raises PublishSettingsError naming file, row and column."""

    def __init__(self, file: BinaryIO, name: str, format_: str) -> None:
        self.name = name
        self.schema: Any = None
        """Of an Avro file, once reading has begun."""
        self._file, self._format = file, format_
        self._digest: str | None = None
        package, extra = _NEEDS[format_]
        if find_spec(package) is None:
            raise PublishSettingsError(
                f"{name}: this format needs the package {package}: {install_hint(extra)}"
            )
        if not file.seekable():
            raise PublishSettingsError(f"{name} is a pipe, accepted for this format: a file")

    def begin(self, start: Bookmark, others: Iterable[Bookmark] = ()) -> None:
        """Check that the bookmarks are of this file. Raises InvalidProducerStateError."""
        hash_ = hashlib.blake2b(digest_size=16)
        self._file.seek(0)
        while data := self._file.read(_CHUNK):
            hash_.update(data)
        self._digest = hash_.hexdigest()
        bookmarks = (start, *others)
        for bookmark in bookmarks:
            if bookmark.offset and bookmark.digest != self._digest:
                count = max(begun.count for begun in bookmarks)
                raise InvalidProducerStateError(
                    f"{self.name} is not the file of the saved state, of which {count_text(count, 'row was', 'rows were', style=',')}"
                    " published. Publish that file again, or this one with another --state file, which publishes all rows of it"
                )

    def rows_after(self, start: Bookmark) -> Iterator[InputLine]:
        """The rows behind the bookmark, each as JSON and as it was read."""
        self._file.seek(0)
        with self._errors(start.line + 1):
            rows = self._parquet(start.line) if self._format == PARQUET else self._avro(start.line)
        number = start.line
        while True:
            number += 1
            with self._errors(number):
                row = next(rows, None)
            if row is None:
                return
            yield self.line_of(row, number)

    def line_of(self, row: Any, number: int) -> InputLine:
        """Raises PublishSettingsError naming row and column for a value that JSON does not have."""
        body, properties = None, None
        if self.is_capture and isinstance(row, dict):
            body, properties, row = row["Body"] or b"", _properties(row), _document(row["Body"])
        if body is None:
            body = self._as_json(row, number)
        return InputLine(body, number, number, number, self._digest, row, properties)

    def _as_json(self, row: Any, number: int) -> bytes:
        try:
            return msgspec.json.encode(row)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            self._refuse(number, _bad_column(row), str(error))

    @property
    def position(self) -> int:
        """About how many bytes were read, for the progress."""
        return self._file.tell()

    @property
    def is_capture(self) -> bool:
        fields = (
            [field["name"] for field in (self.schema or {}).get("fields", ())]
            if isinstance(self.schema, dict)
            else []
        )
        return all(name in fields for name in _CAPTURE)

    def _parquet(self, skipped: int) -> Iterator[Any]:
        from pyarrow import parquet  # type: ignore[import-untyped]

        file = parquet.ParquetFile(self._file)
        groups: list[int] = []
        left = skipped
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if groups or left < rows:
                groups.append(number)
            else:
                left -= rows
        batches = file.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=groups)
        return islice((row for batch in batches for row in batch.to_pylist()), left, None)

    def _avro(self, skipped: int) -> Iterator[Any]:
        import fastavro

        reader = fastavro.reader(self._file)
        self.schema = reader.writer_schema
        return islice(reader, skipped, None)

    @contextmanager
    def _errors(self, number: int) -> Iterator[None]:
        """Errors of the library, which are of many kinds, as errors of the file and row."""
        try:
            yield
        except (PublishSettingsError, InvalidProducerStateError):
            raise
        except Exception as error:
            self._refuse(number, None, f"{type(error).__name__}: {error}")

    def _refuse(self, number: int, column: str | None, problem: str) -> NoReturn:
        where = f"row {number}" if column is None else f"row {number}, column '{column}'"
        raise PublishSettingsError(
            f"{self.name}, {where}: it cannot be read as {self._format}: {problem}"
        ) from None


def _bad_column(row: Any) -> str | None:
    for name, value in row.items() if isinstance(row, dict) else ():
        try:
            msgspec.json.encode(value)
        except (TypeError, ValueError, msgspec.MsgspecError):
            return str(name)
    return None


def _document(body: bytes | None) -> Any:
    """For keys and properties by field; None for a body that is no JSON."""
    try:
        return msgspec.json.decode(body or b"")
    except (ValueError, RecursionError):
        return None


def _properties(row: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], Mapping[str, Any]]:
    """Partition key, application properties and system properties of a captured event."""
    system = row["SystemProperties"] or {}
    key = system.get(_PARTITION_KEY)
    return key if isinstance(key, str) else None, dict(row["Properties"] or {}), system
