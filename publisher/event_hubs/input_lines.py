"""Events from lines of text: what a file or a pipe gives to `tidemark publish`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import msgspec
from msgspec import Struct

from publisher.csv_rows import read_rows
from publisher.errors import InvalidProducerStateError, PublishSettingsError


class InputLine(Struct, frozen=True):
    """A line without its end; its number from 1, where the next one begins, in bytes, and how many lines that are not
    blank the input has up to its end.
    """

    body: bytes
    number: int
    end: int
    count: int


class Bookmark(Struct, frozen=True):
    """How far the input of one partition was published, and by what it is dealt out to partitions. `count` as of an
    InputLine.
    """

    offset: int
    line: int
    count: int
    partitions: int
    key: str | None


def write_bookmark(bookmark: Bookmark) -> str:
    return msgspec.json.encode(bookmark).decode()


def read_bookmark(text: str | None, partitions: int, key: str | None) -> Bookmark:
    """A saved bookmark, or the beginning of the input.

    Raises InvalidProducerStateError if the input is dealt out otherwise now: lines would be skipped, or be doubled.
    """
    if text is None:
        return Bookmark(0, 0, 0, partitions, key)
    try:
        found = msgspec.json.decode(text, type=Bookmark)
    except msgspec.MsgspecError as error:
        raise InvalidProducerStateError(
            f"the saved state has a bookmark that this command did not write: {text!r} ({error})"
        ) from None
    for name, was, now in (("partitions", found.partitions, partitions), ("partition key", found.key, key)):
        if was != now:
            raise InvalidProducerStateError(
                f"the saved state is of an input dealt out by {name} {was}, now it is {now}: a line would go to "
                "another partition; finish with what it was, or start with another state file"
            )
    return found


def read_lines(file: BinaryIO, start: Bookmark) -> Iterator[InputLine]:
    """The lines from the bookmark on that are not blank. A file that cannot seek is read from its beginning."""
    offset, number, count = 0, 0, 0
    if file.seekable():
        file.seek(start.offset)
        offset, number, count = start.offset, start.line, start.count
    for line in file:
        offset += len(line)
        number += 1
        body = line.rstrip(b"\r\n")
        if body.strip():
            count += 1
            if offset > start.offset:
                yield InputLine(body, number, offset, count)


def read_csv(file: BinaryIO, name: str, start: Bookmark) -> Iterator[InputLine]:
    """The rows of a CSV file from the bookmark on, as JSON. The number of a row is that of its last line."""
    rows = read_rows(file, name, offset=start.offset, line=start.line)
    for count, row in enumerate(rows, start.count + 1):
        yield InputLine(row.body, row.line, row.end, count)


def key_of(line: InputLine, field: str) -> str:
    """The partition key of a JSON line: a text, or the JSON of a number or truth value.

    Raises PublishSettingsError naming the line.
    """
    try:
        document = msgspec.json.decode(line.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PublishSettingsError(f"line {line.number} is no JSON ({error}): {_beginning(line)}") from None
    value = document.get(field) if isinstance(document, dict) else None
    if value is None or isinstance(value, dict | list):
        raise PublishSettingsError(
            f"line {line.number} has no text or number in '{field}', the partition key: {_beginning(line)}"
        )
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _beginning(line: InputLine) -> str:
    text = line.body.decode(errors="replace")
    return text if len(text) <= 80 else f"{text[:80]}..."
