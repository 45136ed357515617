"""`tidemark send`: the lines of a file or a pipe become messages of a Service Bus queue or topic."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import typer
from msgspec.structs import replace
from rich.markup import escape

from tidemark.foundation.app_settings import COMMAND_ROOT, load_settings
from tidemark.foundation.azure.connections import (
    Endpoint,
    blob_container,
    service_bus_endpoint,
    tls_context,
    transport_options,
)
from tidemark.foundation.keys import namespace_host
from tidemark.foundation.wording import count_text
from tidemark.publisher.cli import command
from tidemark.publisher.cli.command import console, is_csv
from tidemark.publisher.cli.csv_rows import CsvFormat, read_as_json_lines
from tidemark.publisher.cli.given_options import only_given
from tidemark.publisher.cli.resume_file import Format, LineOptions, Resume
from tidemark.publisher.cli.send_journal import SendJournal
from tidemark.publisher.cli.sending_run import LineMessages, SendingRun, Summary
from tidemark.publisher.cli.text.lines import LARGEST_MESSAGE, BoundedLines
from tidemark.publisher.cli.text.pipe import Pipe
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.sdk_insides import wants_insides
from tidemark.publisher.service_bus.core.errors import ClaimCheckError
from tidemark.publisher.service_bus.core.sending import Progress, SendPolicy

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient

    from tidemark.publisher.service_bus.sdk.send_call import Journal, OnProgress
    from tidemark.publisher.service_bus.sender import BigBatchSender

LOOK_AHEAD = 2 * 1024 * 1024  # bytes; chosen: too large a line is found early, and the progress moves evenly


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command."""

    file: command.File
    queue: Annotated[str | None, "Name of the queue."] = None
    topic: Annotated[str | None, "Name of the topic, instead of a queue."] = None
    connection: Annotated[str, "App setting of the Service Bus connection."] = "ServiceBusConnection"
    format: Annotated[Format, "jsonl: every line is a JSON document, as every row of a .csv is."] = "lines"
    session_field: Annotated[str | None, "Field of the JSON lines with the session id."] = None
    id_field: Annotated[str | None, "Field of the JSON lines with the message id."] = None
    delimiter: command.Delimiter = None
    encoding: command.Encoding = None
    session_id: Annotated[str | None, "Session id of messages that have none."] = None
    schedule_at: Annotated[str | None, "Time at which the messages appear: ISO 8601, UTC without a zone."] = (
        None
    )
    claim_check: Annotated[str | None, "Blob container for bodies that are too large for the entity."] = None
    storage: Annotated[str, "App setting of the storage account with that container."] = "AzureWebJobsStorage"
    resume: Annotated[Path | None, "Resume file of an earlier run: send the lines that are left."] = None
    resume_file: Annotated[
        Path | None, "Where to write the resume file. It is removed once all lines are sent."
    ] = None
    resend_unknown: Annotated[
        bool, "Send lines with an unknown outcome again. Use it with duplicate detection."
    ] = False
    any_order: Annotated[bool, "Allow reordering, which needs fewer batches for large messages."] = False
    attempts: Annotated[int, typer.Option(min=1, help="Maximum attempts per batch.")] = 5
    timeout: command.Timeout = 60.0
    quiet: command.Quiet = False
    json: Annotated[bool, "Print the summary as JSON."] = False
    root: command.Root = COMMAND_ROOT


@command.from_options(Options)
def send(options: Options) -> None:
    """Sends the lines of a file to a Service Bus queue or topic, in as few batches as possible, in order per session.

    A resume file records which lines were sent, so the command may be stopped or killed at any time: the same command with
    --resume sends the rest. Exit status: 0 all lines were sent, 1 not all, 2 a setting or the input is wrong, 3 some lines
    have an unknown outcome, 130 stopped by a signal.
    """
    queue, topic = options.queue, options.topic
    entity = f"--queue {queue}" if queue is not None else f"--topic {topic}"
    storage = {} if options.claim_check is None else {options.storage: "storage of the claim checks"}
    asked = {options.connection: entity.removeprefix("--"), **storage}
    with (
        command.report_early_end(entity, options.connection, claims=options.storage),
        command.say_if_slow(options.root, asked, "tidemark.publisher.service_bus.sender") as answered,
    ):
        summary = asyncio.run(_send(options, answered))
    _print(summary, as_json=options.json)
    raise typer.Exit(summary.exit_status)


