"""`tidemark send`: the lines of a file or a pipe become messages of a Service Bus queue or topic."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import typer
from msgspec.structs import replace
from rich.markup import escape

from tidemark.foundation.app_settings import COMMAND_ROOT, settings_of
from tidemark.foundation.azure.connections import (
    Endpoint,
    blob_container,
    service_bus_endpoint,
    tls_context,
    transport_options,
)
from tidemark.foundation.keys import namespace_host
from tidemark.publisher.cli import command
from tidemark.publisher.cli.command import console, is_csv
from tidemark.publisher.cli.csv_rows import CsvFormat, read_as_json_lines
from tidemark.publisher.cli.given_options import only_given
from tidemark.publisher.cli.line_messages import LineMessages
from tidemark.publisher.cli.resume_file import Format, LineOptions, Resume
from tidemark.publisher.cli.send_journal import SendJournal
from tidemark.publisher.cli.sending_run import SendingRun, Summary
from tidemark.publisher.cli.text.bounded_lines import LARGEST_MESSAGE, BoundedLines
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.sdk_insides import wants_insides
from tidemark.publisher.service_bus.core.sending import Progress, SendPolicy

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient

    from tidemark.publisher.service_bus.sdk.send_call import Journal, OnProgress
    from tidemark.publisher.service_bus.sender import BigBatchSender

LOOK_AHEAD = 2 * 1024 * 1024  # bytes; enough to see a line too large early, little enough for a smooth bar


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked to do."""

    file: command.File
    queue: Annotated[str | None, "The queue."] = None
    topic: Annotated[str | None, "Or the topic."] = None
    connection: Annotated[str, "App setting of the Service Bus connection."] = "ServiceBusConnection"
    format: Annotated[Format, "jsonl: a JSON document in every line; a .csv is always that."] = "lines"
    session_field: Annotated[str | None, "Field of the JSON lines that is the session id."] = None
    id_field: Annotated[str | None, "Field of the JSON lines that is the message id."] = None
    delimiter: command.Delimiter = None
    encoding: command.Encoding = None
    session_id: Annotated[str | None, "Session id of all messages that have none."] = None
    schedule_at: Annotated[str | None, "When the messages are to appear: ISO 8601, UTC if no zone."] = None
    claim_check: Annotated[str | None, "Container for bodies that the entity is too small for."] = None
    storage: Annotated[str, "App setting of that container's storage account."] = "AzureWebJobsStorage"
    resume: Annotated[Path | None, "Send what this file of an earlier run says is left."] = None
    resume_file: Annotated[Path | None, "Where to write down what was sent; kept if not all was."] = None
    resend_unknown: Annotated[
        bool, "Send again what may have arrived: for entities that detect duplicates."
    ] = False
    any_order: Annotated[bool, "Fewer batches for large messages, which change places."] = False
    attempts: Annotated[int, typer.Option(min=1, help="Attempts for each batch.")] = 5
    timeout: command.Timeout = 60.0
    quiet: command.Quiet = False
    json: Annotated[bool, "Print the summary as JSON."] = False
    root: command.Root = COMMAND_ROOT


@command.taking(Options)
def send(options: Options) -> None:
    """Sends the lines of a file to a Service Bus queue or topic, in as few batches as fit, in order per session.

    A resume file says at any time which lines were sent, so the command may be stopped and killed: the same one with
    --resume sends the rest. Exit status: 0 all is sent, 1 not all, 2 settings or input, 3 of some lines it is not known
    whether they arrived, 130 stopped by a signal.
    """
    queue, topic = options.queue, options.topic
    entity = f"--queue {queue}" if queue is not None else f"--topic {topic}"
    with command.ends_told(entity, options.connection):
        summary = asyncio.run(_send(options))
    _print(summary, as_json=options.json)
    raise typer.Exit(summary.exit_status)


async def _send(options: Options) -> Summary:
    command.cancelled_by_signals()
    schedule_at = _time(options.schedule_at)
    format_ = CsvFormat.of_options(options.delimiter, options.encoding, is_csv=is_csv(options.file))
    settings = settings_of(options.root)
    endpoint = service_bus_endpoint(settings, options.connection)
    container = None if options.claim_check is None else _container(options, settings)
    begun = replace(
        _begun(options, endpoint, container, schedule_at),
        created_at=await _created_at(options, endpoint, settings),
    )
    with command.opened(options.file) as source, _journal(options, begun) as journal:
        lines = LineMessages(
            _lines_of(source, options, format_),
            journal.ledger.summary(),
            name=str(options.file),
            resend_unknown=options.resend_unknown,
        )
        _warn(journal, schedule_at)
        run = SendingRun(journal, lines)
        try:
            async with _sender(options, settings, endpoint, container, run) as sender:
                with _bar(options, source, lines) as on_progress:
                    given = {"session_id": options.session_id, "schedule_at": schedule_at}
                    return await run.carry_out(sender, on_progress=on_progress, **given)
        finally:
            if options.resume is None and journal.ledger.nothing_sent and not journal.ledger.refused:
                journal.remove()


