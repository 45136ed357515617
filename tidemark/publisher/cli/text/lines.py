"""Lines of a file or a pipe, read with bounded memory, and how far an input was published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from msgspec import Struct

from tidemark.publisher.errors import PublishSettingsError

LARGEST_EVENT = 20 * 1024 * 1024
"""Bytes: the largest event of a dedicated cluster of Event Hubs, where it is configured; other tiers take 1 MB."""

LARGEST_MESSAGE = 100 * 1024 * 1024
"""Bytes: the largest message of Service Bus Premium."""

_LINE_END = 2  # bytes
_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32LE",
    b"\x00\x00\xfe\xff": "UTF-32BE",
    b"\xff\xfe": "UTF-16LE",
    b"\xfe\xff": "UTF-16BE",
}
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip --keep"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\xfd7zXZ\0": ("xz", "unxz --keep"),
    b"PK\x03\x04": ("zip", "unzip"),
}
"""First bytes of a compressed file -> its format, and the command that unpacks it."""


@dataclass(frozen=True, slots=True)
class BoundedLines:
    """A file that can seek, and whose lines come from `read_bounded`."""

    _file: BinaryIO
    _name: str
    _max_bytes: int | None

    def __iter__(self) -> Iterator[bytes]:
        return read_bounded(self._file, self._name, self._max_bytes)

    def seek(self, offset: int, /) -> int:
        return self._file.seek(offset)


def read_bounded(file: BinaryIO, name: str, max_bytes: int | None, *, line: int = 0) -> Iterator[bytes]:
    """The lines that follow, with their ends; `line` is the number of the one before them.

    Raises PublishSettingsError for a line of more than `max_bytes` bytes, once so many were read.
    """
    limit = -1 if max_bytes is None else max_bytes + _LINE_END
    while data := file.readline(limit):
        line += 1
        if max_bytes is not None and len(data) > max_bytes and len(data.rstrip(b"\r\n")) > max_bytes:
            raise PublishSettingsError(
                f"{name}, line {line}: it is too large: more than {max_bytes:,} bytes without a line end, which is more than the "
                "service takes. Lines end with LF or CRLF; is the file one document, or another format?"
            )
        yield data


def without_mark(beginning: bytes, name: str) -> bytes:
    """Remove the byte order marks of UTF-8 from the first line. Windows and spreadsheets write one; joined files have two.

    Raises PublishSettingsError if the first bytes are of another encoding or of a compressed file.
    """
    for mark, (form, command) in _COMPRESSED.items():
        if beginning.startswith(mark):
            raise PublishSettingsError(
                f"{name} is compressed ({form}) by its first bytes, accepted: lines of text; unpack it, for example with: {command}"
            )
    for mark, encoding in _OTHER_MARKS.items():
        if beginning.startswith(mark):
            raise PublishSettingsError(
                f"{name} is {encoding} by its first bytes, accepted: UTF-8; convert it, for example with: "
                f"iconv -f {encoding} -t UTF-8"
            )
    while beginning.startswith(_UTF8_MARK):
        beginning = beginning.removeprefix(_UTF8_MARK)
    return beginning


def without_inner_mark(body: bytes) -> bytes:
    """Remove a mark before JSON in a later line, where files with marks were joined."""
    if not body.startswith(_UTF8_MARK):
        return body
    rest = body.lstrip(_UTF8_MARK)
    return rest if rest[:1] in {b"{", b"["} else body


class InputLine(Struct, frozen=True):
    """`body` is the line without its end, `number` counts from 1, `end` is the offset of the next line in bytes.

    `count` is the number of lines up to here that are not blank, `digest` that of the whole input up to here. Of a file of rows,
    `row` is what was read, and of a captured event `captured` are its partition key, application and system properties.
    """

    body: bytes
    number: int
    end: int
    count: int
    digest: str | None = None
    row: Any = None
    captured: tuple[str | None, Mapping[str, Any], Mapping[str, Any]] | None = None


class Bookmark(Struct, frozen=True, forbid_unknown_fields=True):
    """How far the input of one partition was published, and how its lines are assigned to partitions.

    `count` and `digest` are those of an InputLine; earlier versions saved no digest. Up to the line `floored`, keys go to the
    partitions that earlier versions chose, so that no line changes its partition. `given` are the options that decide what
    becomes of a line; None in bookmarks of earlier versions. `partitions` is how many the hub had when the input was begun.
    """

    offset: int
    line: int
    count: int
    partitions: int
    key: str | None
    digest: str | None = None
    floored: int = 0
    given: dict[str, str] | None = None
