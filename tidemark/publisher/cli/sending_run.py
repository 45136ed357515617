"""Sends the lines of a file or a pipe, and records in the resume file what became of them."""

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


@dataclass(frozen=True, slots=True)
class SendingRun:
    """One run over an input. As the sender's journal it records the lines of each batch, and the answer."""

    journal: SendJournal
    lines: LineMessages

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
        try:
            with contextlib.suppress(PartiallySentError):  # the summary reports it
                await sender.send(iter(self.lines), **options)
        finally:
            report = sender.last_report
            complete = report is not None and self._close(report)
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

    def _close(self, report: SendReport) -> bool:
        """Remove the resume file if everything was sent, else print what is left and how to go on."""
        outcomes = self.journal.outcomes
        if report.refused:
            self.journal.enter(NeverSent([self.lines.line_of(refused.index) for refused in report.refused]))
        if report.complete and not outcomes.unknown and not outcomes.refused:
            self.journal.remove()
            return True
        console.print(
            f"[yellow]not all was sent:[/] {escape(report.reason or report.summary())}", soft_wrap=True
        )
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
        if journal.outcomes.unknown:
            return (
                f"the others were sent; --resume {journal.path} --resend-unknown sends the unknown ones again, which "
                "doubles those that have arrived, unless the queue or topic detects duplicates"
            )
        return f"the others were sent; {journal.path} lists those that can never be sent"
