"""Sending a file or a pipe, line by line: what is written down on the way, and what is left at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from rich.markup import escape

from tidemark.publisher.cli.command import NOT_ALL_SENT, UNKNOWN, console
from tidemark.publisher.cli.line_messages import LineMessages
from tidemark.publisher.cli.resume_file import Answered, NeverSent
from tidemark.publisher.cli.send_journal import SendJournal
from tidemark.publisher.service_bus.core.errors import PartiallySentError
from tidemark.publisher.service_bus.core.send_report import Outgoing, SendReport
from tidemark.publisher.service_bus.core.send_steps import Accepted, Answer, Unknown

if TYPE_CHECKING:
    from tidemark.publisher.service_bus.sender import BigBatchSender


class Summary(Struct, frozen=True):
    """What a run did; bytes are those of the messages sent, seconds those of the sending."""

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


@dataclass(frozen=True, slots=True)
class SendingRun:
    """Lines on their way. As the sender's journal it writes down what is about to be sent, by its lines, and what came
    of it.
    """

    journal: SendJournal
    lines: LineMessages

    def sending(self, items: Sequence[Outgoing]) -> None:
        self.journal.enter(self.lines.batch(items), lasting=True)

    def answered(self, answer: Answer) -> None:
        sent, unknown = isinstance(answer, Accepted), isinstance(answer, Unknown)
        self.journal.enter(Answered("sent" if sent else "unknown" if unknown else "not sent"))

    async def carry_out(self, sender: BigBatchSender, **options: Any) -> Summary:
        """Send all lines, or as many as can be; says what is left. `options` are those of `send`. Cancelling it says, too."""
        started = time.monotonic()
        try:
            with contextlib.suppress(PartiallySentError):  # the summary tells
                await sender.send(iter(self.lines), **options)
        finally:
            report = sender.last_report
            complete = report is not None and self._close(report)
        assert report is not None  # noqa: S101 - the call has ended, so there is one
        return Summary(
            messages=len(report.sent),
            batches=report.batches,
            bytes=report.payload,
            seconds=time.monotonic() - started,
            unknown=len(self.journal.ledger.unknown),
            refused=len(self.journal.ledger.refused),
            complete=complete,
            scheduled=list(report.sequence_numbers.values()),
        )

    def _close(self, report: SendReport) -> bool:
        """Remove the resume file if everything is sent, else say what is left and how to go on."""
        ledger = self.journal.ledger
        if report.refused:
            self.journal.enter(NeverSent([self.lines.line_of(each.index) for each in report.refused]))
        if report.complete and not ledger.unknown and not ledger.refused:
            self.journal.remove()
            return True
        console.print(
            f"[yellow]not all was sent:[/] {escape(report.reason or report.summary())}", soft_wrap=True
        )
        for name, found in (("unknown", ledger.unknown), ("refused", ledger.refused)):
            if found:
                console.print(f"  {len(found):,} {name}, the first of them line {min(found):,}")
        console.print(f"  {escape(self._way_on(report))}", soft_wrap=True)
        return False

    def _way_on(self, report: SendReport) -> str:
        journal = self.journal
        if journal.ledger.nothing_sent and not journal.ledger.refused:
            return "nothing was sent"
        if report.unsent or not report.exhausted:
            return f"send the rest with --resume {journal.path}"
        if journal.ledger.unknown:
            return (
                f"the others were sent; --resume {journal.path} --resend-unknown sends the unknown ones again, which "
                "doubles those that had arrived unless the queue or topic detects duplicates"
            )
        return f"the others were sent; {journal.path} names those that never can be"
