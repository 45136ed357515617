"""Rows of a CSV file as JSON objects. The first row names the fields; all values are texts."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Struct

from tidemark.foundation.wording import count_text
from tidemark.publisher.cli.text.lines import LARGEST_MESSAGE, without_mark
from tidemark.publisher.errors import PublishSettingsError

_LARGEST_FIELD = LARGEST_MESSAGE  # characters; the default of the csv module, 128 K, is too small
_DELIMITERS = {",": "','", ";": "';'", "\t": "a tab", "|": "'|'"}
_BY_NAME = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_HINT = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)  # a first line that Excel writes and reads


class Input(Protocol):
    """A file of bytes, or what behaves like one."""

    def __iter__(self) -> Iterator[bytes]: ...

    def seek(self, offset: int, /) -> object: ...


class CsvRow(Struct, frozen=True):
    """`body` is JSON, `line` the number of the row's last line from 1, `end` the offset of the next row in bytes."""

    body: bytes
    line: int
    end: int


class CsvFormat(Struct, frozen=True):
    """A `delimiter` of None is detected in the first row.

    Raises PublishSettingsError for an impossible delimiter, and for an encoding in which LF is not one byte.
    """

    delimiter: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise PublishSettingsError(f"--delimiter is {self.delimiter!r}, accepted: one character, or tab")
        try:
            is_fit = ',;"\n'.encode(self.encoding) == b',;"\n' and codecs.lookup(self.encoding)
        except (LookupError, ValueError):  # unknown, or it cannot encode this text
            is_fit = None
        if not is_fit:
            raise PublishSettingsError(
                f"--encoding is {self.encoding!r}, accepted: utf-8, cp1252, latin-1 and others that Python knows and that "
                "contain ASCII; convert UTF-16, for example with: iconv -f UTF-16 -t UTF-8"
            )

    @classmethod
    def of_options(cls, delimiter: str | None, encoding: str | None, *, is_csv: bool) -> CsvFormat:
        """Raises PublishSettingsError."""
        if not is_csv and (delimiter is not None or encoding is not None):
            option = "--encoding" if delimiter is None else "--delimiter"
            raise PublishSettingsError(
                f"{option} needs a .csv; the lines of other files are published unchanged"
            )
        return cls(_BY_NAME.get(delimiter or "", delimiter), encoding or "utf-8")


def read_rows(
    file: Input,
    name: str,
    *,
    offset: int = 0,
    line: int = 0,
    format_: CsvFormat | None = None,
    max_bytes: int = LARGEST_MESSAGE,
) -> Iterator[CsvRow]:
    """The rows after the one that ends at `offset`, in `line`, without empty rows.

    Fields in double quotes may contain delimiters and line ends. Raises PublishSettingsError naming file and line, also for a
    row of more than `max_bytes` bytes, and for a first row with two possible delimiters.
    """
    csv.field_size_limit(_LARGEST_FIELD)
    rows = _Rows(file, name, format_ or CsvFormat(), max_bytes)
    names = rows.read_names()
    if offset > rows.offset:
        file.seek(offset)
        rows.offset, rows.line = offset, line
    for row in rows:
        if len(row) != len(names):
            raise rows.error(f"it has {count_text(len(row), 'field')}, the first row {len(names)}")
        yield CsvRow(msgspec.json.encode(dict(zip(names, row, strict=True))), rows.line, rows.offset)


def read_as_json_lines(file: Input, name: str, format_: CsvFormat | None = None) -> Iterator[bytes]:
    """Each row as a JSON line at the number of its last line, and empty lines between, so that line numbers stay."""
    line = 0
    for row in read_rows(file, name, format_=format_):
        yield from [b"\n"] * (row.line - line - 1)
        yield row.body + b"\n"
        line = row.line


@dataclass
class _Rows:
    """The rows that are not empty, and where they end. The csv module reads no line ahead."""

    _file: Input
    _name: str
    _format: CsvFormat
    _max_bytes: int
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
            raise self.error(f"this is not CSV: {error}") from None

    def read_names(self) -> list[str]:
        """Read the names in the first row, and set the delimiter for the rows that follow."""
        self._file.seek(0)
        first = next(self._lines(), "")
        hint = _HINT.fullmatch(first)
        while not hint and first and not first.strip():
            first = next(self._lines(), "")
        self._delimiter = self._format.delimiter or (hint.group(1) if hint else self._detect_delimiter(first))
        if not hint:
            self._file.seek(0)
            self.offset = self.line = self._begun_at = 0
        names = next(iter(self), [])
        if "" in names or len(set(names)) < len(names):
            raise self.error(f"the first row must name the fields, each once; it has {', '.join(names)}")
        if names and all(len(name) > 1 and name[0] == name[-1] == "'" for name in names):
            raise self.error("the names are in single quotes, accepted: double quotes, or none")
        return names

    def _detect_delimiter(self, first: str) -> str:
        outside_quotes = _QUOTED.sub("", first)
        candidates = [delimiter for delimiter in _DELIMITERS if delimiter in outside_quotes]
        if len(candidates) > 1:
            named = " and ".join(_DELIMITERS[candidate] for candidate in candidates)
            raise self.error(
                f"the first row contains {named}, so its delimiter is ambiguous; name it with --delimiter"
            )
        return candidates[0] if candidates else ","

    def error(self, problem: str) -> PublishSettingsError:
        return PublishSettingsError(f"{self._name}, line {self.line}: {problem}")

    def _lines(self) -> Iterator[str]:
        for data in self._file:
            line = data if self.offset else without_mark(data, self._name)
            self._refuse_other_encoding(data, line)
            self.offset += len(data)
            self.line += 1
            if self.offset - self._begun_at > self._max_bytes:
                raise self.error(
                    f"a row has more than {self._max_bytes:,} bytes, which is more than the service takes; is a quote not closed?"
                )
            try:
                text = line.decode(self._format.encoding)
            except UnicodeDecodeError as error:
                raise self.error(
                    f"this is not {self._format.encoding.upper()}: {error.reason}; name its encoding with --encoding, such as cp1252"
                ) from None
            if "\0" in text:
                raise self.error(
                    "it contains NUL characters, as UTF-16 without a byte order mark does; accepted: UTF-8, or --encoding"
                )
            yield text

    def _refuse_other_encoding(self, data: bytes, line: bytes) -> None:
        """Refuse another --encoding for a file with the byte order mark of UTF-8."""
        if len(line) < len(data) and codecs.lookup(self._format.encoding).name not in {"utf-8", "utf-8-sig"}:
            raise PublishSettingsError(
                f"{self._name} is UTF-8 by its first bytes, --encoding is {self._format.encoding}; leave --encoding out"
            )
