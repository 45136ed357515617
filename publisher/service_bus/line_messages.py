"""Messages from lines, and the file that tells which lines of a partly sent input are still to be sent.

Pure but for reading the lines it is given. Lines are counted from 1, as editors do, blank ones included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from msgspec import Struct

from publisher.errors import PublishSettingsError
from publisher.plain_message import PlainMessage
from publisher.service_bus.send_report import Indices, SendReport

Format = Literal["lines", "jsonl"]

_VERSION = 1


class LineOptions(Struct, frozen=True):
    """How a line becomes a message: `session_field` and `id_field` name fields of JSON lines."""

    format: Format = "lines"
    session_field: str | None = None
    id_field: str | None = None

    def __post_init__(self) -> None:
        if self.format == "lines" and (self.session_field or self.id_field):
            raise PublishSettingsError("--session-field and --id-field need --format jsonl")


class Resume(Struct, frozen=True):
    """What became of an input that was not sent to its end. `done` are ranges of lines, the last one included.

    `read` is how many lines were read, `digest` the SHA-256 of those, in hexadecimal.
    """

    entity: str
    options: LineOptions
    id_prefix: str
    done: list[tuple[int, int]]
    unknown: list[int]
    refused: list[int]
    read: int
    digest: str
    version: int = _VERSION

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def read_resume(text: bytes, name: str) -> Resume:
    """Raises PublishSettingsError for anything that is not such a file."""
    try:
        resume = msgspec.json.decode(text, type=Resume)
    except msgspec.MsgspecError as error:
        raise PublishSettingsError(f"{name} is no resume file of tidemark send: {error}") from None
    if resume.version != _VERSION:
        raise PublishSettingsError(f"{name} has version {resume.version}, accepted: {_VERSION}")
    return resume


class LineMessages:
    """The messages of an input, read as they are asked for; `report_of` translates a report back to lines.

    With `resume`, what it says is done or refused is left out, and what is unknown too unless `resend_unknown`.
    """

    def __init__(
        self,
        lines: Iterable[bytes],
        options: LineOptions,
        *,
        resume: Resume | None = None,
        resend_unknown: bool = False,
        id_prefix: str,
    ) -> None:
        self._lines = lines
        self._options = options
        self._id_prefix = id_prefix
        self._before = resume
        self._done = done_lines(resume)
        self._skipped = (
            set() if resume is None else {*resume.refused, *(() if resend_unknown else resume.unknown)}
        )
        self._numbers: list[int] | None = None if resume is None else []  # line of every message
        self._digest = hashlib.sha256()
        self.read = 0
        self.bytes_read = 0

    def __iter__(self) -> Iterator[PlainMessage]:
        for line in self._lines:
            self.read += 1
            self.bytes_read += len(line)
            self._digest.update(line)
            body = line.rstrip(b"\r\n")
            if not body.strip():
                self._number_from_now_on()
            elif self.read not in self._done and self.read not in self._skipped:
                if self._numbers is not None:
                    self._numbers.append(self.read)
                yield self._message(body)

    def resume_after(self, report: SendReport, entity: str) -> Resume:
        """What is to be kept, so that the rest can be sent later."""
        done = done_lines(self._before)
        for index in report.sent:
            done.add(self._line(index))
        unknown = {self._line(item.index) for item in report.unknown}
        refused = {self._line(each.index) for each in report.refused}
        if self._before is not None:
            refused.update(self._before.refused)
            # What was sent again and was refused this time may have been accepted the first time.
            unknown.update(line for line in self._before.unknown if line not in done)
        return Resume(
            entity,
            self._options,
            self._id_prefix,
            [(each.start, each.stop - 1) for each in done.ranges()],
            sorted(unknown - refused),
            sorted(refused),
            self.read,
            self._digest.hexdigest(),
        )

    def _line(self, index: int) -> int:
        return index + 1 if self._numbers is None else self._numbers[index]

    def _number_from_now_on(self) -> None:
        """Until the first blank line, message and line differ by one, and no list is needed."""
        if self._numbers is None:
            self._numbers = list(range(1, self.read))

    def _message(self, body: bytes) -> PlainMessage:
        options = self._options
        message_id = f"{self._id_prefix}-{self.read:010d}"  # the same whenever the line is sent
        if options.format == "lines":
            return PlainMessage(body, message_id)
        try:
            document = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PublishSettingsError(f"line {self.read} is no JSON ({error}): {body[:60]!r}") from None
        session = self._field(document, options.session_field, "--session-field")
        given = self._field(document, options.id_field, "--id-field")
        return PlainMessage(body, given or message_id, session, "application/json")

    def _field(self, document: object, field: str | None, option: str) -> str | None:
        if field is None:
            return None
        value = document.get(field) if isinstance(document, dict) else None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise PublishSettingsError(
                f"line {self.read} has {value!r} as {field} ({option}), accepted: a text or a whole number"
            )
        return str(value)


def check_same_input(lines: Iterable[bytes], resume: Resume, name: str) -> None:
    """Raises PublishSettingsError unless the input begins with the lines that were read of it before."""
    digest, read = hashlib.sha256(), 0
    for line in lines:
        if read == resume.read:
            break
        digest.update(line)
        read += 1
    if read < resume.read or digest.hexdigest() != resume.digest:
        raise PublishSettingsError(
            f"{name} is not the input that was sent before: its first {resume.read:,} lines differ; send the same "
            "input again, or begin anew without --resume"
        )


def done_lines(resume: Resume | None) -> Indices:
    """The lines that were sent. Raises PublishSettingsError for ranges that are none."""
    try:
        return Indices.of(range(first, last + 1) for first, last in (resume.done if resume else ()))
    except ValueError as error:
        raise PublishSettingsError(f"the resume file's done ranges: {error}") from None