async def _send(options: Options, answered: Callable[[], None]) -> Summary:
    command.cancel_on_signals()
    schedule_at = _parse_time(options.schedule_at)
    format_ = CsvFormat.of_options(options.delimiter, options.encoding, is_csv=is_csv(options.file))
    settings = load_settings(options.root)
    command.check_local_stack(settings, options.connection)
    endpoint = service_bus_endpoint(settings, options.connection)
    claims = options.claim_check
    container = None if claims is None else blob_container(settings, options.storage, claims)
    from tidemark.publisher.service_bus.sdk.entity_identity import entity_created_at

    await command.check_reached(endpoint.address)
    created_at = await entity_created_at(endpoint, options.queue, options.topic, transport_options(settings))
    new_resume = replace(_new_resume(options, endpoint, container, schedule_at), created_at=created_at)
    with command.open_input(options.file) as source, _journal(options, new_resume) as journal:
        lines = LineMessages(
            _lines_of(source, options, format_),
            journal.outcomes.summary(),
            name=str(options.file),
            resend_unknown=options.resend_unknown,
        )
        _warn(journal, schedule_at)
        run = SendingRun(journal, lines, is_pipe=isinstance(source, Pipe))
        try:
            async with (
                command.tracing(settings) as traced,
                _sender(options, settings, endpoint, container, run, traced=traced) as sender,
                command.first_answer(endpoint.address, lambda: sender.limits is not None),
            ):
                with _show_counts(options, source, lines, answered) as on_progress:
                    call_options = {"session_id": options.session_id, "schedule_at": schedule_at}
                    return await run.carry_out(sender, on_progress=on_progress, **call_options)
        finally:
            if options.resume is None and journal.outcomes.nothing_sent and not journal.outcomes.refused:
                journal.remove()


def _lines_of(source: BinaryIO, options: Options, format_: CsvFormat) -> Iterator[bytes]:
    """The lines of the input, of any length with a claim check: blobs take larger bodies than the entity."""
    name = "standard input" if str(options.file) == "-" else str(options.file)
    lines = BoundedLines(source, name, None if options.claim_check is not None else LARGEST_MESSAGE)
    return read_as_json_lines(lines, name, format_) if is_csv(options.file) else iter(lines)


def _new_resume(
    options: Options, endpoint: Endpoint, container: ContainerClient | None, schedule_at: datetime | None
) -> Resume:
    format_: Format = "jsonl" if is_csv(options.file) else options.format
    lines = LineOptions(format_, options.session_field, options.id_field)
    entity = f"queue {options.queue}" if options.queue is not None else f"topic {options.topic}"
    given = only_given(
        {
            "namespace": namespace_host(endpoint.address),
            "--session-id": options.session_id,
            "--delimiter": options.delimiter,
            "--encoding": options.encoding,
            "--schedule-at": None if schedule_at is None else schedule_at.isoformat(),
            "--claim-check": options.claim_check and f"{options.claim_check} of {_account_of(container)}",
        }
    )
    prefix, nothing_read = uuid.uuid4().hex[:16], hashlib.sha256().hexdigest()
    return Resume(entity, lines, prefix, [], [], [], 0, nothing_read, given=given)


def _account_of(container: ContainerClient | None) -> str:
    """The container's address without its signature, so that a new key of the same account changes nothing.

    A local server has the account in the path.
    """
    return "" if container is None else container.primary_hostname.lower().partition("?")[0]


