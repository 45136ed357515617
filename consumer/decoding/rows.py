"""CSV, plain text, and bytes of any kind. Pure."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from typing import Any

from consumer.decoding.bodies import MOST_DOCUMENTS, Format
from consumer.model import Event, Rejection
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.wording import count_text

_LARGEST_CELL = 2**31 - 1
"""Characters: a body is bounded before it is read. The csv module's limit is of the whole process, and 128 K by default."""


class CsvFormat(Format):
    """Each row is a document of texts, under the names of the columns or of the first row."""

    def __init__(self, columns: Sequence[str], delimiter: str) -> None:
        """Raises SettingsError."""
        delimiter = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise SettingsError(f"CONSUMER_CSV_DELIMITER is '{delimiter}'; accepted: one character, or tab")
        if len(set(columns)) != len(columns):
            raise SettingsError(f"CONSUMER_CSV_COLUMNS names a column twice: {', '.join(columns)}")
        self._columns = list(columns)
        self._delimiter = delimiter

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        text = text_of(event.body)
        if isinstance(text, Rejection):
            return text
        csv.field_size_limit(_LARGEST_CELL)
        names, documents = self._columns, []
        rows = csv.reader(StringIO(text, newline=""), delimiter=self._delimiter, strict=True)
        try:
            for row in rows:
                if not row:  # an empty line
                    continue
                if not names:
                    names = [name.strip() for name in row]
                    if len(set(names)) != len(names) or "" in names:
                        return Rejection(
                            "csv", f"the header row has a name twice, or an empty one: {row}"[:500]
                        )
                    continue
                if len(row) != len(names):
                    return Rejection(
                        "csv",
                        f"line {rows.line_num} has {count_text(len(row), 'cell')}; expected {len(names)}",
                    )
                documents.append(dict(zip(names, row, strict=True)))
                if len(documents) > MOST_DOCUMENTS:
                    break
        except csv.Error as error:
            return Rejection("csv", f"line {rows.line_num}: {error}")
        return documents


class TextFormat(Format):
    """A document `{"text": ...}`."""

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        text = text_of(event.body)
        return text if isinstance(text, Rejection) else [{"text": text}]


class RawFormat(Format):
    """A document `{"body": ...}` of bytes, for a transform; a sink writes them as base64."""

    def shows_packing(self, event: Event) -> bool:
        return False

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        return [{"body": event.body}]


def text_of(body: bytes) -> str | Rejection:
    if not body.strip():
        return Rejection("empty", "the body is empty")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Rejection("encoding", f"the body is not UTF-8 (byte {error.start})")
