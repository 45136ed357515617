"""What is known of every line of an input that is being sent, and how it is written down (pure).

A resume file has a JSON document per line and only grows. The first, a `Resume`, is what was known when the run began.
Before a batch is transferred, a `Batch` says which lines are about to be; an `Answered` after it what became of them.
So whenever the run is killed, each line is sent, not sent or, if it was in the batch without an answer, unknown.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from publisher.errors import PublishSettingsError
from publisher.service_bus.core.send_report import Indices

Format = Literal["lines", "jsonl"]
Lines = list[tuple[int, int]]
"""Ranges of lines, counted from 1, the last one included."""

_VERSION = 2
_WHOLE = 1  # the version of files that are one document over several lines, written at an orderly end


class LineOptions(Struct, frozen=True):
    """How a line becomes a message: `session_field` and `id_field` name fields of JSON lines."""

    format: Format = "lines"
    session_field: str | None = None
    id_field: str | None = None

    def __post_init__(self) -> None:
        if self.format == "lines" and (self.session_field or self.id_field):
            raise PublishSettingsError("--session-field and --id-field need --format jsonl")


class Resume(Struct, frozen=True):
    """What became of an input so far. `read` is how many of its lines were read, `digest` the SHA-256 of those, in
    hexadecimal.
    """

    entity: str
    options: LineOptions
    id_prefix: str
    done: Lines
    unknown: list[int]
    refused: list[int]
    read: int
    digest: str
    version: int = _VERSION


class Batch(Struct, frozen=True, tag_field="event", tag="sending"):
    """These lines are about to be transferred. `read` and `digest` are as in a Resume."""

    lines: Lines
    read: int
    digest: str


class Answered(Struct, frozen=True, tag_field="event", tag="answered"):
    """What became of the batch before."""

    fate: Literal["sent", "not sent", "unknown"]


class NeverSent(Struct, frozen=True, tag_field="event", tag="refused"):
    """These lines can never be sent."""

    lines: list[int]


Entry = Batch | Answered | NeverSent


class Ledger:
    """What is known of every line: `done` are sent, `unknown` may be, `refused` never can be."""

    def __init__(self, begun: Resume) -> None:
        self._begun = begun
        self.done = lines_done(begun)
        self.refused = set(begun.refused)
        self.read, self.digest = begun.read, begun.digest
        self._doubtful = set(begun.unknown)
        self._on_the_way: set[int] = set()

    @property
    def unknown(self) -> set[int]:
        """Those that were transferred without an answer, and those that are on their way now."""
        return self._doubtful | self._on_the_way

    @property
    def nothing_sent(self) -> bool:
        """For certain: to begin anew doubles nothing."""
        return not (self.done or self.unknown)

    def enter(self, entry: Entry) -> None:
        """Raises ValueError for a line that is sent a second time."""
        match entry:
            case Batch(lines, read, digest):
                self._doubtful |= self._on_the_way
                self._on_the_way = {line for first, last in lines for line in range(first, last + 1)}
                self.read, self.digest = read, digest
            case Answered(fate):
                self._answered(fate)
            case NeverSent(lines):
                # What was sent before without an answer, and is refused now, may have been accepted then.
                self.refused.update(set(lines) - self._doubtful)

    def _answered(self, fate: str) -> None:
        lines, self._on_the_way = self._on_the_way, set()
        if fate == "sent":
            for line in sorted(lines):
                self.done.add(line)
            self._doubtful -= lines
        elif fate == "unknown":
            self._doubtful |= lines

    def summary(self) -> Resume:
        return Resume(
            self._begun.entity,
            self._begun.options,
            self._begun.id_prefix,
            ranges_of(self.done),
            sorted(self.unknown),
            sorted(self.refused),
            self.read,
            self.digest,
        )


def ranges_of(lines: Indices) -> Lines:
    """As they are written down."""
    return [(each.start, each.stop - 1) for each in lines.ranges()]


def encode(document: Resume | Entry) -> bytes:
    """A line of the file."""
    return msgspec.json.encode(document) + b"\n"


def read_ledger(text: bytes, name: str) -> Ledger:
    """What a resume file says. An unfinished last line was being written when its run was killed, and counts as not
    written. Raises PublishSettingsError for anything that is no resume file, with the line that is wrong.
    """
    first, *entries = text.split(b"\n")
    if not text:
        raise PublishSettingsError(
            f"{name} is empty: its run ended before it sent anything; start without --resume"
        )
    if first.strip() == b"{":
        first, entries = text, [b""]
    ledger = _begun(first, name)
    for number, line in enumerate(entries[:-1], 2):
        try:
            ledger.enter(msgspec.json.decode(line, type=Entry))
        except (msgspec.MsgspecError, ValueError) as error:
            raise PublishSettingsError(f"{name}, line {number}: {error}: the file is damaged") from None
    return ledger


def _begun(text: bytes, name: str) -> Ledger:
    try:
        resume = msgspec.json.decode(text, type=Resume)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PublishSettingsError(f"{name} is no resume file of tidemark send: {error}") from None
    if resume.version not in {_WHOLE, _VERSION}:
        raise PublishSettingsError(f"{name} has version {resume.version}, accepted: {_WHOLE}, {_VERSION}")
    try:
        return Ledger(resume)
    except ValueError as error:
        raise PublishSettingsError(f"{name}, the ranges that are done: {error}") from None


def lines_done(resume: Resume) -> Indices:
    """Raises ValueError for ranges that overlap or are in no order."""
    return Indices.of(range(first, last + 1) for first, last in resume.done)
