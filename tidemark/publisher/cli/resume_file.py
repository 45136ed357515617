"""What is known of every line of an input that is being sent, and how it is written down (pure).

A resume file has a JSON document per line and only grows. The first, a `Resume`, is what was known when the run began.
Before a batch is transferred, a `Batch` says which lines are about to be; an `Answered` after it what became of them.
So whenever the run is killed, each line is sent, not sent or, if it was in the batch without an answer, unknown.
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
_WITHOUT_GIVEN = 2  # the version of files that do not say which namespace and options they are of
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
    hexadecimal. `created_at` tells the queue or topic from a later one of the same name; None where nobody may ask. `given`: the namespace, and all other options that decide what is sent where; None in files of earlier
    versions.
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
    """What every version has: another one may have the rest in other forms."""

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
        self.begun = begun
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
        return msgspec.structs.replace(
            self.begun,
            done=ranges_of(self.done),
            unknown=sorted(self.unknown),
            refused=sorted(self.refused),
            read=self.read,
            digest=self.digest,
            version=_VERSION,
        )


def differences_of(before: Resume, now: Resume) -> list[str]:
    """What a run was told otherwise than the one before it, in words. An earlier version did not store all of it: what it
    did not store decides nothing.
    """
    is_same = before.entity.lower() == now.entity.lower()  # the service does not tell upper from lower case
    found = [] if is_same else [f"the entity was {before.entity}, now it is {now.entity}"]
    if None not in {before.created_at, now.created_at} and before.created_at != now.created_at:
        found.append(
            f"the {now.entity} was made anew, created at {before.created_at} then and at {now.created_at} now, so that what was "
            "sent before is not in it"
        )
    found += describe_differences(_by_option(before.options), _by_option(now.options))
    if before.given is not None:
        found += describe_differences(before.given, now.given or {})
    return found


def _by_option(options: LineOptions) -> GivenOptions:
    names = ("--format", "--session-field", "--id-field")
    return only_given(dict(zip(names, msgspec.structs.astuple(options), strict=True)))


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
        except (ValueError, RecursionError) as error:
            raise PublishSettingsError(f"{name}, line {number}: {error}: the file is damaged") from None
    return ledger


def _begun(text: bytes, name: str) -> Ledger:
    accepted = (_WHOLE, _WITHOUT_GIVEN, _VERSION)
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
        return Ledger(resume)
    except ValueError as error:
        raise PublishSettingsError(f"{name}, the ranges that are done: {error}") from None


def lines_done(resume: Resume) -> Indices:
    """Raises ValueError for ranges that overlap or are in no order."""
    return Indices.of(range(first, last + 1) for first, last in resume.done)
