"""Rows of a CSV file as JSON objects: the first row has the names of the fields, all values are texts."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Struct

from publisher.errors import PublishSettingsError

_LARGEST_FIELD = 100 * 1024 * 1024  # characters: Service Bus's largest message; the module's limit is 128 K


class Input(Protocol):
    """A file of bytes, or what behaves like one."""

    def __iter__(self) -> Iterator[bytes]: ...

    def seek(self, offset: int, /) -> object: ...


class CsvRow(Struct, frozen=True):
    """`body` is JSON, `line` the number of the row's last line from 1, `end` where the next one begins, in bytes."""

    body: bytes
    line: int
    end: int


def read_rows(file: Input, name: str, *, offset: int = 0, line: int = 0) -> Iterator[CsvRow]:
    """The rows after the one that ends at `offset`, in `line`; rows without anything are left out.

    UTF-8, fields in double quotes may have commas and line ends. Raises PublishSettingsError naming file and line.
    """
    csv.field_size_limit(_LARGEST_FIELD)
    file.seek(0)
    rows = _Rows(file, name)
    names = rows.names()
    if offset > rows.offset:
        file.seek(offset)
        rows.offset, rows.line = offset, line
    for row in rows:
        if len(row) != len(names):
            raise rows.error(f"it has {len(row)} fields, the first row {len(names)}")
        yield CsvRow(msgspec.json.encode(dict(zip(names, row, strict=True))), rows.line, rows.offset)


def read_as_json_lines(file: Input, name: str) -> Iterator[bytes]:
    """JSON lines in the places of the rows' last lines, and empty ones in those of all others: the numbers stay."""
    line = 0
    for row in read_rows(file, name):
        yield from [b"\n"] * (row.line - line - 1)
        yield row.body + b"\n"
        line = row.line


@dataclass
class _Rows:
    """The rows that are not empty, and where they end. The parser asks for no line that it does not need."""

    _file: Input
    _name: str
    offset: int = 0
    line: int = 0

    def __iter__(self) -> Iterator[list[str]]:
        try:
            yield from filter(None, csv.reader(self._lines(), strict=True))
        except csv.Error as error:
            raise self.error(f"it is no CSV: {error}") from None

    def names(self) -> list[str]:
        names = next(iter(self), [])
        if "" in names or len(set(names)) < len(names):
            raise self.error(
                f"the first row has the names of the fields, each once; it has {', '.join(names)}"
            )
        return names

    def error(self, story: str) -> PublishSettingsError:
        return PublishSettingsError(f"{self._name}, line {self.line}: {story}")

    def _lines(self) -> Iterator[str]:
        for line in self._file:
            encoding = "utf-8" if self.offset else "utf-8-sig"  # spreadsheets write a byte order mark
            self.offset += len(line)
            self.line += 1
            try:
                yield line.decode(encoding)
            except UnicodeDecodeError as error:
                raise self.error(f"it is no UTF-8: {error.reason}") from None