def _warn(journal: SendJournal, schedule_at: datetime | None) -> None:
    if journal.unchecked:
        console.print(
            f"[yellow]not checked:[/] {escape(str(journal.path))} is of an earlier version, which did not record the "
            "namespace, --session-id, --schedule-at and --claim-check; they are taken to be the same. Later starts check them",
            soft_wrap=True,
        )
    if schedule_at is not None and schedule_at <= datetime.now(UTC):
        console.print("[yellow]--schedule-at has passed:[/] the messages appear at once", soft_wrap=True)


def _journal(options: Options, new_resume: Resume) -> AbstractContextManager[SendJournal]:
    file = "stdin" if str(options.file) == "-" else options.file
    path = options.resume_file or options.resume or Path(f"{file}.resume.json")
    if options.resume is None:
        return SendJournal.begin(path, new_resume)
    return SendJournal.resume(options.resume, new_resume, path)


@contextlib.asynccontextmanager
async def _sender(
    options: Options,
    settings: Mapping[str, str],
    endpoint: Endpoint,
    container: ContainerClient | None,
    journal: Journal,
    *,
    traced: bool,
) -> AsyncIterator[BigBatchSender]:
    from tidemark.publisher.service_bus.claim_check import ClaimCheck
    from tidemark.publisher.service_bus.sender import BigBatchSender

    async with contextlib.AsyncExitStack() as stack:
        claim_check = None
        if container is not None:
            claim_check = await stack.enter_async_context(ClaimCheck(container))
            account = container.primary_hostname
            await command.check_reached(account, command.HTTPS, ClaimCheckError)
            async with command.first_answer(account, lambda: False, ClaimCheckError):
                await claim_check.ensure_container()
        sender_options: dict[str, Any] = {
            "queue_name": options.queue,
            "topic_name": options.topic,
            "claim_check": claim_check,
            "policy": SendPolicy(
                look_ahead=LOOK_AHEAD,
                attempts=options.attempts,
                resend_unknown=options.resend_unknown,
                ordered=not options.any_order,
            ),
            "timeout": options.timeout,
            "journal": journal,
            "sdk_insides": wants_insides(settings),
            "tracing": traced,
            "client_options": {"ssl_context": tls_context(settings)},
        }
        if endpoint.credential is None:
            sender = BigBatchSender.from_connection_string(endpoint.connection_string or "", **sender_options)
        else:
            sender = BigBatchSender.from_namespace(endpoint.address, endpoint.credential, **sender_options)
        yield await stack.enter_async_context(sender)


@contextlib.contextmanager
def _show_counts(
    options: Options, source: BinaryIO, lines: LineMessages, answered: Callable[[], None]
) -> Iterator[OnProgress]:
    if isinstance(source, Pipe):
        answered()  # from here on, its lines may be waited for
    total = None if str(options.file) == "-" else options.file.stat().st_size
    with command.show_progress(console, "sending", total=total, quiet=options.quiet) as show:

        def show_counts(counts: Progress) -> None:
            answered()
            read = source.tell() if source.seekable() else lines.bytes_read
            show(read, f"{counts.sent:,} sent in {count_text(counts.batches, 'batch', 'batches', style=',')}")

        yield show_counts


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # some times of the years 1 and 9999 do not exist in UTC
        raise PublishSettingsError(
            f"--schedule-at is {text!r}, accepted: ISO 8601 such as 2030-01-31T12:00:00Z"
        ) from None


def _print(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(summary).decode())
        return
    seconds = max(summary.seconds, 0.001)
    verb = "scheduled" if summary.scheduled else "sent"
    console.print(
        f"{count_text(summary.messages, 'message', style=',')} ({summary.bytes / 1e6:,.1f} MB) {verb} in "
        f"{count_text(summary.batches, 'batch', 'batches', style=',')} and {summary.seconds:,.1f} s: {summary.messages / seconds:,.0f} messages/s, "
        f"{summary.bytes / 1e6 / seconds:,.1f} MB/s",
        soft_wrap=True,
    )
