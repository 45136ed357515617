"""The content of a resume file: the outcome of every line of an input (pure).

The file has a JSON document per line and only grows. The first, a `Resume`, is the state when the run began. A `Batch` lists
the lines that are about to be sent, and the `Answered` after it has their outcome. So whenever the run is killed, each line is
sent, not sent or, in a batch without an answer, unknown.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from tidemark.publisher.cli.given_options import GivenOptions, describe_differences, only_given
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.service_bus.core.send_report import Indices

Format = Literal["lines", "jsonl"]
Lines = list[tuple[int, int]]
"""Ranges of lines, counted from 1, the last one included."""

_VERSION = 3
_WITHOUT_GIVEN = 2  # this version did not store the namespace and the options
_ONE_DOCUMENT = 1  # this version stored one document over several lines, at the end of a run


class LineOptions(Struct, frozen=True):
    """How a line becomes a message: `session_field` and `id_field` name fields of JSON lines."""

    format: Format = "lines"
    session_field: str | None = None
    id_field: str | None = None

    def __post_init__(self) -> None:
        if self.format == "lines" and (self.session_field or self.id_field):
            raise PublishSettingsError("--session-field and --id-field need --format jsonl")


class Resume(Struct, frozen=True):
    """What became of an input so far. `read` is how many of its lines were read, `digest` their SHA-256 in hexadecimal.

    `created_at` distinguishes the queue or topic from a later one of the same name; None without the right to read it.
    `given` are the namespace and the options that decide what is sent where; None in files of earlier versions.
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
    given: GivenOptions | None = None
    created_at: str | None = None


class _Head(Struct, frozen=True):
    version: int = _VERSION


class Batch(Struct, frozen=True, tag_field="event", tag="sending"):
    """These lines are about to be transferred. `read` and `digest` are as in a Resume."""

    lines: Lines
    read: int
    digest: str


class Answered(Struct, frozen=True, tag_field="event", tag="answered"):
    """What became of the batch before this entry."""

    fate: Literal["sent", "not sent", "unknown"]


class NeverSent(Struct, frozen=True, tag_field="event", tag="refused"):
    """These lines can never be sent."""

    lines: list[int]


Entry = Batch | Answered | NeverSent


class LineOutcomes:
    """The outcome of every line: `done` were sent, `unknown` may have been, `refused` can never be."""

    def __init__(self, start: Resume) -> None:
        self.start = start
        self.done = lines_done(start)
        self.refused = set(start.refused)
        self.read, self.digest = start.read, start.digest
        self._unanswered = set(start.unknown)
        self._in_flight: set[int] = set()

    @property
    def unknown(self) -> set[int]:
        """Lines that were sent without an answer, and those in flight."""
        return self._unanswered | self._in_flight

    @property
    def nothing_sent(self) -> bool:
        """Whether it is certain that no line was sent, so that beginning anew doubles none."""
        return not (self.done or self.unknown)

    def enter(self, entry: Entry) -> None:
        """Apply an entry. Raises ValueError for a line that was sent before."""
        match entry:
            case Batch(lines, read, digest):
                self._unanswered |= self._in_flight
                self._in_flight = {line for first, last in lines for line in range(first, last + 1)}
                self.read, self.digest = read, digest
            case Answered(fate):
                self._settle_batch(fate)
            case NeverSent(lines):
                # A line that is refused now may have been accepted in an attempt without an answer.
                self.refused.update(set(lines) - self._unanswered)

    def _settle_batch(self, fate: str) -> None:
        lines, self._in_flight = self._in_flight, set()
        if fate == "sent":
            for line in sorted(lines):
                self.done.add(line)
            self._unanswered -= lines
        elif fate == "unknown":
            self._unanswered |= lines

    def summary(self) -> Resume:
        return msgspec.structs.replace(
            self.start,
            done=ranges_of(self.done),
            unknown=sorted(self.unknown),
            refused=sorted(self.refused),
            read=self.read,
            digest=self.digest,
            version=_VERSION,
        )


def describe_changes(before: Resume, now: Resume) -> list[str]:
    """One text for each option that differs from the run before. Options that an earlier version did not store are ignored."""
    is_same = before.entity.lower() == now.entity.lower()  # entity names are case-insensitive
    changes = [] if is_same else [f"the entity was {before.entity}, now it is {now.entity}"]
    if None not in {before.created_at, now.created_at} and before.created_at != now.created_at:
        changes.append(
            f"the {now.entity} was recreated: it was created at {before.created_at} then and at {now.created_at} now, and lacks "
            "the messages sent before"
        )
    changes += describe_differences(_by_option(before.options), _by_option(now.options))
    if before.given is not None:
        changes += describe_differences(before.given, now.given or {})
    return changes


def _by_option(options: LineOptions) -> GivenOptions:
    names = ("--format", "--session-field", "--id-field")
    return only_given(dict(zip(names, msgspec.structs.astuple(options), strict=True)))


def ranges_of(lines: Indices) -> Lines:
    """The lines in the form of the file."""
    return [(range_.start, range_.stop - 1) for range_ in lines.ranges()]


def encode(document: Resume | Entry) -> bytes:
    """The document as a line of the file."""
    return msgspec.json.encode(document) + b"\n"


def read_resume_file(text: bytes, name: str) -> LineOutcomes:
    """Read a resume file. An unfinished last line, which a kill leaves, is ignored.

    Raises PublishSettingsError naming the wrong line if it is no resume file.
    """
    first, *entries = text.split(b"\n")
    if not text:
        raise PublishSettingsError(
            f"{name} is empty: its run ended before it sent anything; start without --resume"
        )
    if first.strip() == b"{":
        first, entries = text, [b""]
    outcomes = _read_first_document(first, name)
    for number, line in enumerate(entries[:-1], 2):
        try:
            outcomes.enter(msgspec.json.decode(line, type=Entry))
        except (ValueError, RecursionError) as error:
            raise PublishSettingsError(f"{name}, line {number}: the file is damaged: {error}") from None
    return outcomes


def _read_first_document(text: bytes, name: str) -> LineOutcomes:
    accepted = (_ONE_DOCUMENT, _WITHOUT_GIVEN, _VERSION)
    try:
        version = msgspec.json.decode(text, type=_Head).version
        resume = msgspec.json.decode(text, type=Resume) if version in accepted else None
    except (ValueError, RecursionError) as error:
        raise PublishSettingsError(f"{name} is no resume file of tidemark send: {error}") from None
    if resume is None:
        raise PublishSettingsError(
            f"{name} has version {version}, accepted: {', '.join(map(str, accepted))}; go on with the version of "
            "tidemark that wrote it"
        )
    try:
        return LineOutcomes(resume)
    except ValueError as error:
        raise PublishSettingsError(f"{name} has wrong ranges in 'done': {error}") from None


def lines_done(resume: Resume) -> Indices:
    """The lines that were sent. Raises ValueError for ranges that overlap or are not ascending."""
    return Indices.of(range(first, last + 1) for first, last in resume.done)