def _lines_of(source: BinaryIO, options: Options, format_: CsvFormat) -> Iterator[bytes]:
    """Blobs may take what the entity does not."""
    name = "standard input" if str(options.file) == "-" else str(options.file)
    lines = BoundedLines(source, name, None if options.claim_check is not None else LARGEST_MESSAGE)
    return read_as_json_lines(lines, name, format_) if is_csv(options.file) else iter(lines)


def _begun(
    options: Options, endpoint: Endpoint, container: ContainerClient | None, schedule_at: datetime | None
) -> Resume:
    """What is known of the input before its first line is read. Raises PublishSettingsError."""
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


async def _created_at(options: Options, endpoint: Endpoint, settings: Mapping[str, str]) -> str | None:
    from tidemark.publisher.service_bus.sdk.entity_identity import entity_created_at  # noqa: PLC0415 - the SDK takes half a second; --help needs none

    transport = transport_options(settings)
    return await entity_created_at(endpoint, options.queue, options.topic, transport)


def _container(options: Options, settings: Mapping[str, str]) -> ContainerClient:
    return blob_container(settings, options.storage, options.claim_check or "")


def _account_of(container: ContainerClient | None) -> str:
    """Without the key or signature: a new one of the same account changes nothing. An account of a local server is in the
    path.
    """
    return "" if container is None else container.primary_hostname.lower().partition("?")[0]


def _warn(journal: SendJournal, schedule_at: datetime | None) -> None:
    if journal.unchecked:
        console.print(
            f"[yellow]not checked:[/] {escape(str(journal.path))} is of an earlier version, which did not write down the "
            "namespace, --session-id, --schedule-at and --claim-check; they are taken to be the same, and checked from now on",
            soft_wrap=True,
        )
    if schedule_at is not None and schedule_at <= datetime.now(UTC):
        console.print("[yellow]--schedule-at has passed:[/] the messages appear at once", soft_wrap=True)


def _journal(options: Options, begun: Resume) -> AbstractContextManager[SendJournal]:
    file = "stdin" if str(options.file) == "-" else options.file
    path = options.resume_file or options.resume or Path(f"{file}.resume.json")
    if options.resume is None:
        return SendJournal.begun(path, begun)
    return SendJournal.continued(options.resume, begun, path)


@contextlib.asynccontextmanager
async def _sender(
    options: Options,
    settings: Mapping[str, str],
    endpoint: Endpoint,
    container: ContainerClient | None,
    journal: Journal,
) -> AsyncIterator[BigBatchSender]:
    from tidemark.publisher.service_bus.claim_check import ClaimCheck  # noqa: PLC0415 - the SDK takes half a second; --help needs none
    from tidemark.publisher.service_bus.sender import BigBatchSender  # noqa: PLC0415 - as above

    async with contextlib.AsyncExitStack() as stack:
        claim_check = None
        if container is not None:
            claim_check = await stack.enter_async_context(ClaimCheck(container))
            await claim_check.ensure_container()
        given: dict[str, Any] = {
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
            "client_options": {"ssl_context": tls_context(settings)},
        }
        if endpoint.credential is None:
            sender = BigBatchSender.from_connection_string(endpoint.connection_string or "", **given)
        else:
            sender = BigBatchSender.from_namespace(endpoint.address, endpoint.credential, **given)
        yield await stack.enter_async_context(sender)


@contextlib.contextmanager
def _bar(options: Options, source: BinaryIO, lines: LineMessages) -> Iterator[OnProgress]:
    """What to call with the sender's progress."""
    total = None if str(options.file) == "-" else options.file.stat().st_size
    with command.progress(console, "sending", total=total, quiet=options.quiet) as show:

        def told(counts: Progress) -> None:
            read = source.tell() if source.seekable() else lines.bytes_read
            show(read, f"{counts.sent:,} sent in {counts.batches:,} batches")

        yield told


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # the latter: of the years 1 and 9999, some are none in UTC
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
        f"{summary.messages:,} messages ({summary.bytes / 1e6:,.1f} MB) {verb} in {summary.batches:,} batches and "
        f"{summary.seconds:,.1f} s: {summary.messages / seconds:,.0f} messages/s, "
        f"{summary.bytes / 1e6 / seconds:,.1f} MB/s",
        soft_wrap=True,
    )
