"""`tidemark send`: the lines of a file or a pipe become messages of a Service Bus queue or topic."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.markup import escape

from foundation.app_settings import ROOT
from foundation.azure.connections import (
    ConnectionSettingsError,
    blob_container,
    service_bus_endpoint,
    tls_context,
)
from foundation.command_settings import settings_of
from foundation.errors import TidemarkError
from publisher.cli.csv_rows import read_as_json_lines
from publisher.cli.line_messages import LineMessages
from publisher.cli.progress import progress
from publisher.cli.resume_file import Answered, Fate, Format, LineOptions, NeverSent, Resume
from publisher.cli.send_journal import SendJournal
from publisher.errors import PublishError, PublishRefusedError, PublishSettingsError, PublishUnavailableError
from publisher.service_bus.core.errors import PartiallySentError
from publisher.service_bus.core.send_report import Outgoing, SendReport
from publisher.service_bus.core.send_steps import Accepted, Answer, Unknown

if TYPE_CHECKING:
    from publisher.service_bus.claim_check import ClaimCheck
    from publisher.service_bus.core.sending import Progress
    from publisher.service_bus.sdk.send_call import Journal
    from publisher.service_bus.sender import BigBatchSender

console = Console(stderr=True)

LOOK_AHEAD = 2 * 1024 * 1024  # bytes; enough to see a line too large early, little enough for a smooth bar
NOT_ALL_SENT, SETTINGS, UNKNOWN, INTERRUPTED = 1, 2, 3, 130


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
class _Order:
    """What the command was asked to do."""

    queue: str | None
    topic: str | None
    file: Path
    connection: str
    lines: LineOptions
    session_id: str | None
    schedule_at: datetime | None
    claim_check: str | None
    storage: str
    resume: Path | None
    resume_file: Path
    resend_unknown: bool
    ordered: bool
    attempts: int
    timeout: float
    quiet: bool

    @property
    def entity(self) -> str:
        return f"queue {self.queue}" if self.queue is not None else f"topic {self.topic}"


def send(
    file: Annotated[
        Path,
        typer.Option(
            "--file",
            "-f",
            help="Each line becomes a message, each row of a .csv a JSON one; - is standard input.",
        ),
    ],
    queue: Annotated[str | None, typer.Option("--queue", help="The queue.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Or the topic.")] = None,
    connection: Annotated[
        str, typer.Option("--connection", help="App setting of the Service Bus connection.")
    ] = "ServiceBusConnection",
    format_: Annotated[
        str,
        typer.Option(
            "--format", help="lines, or jsonl: a JSON document in every line; a .csv is always jsonl."
        ),
    ] = "lines",
    session_field: Annotated[
        str | None, typer.Option("--session-field", help="Field of the JSON lines that is the session id.")
    ] = None,
    id_field: Annotated[
        str | None, typer.Option("--id-field", help="Field of the JSON lines that is the message id.")
    ] = None,
    session_id: Annotated[
        str | None, typer.Option("--session-id", help="Session id of all messages that have none.")
    ] = None,
    schedule_at: Annotated[
        str | None,
        typer.Option("--schedule-at", help="When the messages are to appear: ISO 8601, UTC if no zone."),
    ] = None,
    claim_check: Annotated[
        str | None,
        typer.Option("--claim-check", help="Container for bodies that the entity is too small for."),
    ] = None,
    storage: Annotated[
        str, typer.Option("--storage", help="App setting of that container's storage account.")
    ] = "AzureWebJobsStorage",
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Send what this file of an earlier run says is left.")
    ] = None,
    resume_file: Annotated[
        Path | None,
        typer.Option("--resume-file", help="Where to write down what was sent; kept if something is left."),
    ] = None,
    resend_unknown: Annotated[  # noqa: FBT002 - a flag of the command line
        bool,
        typer.Option(
            "--resend-unknown", help="Send again what may have arrived: for entities that detect duplicates."
        ),
    ] = False,
    any_order: Annotated[  # noqa: FBT002 - as above
        bool, typer.Option("--any-order", help="Fewer batches for large messages, which change places.")
    ] = False,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Attempts for each batch.")] = 5,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer to a batch.")
    ] = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,  # noqa: FBT002 - as above
    json_: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,  # noqa: FBT002 - as above
    root: Annotated[
        Path,
        typer.Option(
            "--root", help="Folder of .env and local.settings.json; the environment wins over both."
        ),
    ] = ROOT,
) -> None:
    """Sends the lines of a file to a Service Bus queue or topic, in as few batches as fit, in order per session.

    A resume file says at any time which lines were sent, so the command may be stopped and killed: the same one with
    --resume sends the rest. Exit status: 0 all is sent, 1 not all, 2 settings or input, 3 of some lines it is not known
    whether they arrived, 130 stopped by a signal.
    """
    try:
        order = _Order(
            queue,
            topic,
            file,
            connection,
            LineOptions("jsonl" if _is_csv(file) else _format(format_), session_field, id_field),
            session_id,
            _time(schedule_at),
            claim_check,
            storage,
            resume,
            resume_file or resume or Path(f"{'stdin' if str(file) == '-' else file}.resume.json"),
            resend_unknown,
            not any_order,
            attempts,
            timeout,
            quiet,
        )
        summary = asyncio.run(_send(order, settings_of(root)))
    except (PublishError, TidemarkError) as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        if isinstance(error, PublishRefusedError | PublishUnavailableError):
            name = f"--queue {queue}" if queue is not None else f"--topic {topic}"
            console.print(f"look at {escape(name)} and at the app setting {escape(connection)}")
        raise typer.Exit(error.exit_status) from None
    except (ConnectionSettingsError, OSError) as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(SETTINGS) from None
    except asyncio.CancelledError:
        console.print("stopped")
        raise typer.Exit(INTERRUPTED) from None
    _print(summary, as_json=json_)
    raise typer.Exit(summary.exit_status)


async def _send(order: _Order, settings: Mapping[str, str]) -> Summary:
    with _input(order.file) as source, _journal(order) as journal:
        lines = LineMessages(
            _lines(order.file, source),
            journal.ledger.summary(),
            name=str(order.file),
            resend_unknown=order.resend_unknown,
        )
        try:
            async with _sender(order, settings, _Notes(journal, lines)) as sender:
                with _bar(order.file, source, lines, quiet=order.quiet) as on_progress:
                    return await _carry_out(order, sender, lines, journal, on_progress)
        finally:
            if order.resume is None and journal.ledger.nothing_sent and not journal.ledger.refused:
                journal.remove()


@contextlib.contextmanager
def _journal(order: _Order) -> Iterator[SendJournal]:
    begun = Resume(
        order.entity, order.lines, uuid.uuid4().hex[:16], [], [], [], 0, hashlib.sha256().hexdigest()
    )
    with (
        SendJournal.begun(order.resume_file, begun)
        if order.resume is None
        else SendJournal.continued(order.resume, begun, order.resume_file)
    ) as journal:
        yield journal


@dataclass(frozen=True, slots=True)
class _Notes:
    """Writes down what the sender is about to send, by its lines, and what came of it."""

    journal: SendJournal
    lines: LineMessages

    def sending(self, items: Sequence[Outgoing]) -> None:
        self.journal.enter(self.lines.batch(items), lasting=True)

    def answered(self, answer: Answer) -> None:
        fates = {Accepted: Fate.SENT, Unknown: Fate.UNKNOWN}
        self.journal.enter(Answered(fates.get(type(answer), Fate.NOT_SENT)))


async def _carry_out(
    order: _Order, sender: BigBatchSender, lines: LineMessages, journal: SendJournal, on_progress: Any
) -> Summary:
    started = time.monotonic()
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        with contextlib.suppress(PartiallySentError):  # the summary tells
            await sender.send(
                iter(lines),
                session_id=order.session_id,
                schedule_at=order.schedule_at,
                on_progress=on_progress,
            )
    finally:
        report = sender.last_report
        complete = report is not None and _close(journal, lines, report)
    assert report is not None  # noqa: S101 - the call has ended, so there is one
    return Summary(
        messages=len(report.sent),
        batches=report.batches,
        bytes=report.payload,
        seconds=time.monotonic() - started,
        unknown=len(journal.ledger.unknown),
        refused=len(journal.ledger.refused),
        complete=complete,
        scheduled=list(report.sequence_numbers.values()),
    )


def _close(journal: SendJournal, lines: LineMessages, report: SendReport) -> bool:
    """Remove the resume file if everything is sent, else say what is left and how to go on."""
    ledger = journal.ledger
    if report.refused:
        journal.enter(NeverSent([lines.line_of(each.index) for each in report.refused]))
    if report.complete and not ledger.unknown and not ledger.refused:
        journal.remove()
        return True
    console.print(f"[yellow]not all was sent:[/] {escape(report.reason or report.summary())}", soft_wrap=True)
    for name, found in (("unknown", ledger.unknown), ("refused", ledger.refused)):
        if found:
            console.print(f"  {len(found):,} {name}, the first of them line {min(found):,}")
    console.print(f"  {escape(_way_on(journal, report))}", soft_wrap=True)
    return False


def _way_on(journal: SendJournal, report: SendReport) -> str:
    if journal.ledger.nothing_sent and not journal.ledger.refused:
        return "nothing was sent"
    if report.unsent or not report.exhausted:
        return f"send the rest with --resume {journal.path}"
    if journal.ledger.unknown:
        return (
            f"the others were sent; --resume {journal.path} --resend-unknown sends the unknown ones again, which doubles "
            "those that had arrived unless the queue or topic detects duplicates"
        )
    return f"the others were sent; {journal.path} names those that never can be"


@contextlib.asynccontextmanager
async def _sender(
    order: _Order, settings: Mapping[str, str], journal: Journal
) -> AsyncIterator[BigBatchSender]:
    from publisher.sdk_insides import wants_insides  # noqa: PLC0415 - as above
    from publisher.service_bus.core.sending import SendPolicy  # noqa: PLC0415 - as above
    from publisher.service_bus.sender import BigBatchSender  # noqa: PLC0415 - the SDK takes half a second; --help needs none

    endpoint = service_bus_endpoint(settings, order.connection)
    async with contextlib.AsyncExitStack() as stack:
        options: dict[str, Any] = {
            "queue_name": order.queue,
            "topic_name": order.topic,
            "claim_check": await _claim_check(order, settings, stack),
            "policy": SendPolicy(
                look_ahead=LOOK_AHEAD,
                attempts=order.attempts,
                resend_unknown=order.resend_unknown,
                ordered=order.ordered,
            ),
            "timeout": order.timeout,
            "journal": journal,
            "sdk_insides": wants_insides(settings),
            "client_options": {"ssl_context": tls_context(settings)},
        }
        if endpoint.connection_string is not None:
            sender = BigBatchSender.from_connection_string(endpoint.connection_string, **options)
        elif endpoint.credential is not None:
            stack.push_async_exit(endpoint.credential)
            sender = BigBatchSender.from_namespace(endpoint.namespace, endpoint.credential, **options)
        else:
            raise PublishSettingsError(f"{order.connection} has neither a connection string nor an identity")
        yield await stack.enter_async_context(sender)


async def _claim_check(
    order: _Order, settings: Mapping[str, str], stack: contextlib.AsyncExitStack
) -> ClaimCheck | None:
    if order.claim_check is None:
        return None
    from publisher.service_bus.claim_check import ClaimCheck  # noqa: PLC0415 - as above

    claim_check = await stack.enter_async_context(
        ClaimCheck(blob_container(settings, order.storage, order.claim_check))
    )
    await claim_check.ensure_container()
    return claim_check


@contextlib.contextmanager
def _input(file: Path) -> Iterator[BinaryIO]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    with file.open("rb") as source:
        yield source


def _lines(file: Path, source: BinaryIO) -> Iterator[bytes]:
    return read_as_json_lines(source, str(file)) if _is_csv(file) else iter(source)


def _is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"


@contextlib.contextmanager
def _bar(file: Path, source: BinaryIO, lines: LineMessages, *, quiet: bool) -> Iterator[Any]:
    """What to call with the sender's progress."""
    total = None if str(file) == "-" else file.stat().st_size
    with progress(console, "sending", total=total, quiet=quiet) as show:

        def told(counts: Progress) -> None:
            read = source.tell() if source.seekable() else lines.bytes_read
            show(read, f"{counts.sent:,} sent in {counts.batches:,} batches")

        yield told


def _format(text: str) -> Format:
    if text == "lines":
        return "lines"
    if text == "jsonl":
        return "jsonl"
    raise PublishSettingsError(f"--format is {text!r}, accepted: lines, jsonl")


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise PublishSettingsError(
            f"--schedule-at is {text!r}, accepted: ISO 8601 such as 2030-01-31T12:00:00Z"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _print(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(summary).decode())
        return
    seconds = max(summary.seconds, 0.001)
    verb = "scheduled" if summary.scheduled else "sent"
    console.print(
        f"{summary.messages:,} messages ({summary.bytes / 1e6:,.1f} MB) {verb} in {summary.batches:,} batches and "
        f"{summary.seconds:,.1f} s: {summary.messages / seconds:,.0f} messages/s, "
        f"{summary.bytes / 1e6 / seconds:,.1f} MB/s",
        soft_wrap=True,
    )
