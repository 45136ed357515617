"""Rows of a CSV file as JSON objects: the first row has the names of the fields, all values are texts."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Struct

from tidemark.publisher.cli.text.bounded_lines import LARGEST_MESSAGE, without_mark
from tidemark.publisher.errors import PublishSettingsError

_LARGEST_FIELD = LARGEST_MESSAGE  # characters; the module's limit is 128 K
_DELIMITERS = {",": "','", ";": "';'", "\t": "a tab", "|": "'|'"}
_BY_NAME = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_HINT = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)  # the first line, as spreadsheets read and write it


class Input(Protocol):
    """A file of bytes, or what behaves like one."""

    def __iter__(self) -> Iterator[bytes]: ...

    def seek(self, offset: int, /) -> object: ...


class CsvRow(Struct, frozen=True):
    """`body` is JSON, `line` the number of the row's last line from 1, `end` where the next one begins, in bytes."""

    body: bytes
    line: int
    end: int


class CsvFormat(Struct, frozen=True):
    """`delimiter` between fields, None: found out by the first row. Raises PublishSettingsError for what cannot be one, and
    for encodings in which a line does not end with the byte of LF.
    """

    delimiter: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise PublishSettingsError(f"--delimiter is {self.delimiter!r}, accepted: one character, or tab")
        try:
            is_fit = ',;"\n'.encode(self.encoding) == b',;"\n' and codecs.lookup(self.encoding)
        except (LookupError, ValueError):  # not known, or none that takes such a text
            is_fit = None
        if not is_fit:
            raise PublishSettingsError(
                f"--encoding is {self.encoding!r}, accepted: utf-8, cp1252, latin-1 and others that Python knows and that "
                "write ASCII as it is; convert UTF-16, for example with: iconv -f UTF-16 -t UTF-8"
            )

    @classmethod
    def of_options(cls, delimiter: str | None, encoding: str | None, *, is_csv: bool) -> CsvFormat:
        """Raises PublishSettingsError."""
        if not is_csv and (delimiter is not None or encoding is not None):
            option = "--encoding" if delimiter is None else "--delimiter"
            raise PublishSettingsError(f"{option} is of a .csv; all other lines are published as they are")
        return cls(_BY_NAME.get(delimiter or "", delimiter), encoding or "utf-8")


def read_rows(
    file: Input,
    name: str,
    *,
    offset: int = 0,
    line: int = 0,
    format_: CsvFormat | None = None,
    most: int = LARGEST_MESSAGE,
) -> Iterator[CsvRow]:
    """The rows after the one that ends at `offset`, in `line`; rows without anything are left out.

    Fields in double quotes may have delimiters and line ends. Raises PublishSettingsError naming file and line, also for a
    row of more than `most` bytes and a first row that can be divided in two ways.
    """
    csv.field_size_limit(_LARGEST_FIELD)
    rows = _Rows(file, name, format_ or CsvFormat(), most)
    names = rows.names()
    if offset > rows.offset:
        file.seek(offset)
        rows.offset, rows.line = offset, line
    for row in rows:
        if len(row) != len(names):
            raise rows.error(f"it has {len(row)} fields, the first row {len(names)}")
        yield CsvRow(msgspec.json.encode(dict(zip(names, row, strict=True))), rows.line, rows.offset)


def read_as_json_lines(file: Input, name: str, format_: CsvFormat | None = None) -> Iterator[bytes]:
    """JSON lines in the places of the rows' last lines, and empty ones in those of all others: the numbers stay."""
    line = 0
    for row in read_rows(file, name, format_=format_):
        yield from [b"\n"] * (row.line - line - 1)
        yield row.body + b"\n"
        line = row.line


@dataclass
class _Rows:
    """The rows that are not empty, and where they end. The parser asks for no line that it does not need."""

    _file: Input
    _name: str
    _format: CsvFormat
    _most: int
    offset: int = 0
    line: int = 0
    _delimiter: str = ","
    _begun_at: int = 0

    def __iter__(self) -> Iterator[list[str]]:
        try:
            for row in csv.reader(self._lines(), strict=True, delimiter=self._delimiter):
                self._begun_at = self.offset
                if row:
                    yield row
        except csv.Error as error:
            raise self.error(f"it is no CSV: {error}") from None

    def names(self) -> list[str]:
        """Of the first row. The rows that follow are divided as it is."""
        self._file.seek(0)
        first = next(self._lines(), "")
        hint = _HINT.fullmatch(first)
        while not hint and first and not first.strip():
            first = next(self._lines(), "")
        self._delimiter = self._format.delimiter or (hint.group(1) if hint else self._found_delimiter(first))
        if not hint:
            self._file.seek(0)
            self.offset = self.line = self._begun_at = 0
        names = next(iter(self), [])
        if "" in names or len(set(names)) < len(names):
            raise self.error(
                f"the first row has the names of the fields, each once; it has {', '.join(names)}"
            )
        if names and all(len(one) > 1 and one[0] == one[-1] == "'" for one in names):
            raise self.error("the names are in single quotes, accepted: double quotes, or none")
        return names

    def _found_delimiter(self, first: str) -> str:
        outside = _QUOTED.sub("", first)
        found = [one for one in _DELIMITERS if one in outside]
        if len(found) > 1:
            named = " and ".join(_DELIMITERS[one] for one in found)
            raise self.error(
                f"the first row has {named}, so that it is not clear what separates its fields; say it by --delimiter"
            )
        return found[0] if found else ","

    def error(self, story: str) -> PublishSettingsError:
        return PublishSettingsError(f"{self._name}, line {self.line}: {story}")

    def _lines(self) -> Iterator[str]:
        for data in self._file:
            line = data if self.offset else without_mark(data, self._name)
            self._refuse_other_encoding(data, line)
            self.offset += len(data)
            self.line += 1
            if self.offset - self._begun_at > self._most:
                raise self.error(
                    f"a row has more than {self._most:,} bytes, which is more than the service takes; is a quote not closed?"
                )
            try:
                text = line.decode(self._format.encoding)
            except UnicodeDecodeError as error:
                raise self.error(
                    f"it is no {self._format.encoding.upper()}: {error.reason}; name its encoding by --encoding, such as cp1252"
                ) from None
            if "\0" in text:
                raise self.error(
                    "it has NUL characters, as UTF-16 has without a mark; accepted: UTF-8, or --encoding"
                )
            yield text

    def _refuse_other_encoding(self, data: bytes, line: bytes) -> None:
        """Of a file that says it is UTF-8 and is read as something else."""
        if len(line) < len(data) and codecs.lookup(self._format.encoding).name not in {"utf-8", "utf-8-sig"}:
            raise PublishSettingsError(
                f"{self._name} is UTF-8 by its first bytes, --encoding is {self._format.encoding}; leave --encoding out"
            )
