"""The input of `tidemark publish`: its lines, and bookmarks that say how far it was published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec

from tidemark.foundation.wording import count_text
from tidemark.publisher.cli.csv_rows import CsvFormat, read_rows
from tidemark.publisher.cli.given_options import GivenOptions, describe_differences
from tidemark.publisher.cli.text.event_fields import read_object, text_of
from tidemark.publisher.cli.text.lines import (
    LARGEST_EVENT,
    Bookmark,
    InputLine,
    read_bounded,
    without_inner_mark,
    without_mark,
)
from tidemark.publisher.errors import InvalidProducerStateError, PublishSettingsError
from tidemark.publisher.event_hubs.core.failures import ANEW

_CHUNK = 1024 * 1024  # bytes; how much of the published part is read at a time for its digest
_LINE_ENDS = b"\r\n"
ANOTHER_STATE = f"start with another --state file: {ANEW}"
_LAST_LINE_GREW = "the last of them has grown since"


def write_bookmark(bookmark: Bookmark) -> str:
    return msgspec.json.encode(bookmark).decode()


def read_bookmark(
    text: str | None, partitions: int, key: str | None, given: GivenOptions | None = None
) -> Bookmark:
    """Read a saved bookmark; None is the beginning of the input.

    Raises InvalidProducerStateError if the lines now go to other partitions or become other events: some would be skipped or
    doubled. Partitions that were added since change nothing.
    """
    if text is None:
        return Bookmark(0, 0, 0, partitions, key, given=given)
    try:
        saved = msgspec.json.decode(text, type=Bookmark)
    except msgspec.MsgspecError as error:
        raise InvalidProducerStateError(
            f"this version of the command cannot read the bookmark of the saved state: {text!r} ({error}); go on with "
            f"the version that wrote it, or {ANOTHER_STATE}"
        ) from None
    if saved.key != key:
        raise InvalidProducerStateError(
            f"the saved state has partition key {saved.key}, now it is {key}: a line would go to another partition; give the "
            f"key of before, or {ANOTHER_STATE}"
        )
    if saved.partitions > partitions:
        raise InvalidProducerStateError(
            f"the saved state is of a hub with {saved.partitions} partitions, this one has {partitions}: it is another hub; "
            f"{ANOTHER_STATE}"
        )
    if saved.given is not None and (differences := describe_differences(saved.given, given or {})):
        raise InvalidProducerStateError(
            f"the saved state is of a run with other options: {'; '.join(differences)}. Give the options of before, or "
            f"{ANOTHER_STATE}"
        )
    return saved


def partitions_of_input(bookmarks: Sequence[Bookmark], partitions: int) -> int:
    """How many partitions the lines go to. Raises InvalidProducerStateError where the bookmarks differ."""
    counts = {bookmark.partitions for bookmark in bookmarks if bookmark.offset} or {partitions}
    if len(counts) > 1:
        raise InvalidProducerStateError(
            f"the saved state has bookmarks of inputs for {' and '.join(map(str, sorted(counts)))} partitions; {ANOTHER_STATE}"
        )
    return counts.pop()


def last_floored_line(bookmarks: Sequence[Bookmark]) -> int:
    """The last line whose key goes to the partition that versions without a digest chose; 0 without one."""
    old = [bookmark.line for bookmark in bookmarks if bookmark.digest is None and bookmark.key is not None]
    return max([0, *(bookmark.floored for bookmark in bookmarks), *old])


class PublishedInput:
    """Reads an input and computes the digest of what was read; None unless `keeps_digest`.

    `name` is for errors. A line of more than `max_bytes` bytes is refused before more of it is read.
    """

    def __init__(
        self, file: BinaryIO, name: str, *, keeps_digest: bool, max_bytes: int = LARGEST_EVENT
    ) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self._line = 0
        self.offset = 0
        self._file = file
        self._keeps_digest = keeps_digest
        self._hash = hashlib.blake2b(digest_size=16)
        self._digests = {0: self._hash.copy()}
        self._last = b"\n"
        self._start: Bookmark
        self._furthest: Bookmark
        self._unchecked: list[Bookmark] = []

    @property
    def digest(self) -> str | None:
        return self._hash.hexdigest() if self._keeps_digest else None

    @property
    def position(self) -> int:
        """How many bytes were read, for the progress."""
        return self.offset

    @property
    def is_within_line(self) -> bool:
        """Whether the last byte that was read is no line end."""
        return self._last != b"\n"

    def begin(self, start: Bookmark, others: Iterable[Bookmark] = ()) -> None:
        """Go to `start`, the first of the bookmarks, after checking that all of them are of this input.

        If the input cannot seek, later bookmarks are checked when reading reaches them. A bookmark without a digest is
        accepted if a line ends there. Raises InvalidProducerStateError.
        """
        self._start = start
        bookmarks = sorted([start, *others], key=lambda bookmark: bookmark.offset)
        self._furthest = bookmarks[-1]
        self._line = start.line
        if self._file.seekable():
            for bookmark in bookmarks:
                self._advance(bookmark)
            self.seek(start.offset)
        else:
            self._advance(start)
            self._unchecked = [bookmark for bookmark in bookmarks if bookmark.offset > start.offset]

    def seek(self, offset: int) -> None:
        """Go to the beginning, or to a bookmark that was checked."""
        self._file.seek(offset - 1 if offset else 0)
        self._last = self._file.read(1) if offset else b"\n"
        self._hash, self.offset = self._digests[offset].copy(), offset
        self._line = self._start.line - self.is_within_line if offset else 0

    def __iter__(self) -> Iterator[bytes]:
        for line in read_bounded(self._file, self.name, self.max_bytes, line=self._line):
            if self.is_within_line and line.strip(_LINE_ENDS):
                if self.offset == self._start.offset:
                    self._refuse(self._start, _LAST_LINE_GREW)
                raise PublishSettingsError(
                    f"{self.name}: its last line was read before it was written to its end; publish a file that is "
                    "complete, or one that grows through a pipe (tail -f)"
                )
            self._add(line) if not self._unchecked else self._add_and_check(line)
            yield line
        if self._unchecked:
            self._refuse(self._unchecked[0])

    def _add(self, data: bytes) -> None:
        if self._keeps_digest:
            self._hash.update(data)
        self.offset += len(data)
        self._last = data[-1:] or self._last

    def _add_and_check(self, line: bytes) -> None:
        """A line that had no end when it was published may have one now."""
        body = line.rstrip(_LINE_ENDS)
        for part in (body, *(bytes((end,)) for end in line[len(body) :])):
            self._add(part)
            while self._unchecked and self._unchecked[0].offset <= self.offset:
                self._check(self._unchecked.pop(0))

    def _advance(self, bookmark: Bookmark) -> None:
        while self.offset < bookmark.offset:
            data = self._file.read(min(_CHUNK, bookmark.offset - self.offset))
            if not data:
                break
            self._add(data)
        self._check(bookmark)
        if self._file.seekable() and self.is_within_line:
            following = self._file.read(1)
            self._file.seek(self.offset)
            if following not in _LINE_ENDS:
                self._refuse(bookmark, _LAST_LINE_GREW)
        self._digests[bookmark.offset] = self._hash.copy()

    def _check(self, bookmark: Bookmark) -> None:
        is_right = bookmark.digest is None or bookmark.digest == self.digest
        if self.offset != bookmark.offset or not is_right:
            self._refuse(bookmark)

    def _refuse(self, bookmark: Bookmark, why: str = "") -> None:
        first = count_text(bookmark.offset, "byte differs", "bytes differ", style=",")
        difference = why or f"its first {first}, or it is shorter"
        raise InvalidProducerStateError(
            f"{self.name} is not the input of the saved state, of which "
            f"{count_text(self._furthest.count, 'line was', 'lines were', style=',')} published, up to line {self._furthest.line:,}; {difference}. Publish that input again, or this one with another --state file, which "
            "publishes all lines of it"
        )


def read_lines(source: PublishedInput, start: Bookmark) -> Iterator[InputLine]:
    """The lines after the bookmark, without blank ones. `begin` has gone there."""
    number, count = start.line, start.count
    number -= source.is_within_line  # the first piece is the rest of a line that was counted
    for line in source:
        number += 1
        is_first = source.offset == len(line)
        text = without_mark(line, source.name) if is_first else without_inner_mark(line)
        body = text.rstrip(_LINE_ENDS)
        if body.strip():
            count += 1
            yield InputLine(body, number, source.offset, count, source.digest)


def read_csv(
    source: PublishedInput, start: Bookmark, format_: CsvFormat | None = None
) -> Iterator[InputLine]:
    """The rows of a CSV file after the bookmark, as JSON. The number of a row is that of its last line."""
    line = start.line - source.is_within_line  # as above
    rows = read_rows(
        source, source.name, offset=start.offset, line=line, format_=format_, max_bytes=source.max_bytes
    )
    for count, row in enumerate(rows, start.count + 1):
        yield InputLine(row.body, row.line, row.end, count, source.digest)


def key_of(line: InputLine, field: str) -> str:
    """The partition key of a JSON line: a text, or the JSON of a number, true or false.

    Raises PublishSettingsError naming the line.
    """
    document = read_object(line.body, line.number)
    return text_of(line.body, document, field, line.number, "the partition key")
