"""Lines of a file or a pipe, none of which is read further than it may be long, and the encoding they must have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from tidemark.publisher.errors import PublishSettingsError

LARGEST_EVENT = 20 * 1024 * 1024
"""Bytes: what a dedicated cluster of Event Hubs takes as one event, if it is configured for that; others take 1 MB."""

LARGEST_MESSAGE = 100 * 1024 * 1024
"""Bytes: what an entity of Service Bus Premium takes as one message."""

_LINE_END = 2  # bytes
_MARK = b"\xef\xbb\xbf"
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
"""What such files begin with, and what makes the file of lines from one. Their lines are no lines of anybody's."""


@dataclass(frozen=True, slots=True)
class BoundedLines:
    """A file whose lines are read as by `read_bounded`, from wherever it is sought to."""

    _file: BinaryIO
    _name: str
    _most: int | None

    def __iter__(self) -> Iterator[bytes]:
        return read_bounded(self._file, self._name, self._most)

    def seek(self, offset: int, /) -> int:
        return self._file.seek(offset)


def read_bounded(file: BinaryIO, name: str, most: int | None, *, line: int = 0) -> Iterator[bytes]:
    """The lines that follow, with their ends; `line` is the number of the one before them.

    Raises PublishSettingsError for a line of more than `most` bytes, once so many were read.
    """
    limit = -1 if most is None else most + _LINE_END
    while data := file.readline(limit):
        line += 1
        if most is not None and len(data) > most and len(data.rstrip(b"\r\n")) > most:
            raise PublishSettingsError(
                f"{name}, line {line}: it is too large: more than {most:,} bytes without a line end, which is more than the "
                "service takes. Lines end with LF or CRLF; is the file one document, or another format?"
            )
        yield data


def without_mark(beginning: bytes, name: str) -> bytes:
    """The first line without the byte order marks of UTF-8 that Windows and spreadsheets write; two, where files were joined.

    Raises PublishSettingsError for text that is no UTF-8 by its mark, and for what is compressed.
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
    while beginning.startswith(_MARK):
        beginning = beginning.removeprefix(_MARK)
    return beginning


def without_inner_mark(body: bytes) -> bytes:
    """A line within the input, where files with marks were joined: a mark before JSON is no part of it."""
    if not body.startswith(_MARK):
        return body
    rest = body.lstrip(_MARK)
    return rest if rest[:1] in {b"{", b"["} else body
