"""Events from lines of text: what a file or a pipe gives to `tidemark publish`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec
from msgspec import Struct

from tidemark.publisher.cli.csv_rows import CsvFormat, read_rows
from tidemark.publisher.cli.given_options import GivenOptions, describe_differences
from tidemark.publisher.cli.text.bounded_lines import (
    LARGEST_EVENT,
    read_bounded,
    without_inner_mark,
    without_mark,
)
from tidemark.publisher.cli.text.event_fields import read_object, text_of
from tidemark.publisher.errors import InvalidProducerStateError, PublishSettingsError
from tidemark.publisher.event_hubs.core.failures import ANEW

_AT_ONCE = 1024 * 1024  # bytes that are read at once of what was published before
_LINE_ENDS = b"\r\n"
ANOTHER_STATE = f"start with another --state file: {ANEW}"
_GROWN = "the last of them has grown since"


class InputLine(Struct, frozen=True):
    """A line without its end; its number from 1, where the next one begins, in bytes, and how many lines that are not
    blank the input has up to its end. `digest` is that of the whole input up to there.
    """

    body: bytes
    number: int
    end: int
    count: int
    digest: str | None = None


class Bookmark(Struct, frozen=True, forbid_unknown_fields=True):
    """How far the input of one partition was published, and by what it is dealt out to partitions. `count` and
    `digest` are those of an InputLine; versions before this one did not save a digest. Up to the line `floored` keys
    belong to the partitions that those versions took, so that none of their lines changes its place. `given` are the options
    that decide what becomes of a line; None in bookmarks of earlier versions. `partitions` is how many the lines are dealt
    out to: those that the hub had when the input was begun.
    """

    offset: int
    line: int
    count: int
    partitions: int
    key: str | None
    digest: str | None = None
    floored: int = 0
    given: GivenOptions | None = None


def write_bookmark(bookmark: Bookmark) -> str:
    return msgspec.json.encode(bookmark).decode()


def read_bookmark(
    text: str | None, partitions: int, key: str | None, given: GivenOptions | None = None
) -> Bookmark:
    """A saved bookmark, or the beginning of the input.

    Raises InvalidProducerStateError if the input is dealt out otherwise now, or its lines become other events: lines would
    be skipped, be doubled, or be of two kinds. Partitions that were added since change nothing.
    """
    if text is None:
        return Bookmark(0, 0, 0, partitions, key, given=given)
    try:
        found = msgspec.json.decode(text, type=Bookmark)
    except msgspec.MsgspecError as error:
        raise InvalidProducerStateError(
            f"the saved state has a bookmark that this version of the command did not write: {text!r} ({error}); go on with "
            f"the version that wrote it, or {ANOTHER_STATE}"
        ) from None
    if found.key != key:
        raise InvalidProducerStateError(
            f"the saved state is of an input dealt out by partition key {found.key}, now it is {key}: a line would go to "
            f"another partition; give what it was, or {ANOTHER_STATE}"
        )
    if found.partitions > partitions:
        raise InvalidProducerStateError(
            f"the saved state is of a hub of {found.partitions} partitions, this one has {partitions}: it is another hub; "
            f"{ANOTHER_STATE}"
        )
    if found.given is not None and (differences := describe_differences(found.given, given or {})):
        raise InvalidProducerStateError(
            f"the saved state is of a run that was told otherwise: {'; '.join(differences)}. Give what it was, or "
            f"{ANOTHER_STATE}"
        )
    return found


def dealt_out_to(places: Sequence[Bookmark], partitions: int) -> int:
    """How many partitions the lines are dealt out to. Raises InvalidProducerStateError where the bookmarks differ."""
    counts = {place.partitions for place in places if place.offset} or {partitions}
    if len(counts) > 1:
        raise InvalidProducerStateError(
            f"the saved state has partitions of inputs dealt out to {sorted(counts)} partitions; {ANOTHER_STATE}"
        )
    return counts.pop()


def floored_up_to(places: Sequence[Bookmark]) -> int:
    """The last line whose key belongs to the partition that versions without a digest took; 0 if there is none."""
    known = [place.floored for place in places if place.floored]
    old = [place.line for place in places if place.digest is None and place.key is not None]
    return max(known or old, default=0)


class PublishedInput:
    """An input as it is read, and the digest of all of it up to where it stands; None unless it `remembers`.

    `name` is for errors. A line of more than `most` bytes is refused before more of it is read.
    """

    def __init__(self, file: BinaryIO, name: str, *, remembers: bool, most: int = LARGEST_EVENT) -> None:
        self.name = name
        self.most = most
        self._line = 0
        self.offset = 0
        self._file = file
        self._remembers = remembers
        self._hash = hashlib.blake2b(digest_size=16)
        self._known = {0: self._hash.copy()}
        self._last = b"\n"
        self._begun: Bookmark
        self._furthest: Bookmark
        self._ahead: list[Bookmark] = []

    @property
    def digest(self) -> str | None:
        return self._hash.hexdigest() if self._remembers else None

    @property
    def is_amid_a_line(self) -> bool:
        """Whether what was read ended without a line end."""
        return self._last != b"\n"

    def begin(self, start: Bookmark, others: Iterable[Bookmark] = ()) -> None:
        """Go to the first of the bookmarks, once it is sure that all of them are of this input.

        Of an input that cannot seek, those behind the first are checked when it is read that far. A bookmark without a
        digest is taken to be of this input if a line ends there. Raises InvalidProducerStateError.
        """
        self._begun = start
        places = sorted([start, *others], key=lambda place: place.offset)
        self._furthest = places[-1]
        self._line = start.line
        if self._file.seekable():
            for place in places:
                self._advance(place)
            self.seek(start.offset)
        else:
            self._advance(start)
            self._ahead = [place for place in places if place.offset > start.offset]

    def seek(self, offset: int) -> None:
        """To the beginning, or to where a bookmark was found right."""
        self._file.seek(offset - 1 if offset else 0)
        self._last = self._file.read(1) if offset else b"\n"
        self._hash, self.offset = self._known[offset].copy(), offset
        self._line = self._begun.line - self.is_amid_a_line if offset else 0

    def __iter__(self) -> Iterator[bytes]:
        for line in read_bounded(self._file, self.name, self.most, line=self._line):
            if self.is_amid_a_line and line.strip(_LINE_ENDS):
                if self.offset == self._begun.offset:
                    self._differs(self._begun, _GROWN)
                raise PublishSettingsError(
                    f"{self.name}: its last line was read before it was written to its end; publish a file that is "
                    "complete, or one that grows through a pipe (tail -f)"
                )
            self._take(line) if not self._ahead else self._take_and_check(line)
            yield line
        if self._ahead:
            self._differs(self._ahead[0])

    def _take(self, data: bytes) -> None:
        if self._remembers:
            self._hash.update(data)
        self.offset += len(data)
        self._last = data[-1:] or self._last

    def _take_and_check(self, line: bytes) -> None:
        """A line that had no end when it was published may have one now."""
        body = line.rstrip(_LINE_ENDS)
        for part in (body, *(bytes((end,)) for end in line[len(body) :])):
            self._take(part)
            while self._ahead and self._ahead[0].offset <= self.offset:
                self._check(self._ahead.pop(0))

    def _advance(self, place: Bookmark) -> None:
        while self.offset < place.offset:
            data = self._file.read(min(_AT_ONCE, place.offset - self.offset))
            if not data:
                break
            self._take(data)
        self._check(place)
        if self._file.seekable() and self.is_amid_a_line:
            following = self._file.read(1)
            self._file.seek(self.offset)
            if following not in _LINE_ENDS:
                self._differs(place, _GROWN)
        self._known[place.offset] = self._hash.copy()

    def _check(self, place: Bookmark) -> None:
        is_right = place.digest is None or place.digest == self.digest
        if self.offset != place.offset or not is_right:
            self._differs(place)

    def _differs(self, place: Bookmark, why: str = "") -> None:
        story = why or f"the first {place.offset:,} bytes are others, or there are fewer"
        raise InvalidProducerStateError(
            f"{self.name} is not the input that the saved state is of: {self._furthest.count:,} lines of that were "
            f"published, up to line {self._furthest.line:,}; {story}. Publish that input again, or this one with another --state "
            "file, which publishes all lines of it"
        )


def read_lines(source: PublishedInput, start: Bookmark) -> Iterator[InputLine]:
    """The lines from the bookmark on that are not blank. The input has begun there."""
    number, count = start.line, start.count
    number -= source.is_amid_a_line  # what comes first is the rest of a line that is counted
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
    """The rows of a CSV file from the bookmark on, as JSON. The number of a row is that of its last line."""
    line = start.line - source.is_amid_a_line  # as above
    rows = read_rows(source, source.name, offset=start.offset, line=line, format_=format_, most=source.most)
    for count, row in enumerate(rows, start.count + 1):
        yield InputLine(row.body, row.line, row.end, count, source.digest)


def key_of(line: InputLine, field: str) -> str:
    """The partition key of a JSON line: a text, or the JSON of a number or truth value.

    Raises PublishSettingsError naming the line.
    """
    document = read_object(line.body, line.number)
    return text_of(line.body, document, field, line.number, "the partition key")
