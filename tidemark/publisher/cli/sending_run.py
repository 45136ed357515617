"""Sends the lines of a file or a pipe, and records in the resume file what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from rich.markup import escape

from tidemark.foundation.wording import count_text
from tidemark.publisher.cli.command import NOT_ALL_SENT, UNKNOWN, console
from tidemark.publisher.cli.resume_file import Answered, Batch, NeverSent, Resume, lines_done, ranges_of
from tidemark.publisher.cli.send_journal import SendJournal
from tidemark.publisher.cli.text.lines import without_inner_mark, without_mark
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.service_bus.core.errors import PartiallySentError
from tidemark.publisher.service_bus.core.send_report import Indices, Outgoing, PlainMessage, SendReport
from tidemark.publisher.service_bus.core.send_steps import Accepted, Answer, Unknown

if TYPE_CHECKING:
    from tidemark.publisher.service_bus.sender import BigBatchSender


@dataclass(eq=False)
class LineMessages:
    """The messages of an input, read on demand; `batch` and `line_of` map messages back to lines.

    Lines that are done or refused in `before` are skipped; unknown ones are, too, without `resend_unknown`. Iterating raises
    PublishSettingsError if the input does not begin with the lines that were read before.
    """

    _lines: Iterable[bytes]
    _before: Resume
    _: KW_ONLY
    name: str = "the input"
    resend_unknown: bool = False

    def __post_init__(self) -> None:
        before = self._before
        self._done = lines_done(before)
        self._skipped = {*before.refused, *(() if self.resend_unknown else before.unknown)}
        # None while message n is line n + 1, so that a large input needs no list.
        self._numbers: list[int] | None = [] if before.read or before.refused else None
        self._digest = hashlib.sha256()
        self.read = 0
        self.bytes_read = 0

    def __iter__(self) -> Iterator[PlainMessage]:
        lines = iter(self._lines)
        # Kept in memory until the digest is checked. Most lines of this part were sent, so few are left.
        unsent = list(self._to_send(islice(lines, self._before.read)))
        self._check()
        for number, body in chain(unsent, self._to_send(lines)):
            if self._numbers is not None:
                self._numbers.append(number)
            yield self._message(number, body)

    def batch(self, items: Sequence[Outgoing]) -> Batch:
        """The entry of the resume file for these messages."""
        lines = Indices()
        for item in items:
            lines.add(self.line_of(item.index))
        return Batch(ranges_of(lines), self.read, self._digest.hexdigest())

    def line_of(self, index: int) -> int:
        """The line of the message with this index, which counts from 0."""
        return index + 1 if self._numbers is None else self._numbers[index]

    def _to_send(self, lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        for line in lines:
            self.read += 1
            self.bytes_read += len(line)
            self._digest.update(line)
            text = without_mark(line, self.name) if self.read == 1 else without_inner_mark(line)
            body = text.rstrip(b"\r\n")
            if not body.strip():
                if self._numbers is None:  # until this first blank line, message n was line n + 1
                    self._numbers = list(range(1, self.read))
            elif self.read not in self._done and self.read not in self._skipped:
                yield self.read, body

    def _check(self) -> None:
        before = self._before
        if before.read and (self.read < before.read or self._digest.hexdigest() != before.digest):
            raise PublishSettingsError(
                f"{self.name} is not the input of the resume file: its first "
                f"{count_text(before.read, 'line differs', 'lines differ', style=',')}. Send the same input again, or leave --resume out and name another --resume-file, which sends all lines of this one"
            )

    def _message(self, number: int, body: bytes) -> PlainMessage:
        options = self._before.options
        message_id = (
            f"{self._before.id_prefix}-{number:010d}"  # the same in every attempt, for duplicate detection
        )
        if options.format == "lines":
            return PlainMessage(body, message_id)
        try:
            document = msgspec.json.decode(body)
        except (ValueError, RecursionError) as error:
            raise PublishSettingsError(f"line {number} is not JSON ({error}): {body[:60]!r}") from None
        session = _field(document, number, options.session_field, "--session-field")
        message_id_field = _field(document, number, options.id_field, "--id-field")
        return PlainMessage(body, message_id_field or message_id, session, "application/json")


def _field(document: object, number: int, field: str | None, option: str) -> str | None:
    if field is None:
        return None
    value = document.get(field) if isinstance(document, dict) else None
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise PublishSettingsError(
            f"line {number} has {value!r} as {field} ({option}), accepted: a text or a whole number"
        )
    return str(value)


class Summary(Struct, frozen=True):
    """What a run did. `bytes` are those of the messages sent, `seconds` the time of sending."""

    messages: int
    batches: int
    bytes: int
    seconds: float
    unknown: int
    refused: int
    complete: bool
    scheduled: list[int]

    @property
    def exit_status(self) -> int:
        return 0 if self.complete else UNKNOWN if self.unknown else NOT_ALL_SENT


_AT_ONCE = 100  # messages; chosen: a turn of a thread costs as much as reading some dozens


async def _read_in_thread(messages: Iterable[PlainMessage]) -> AsyncIterator[PlainMessage]:
    """The messages of a pipe. Nobody may write to it for a while, in which signals and the connection must be heeded."""
    iterator = iter(messages)
    while True:
        taken, error = await asyncio.to_thread(_take, iterator)
        for message in taken:
            yield message
        if error is not None:
            raise error
        if not taken:
            return


def _take(messages: Iterator[PlainMessage]) -> tuple[list[PlainMessage], Exception | None]:
    """The next messages, and the error after them."""
    taken: list[PlainMessage] = []
    try:
        taken.extend(islice(messages, _AT_ONCE))  # keeps those before an error
    except (PublishSettingsError, OSError) as error:
        return taken, error
    return taken, None


@dataclass(frozen=True, slots=True)
class SendingRun:
    """One run over an input. As the sender's journal it records the lines of each batch, and the answer."""

    journal: SendJournal
    lines: LineMessages
    is_pipe: bool = False

    def sending(self, items: Sequence[Outgoing]) -> None:
        self.journal.enter(self.lines.batch(items), durable=True)

    def answered(self, answer: Answer) -> None:
        sent, unknown = isinstance(answer, Accepted), isinstance(answer, Unknown)
        self.journal.enter(Answered("sent" if sent else "unknown" if unknown else "not sent"))

    async def carry_out(self, sender: BigBatchSender, **options: Any) -> Summary:
        """Send all lines, or as many as possible, and print what is left, also after a cancellation.

        `options` are those of `send`.
        """
        started = time.monotonic()
        error_follows = False  # the command prints it, behind what is printed here
        try:
            with contextlib.suppress(PartiallySentError):  # the summary reports it
                await sender.send(
                    _read_in_thread(self.lines) if self.is_pipe else iter(self.lines), **options
                )
        except Exception:
            error_follows = True
            raise
        finally:
            report = sender.last_report
            complete = report is not None and self._close(report, error_follows=error_follows)
        assert report is not None  # the call has ended, so there is one
        return Summary(
            messages=len(report.sent),
            batches=report.batches,
            bytes=report.payload,
            seconds=time.monotonic() - started,
            unknown=len(self.journal.outcomes.unknown),
            refused=len(self.journal.outcomes.refused),
            complete=complete,
            scheduled=list(report.sequence_numbers.values()),
        )

    def _close(self, report: SendReport, *, error_follows: bool) -> bool:
        """Remove the resume file if everything was sent, else print what is left and how to go on."""
        outcomes = self.journal.outcomes
        if report.refused:
            self.journal.enter(NeverSent([self.lines.line_of(refused.index) for refused in report.refused]))
        if report.complete and not outcomes.unknown and not outcomes.refused:
            self.journal.remove()
            return True
        reason = "" if error_follows else f": {escape(report.reason or report.summary())}"
        console.print(f"[yellow]not all was sent[/]{reason}", soft_wrap=True)
        for name, numbers in (("unknown", outcomes.unknown), ("refused", outcomes.refused)):
            if numbers:
                console.print(f"  {len(numbers):,} {name}, the first of them line {min(numbers):,}")
        console.print(f"  {escape(self._how_to_go_on(report))}", soft_wrap=True)
        return False

    def _how_to_go_on(self, report: SendReport) -> str:
        journal = self.journal
        if journal.outcomes.nothing_sent and not journal.outcomes.refused:
            return "nothing was sent"
        if report.unsent or not report.exhausted:
            return f"send the rest with --resume {journal.path}"
        others = "the others were sent" if journal.outcomes.done else "no other was sent"
        if journal.outcomes.unknown:
            return (
                f"{others}; --resume {journal.path} --resend-unknown sends the unknown ones again, which "
                "doubles those that have arrived, unless the queue or topic detects duplicates"
            )
        return f"{others}; {journal.path} lists those that can never be sent"
