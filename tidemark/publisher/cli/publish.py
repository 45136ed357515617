"""`tidemark publish`: the lines of a file or a pipe become the events of a hub."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from tidemark.foundation.app_settings import COMMAND_ROOT, settings_of
from tidemark.foundation.azure.connections import event_hubs_endpoint, tls_context
from tidemark.foundation.keys import namespace_host
from tidemark.publisher.cli import command
from tidemark.publisher.cli.command import console
from tidemark.publisher.cli.csv_rows import CsvFormat
from tidemark.publisher.cli.given_options import GivenOptions, only_given
from tidemark.publisher.cli.input_lines import ANOTHER_STATE
from tidemark.publisher.cli.text.event_fields import EventFields
from tidemark.publisher.errors import InvalidProducerStateError, PublishSettingsError
from tidemark.publisher.event_hubs.batching import BufferLimits
from tidemark.publisher.event_hubs.states.file import FileStateStore
from tidemark.publisher.event_hubs.states.layout import is_of_same_producer, name_of
from tidemark.publisher.model import RetryPolicy, StateKey
from tidemark.publisher.sdk_insides import wants_insides

if TYPE_CHECKING:
    from tidemark.publisher.cli.publishing_run import Progress as Counts
    from tidemark.publisher.event_hubs.producer import IdempotentProducer

ATTEMPTS = 10
"""From 0.8 s on and doubling up to 30 s they cover two and a half minutes of outage, which most restarts of a gateway
or a database stay below; with a saved state a later start goes on anyway.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked to do."""

    hub: Annotated[str, "The event hub."]
    file: command.File
    connection: Annotated[str, "App setting of the Event Hubs connection."] = "EventHubConnection"
    partition_key: Annotated[
        str | None, "Field of the JSON lines or CSV rows that decides on the partition; else in turn."
    ] = None
    property: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: application property of all events; may be repeated."),
    ] = None
    property_field: Annotated[
        list[str] | None,
        typer.Option(
            help="[NAME=]FIELD of the JSON lines or CSV rows: application property; may be repeated."
        ),
    ] = None
    id_field: Annotated[str | None, "Field of the JSON lines or CSV rows that is the message id."] = None
    content_type: Annotated[str | None, "Content type of all events, such as application/json."] = None
    delimiter: command.Delimiter = None
    encoding: command.Encoding = None
    partition: Annotated[str | None, "Send all lines to this partition."] = None
    idempotent: Annotated[bool, "No line is stored twice, whatever gets lost on the way."] = False
    state: Annotated[Path | None, "File of the saved state: after a crash, start again with the same."] = None
    resend_unknown: Annotated[
        bool,
        "Send again what may be stored, where the service has forgotten this producer and cannot tell.",
    ] = False
    name: Annotated[str, "Name of this producer in the saved state."] = "tidemark-publish"
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most so many lines per second.")] = None
    max_wait: Annotated[float, typer.Option(min=0.0, help="Seconds that a line waits for others.")] = 0.2
    max_events: Annotated[int | None, typer.Option(min=1, help="Lines per batch; else all that fit.")] = None
    timeout: command.Timeout = 60.0
    quiet: command.Quiet = False
    root: command.Root = COMMAND_ROOT


@command.taking(Options)
def publish(options: Options) -> None:
    """Publishes the lines of a file to an event hub, in batches, in order per partition.

    With --idempotent --state FILE it can be killed at any time: started again, it goes on where it was, without a line
    lost or doubled. Exit status: 0 all is published, 2 settings or input, 3 another producer has taken over or the
    state does not fit, 1 anything else.
    """
    again = "; start it again with the same --state to go on" if options.state is not None else ""
    with command.ends_told(f"--hub {options.hub}", options.connection, stopped=f"stopped{again}"):
        counts = asyncio.run(_publish(options, settings_of(options.root)))
    console.print(_summary(counts))


def _summary(counts: Counts) -> str:
    if not counts.published and not counts.before:
        return "nothing to publish: the input has no lines"
    if not counts.published:
        return f"nothing left: all {_lines(counts.before)} were published before"
    return _published(counts)


def _published(counts: Counts) -> str:
    unknown = f", and of {counts.unknown:,} more it is unknown" if counts.unknown else ""
    before = f"; {_lines(counts.before)} before, by earlier runs" if counts.before else ""
    return f"{_lines(counts.published)} published{unknown}{before}"


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"


async def _publish(options: Options, settings: Mapping[str, str]) -> Counts:
    command.cancelled_by_signals()
    from tidemark.publisher.cli.publishing_run import LineOptions, PublishingRun  # noqa: PLC0415 - the SDK takes half a second; --help needs none

    if options.partition_key is not None and options.partition is not None:
        raise PublishSettingsError(
            "--partition-key and --partition are given; accepted: one of them, or none"
        )
    if options.state is not None and not options.idempotent:
        raise PublishSettingsError("--state needs --idempotent: there is no state to save without it")
    is_csv = command.is_csv(options.file)
    format_ = CsvFormat.of_options(options.delimiter, options.encoding, is_csv=is_csv)
    fields = EventFields.of_options(
        options.property or [], options.property_field or [], options.id_field, options.content_type
    )
    limits = BufferLimits(max_wait=options.max_wait, max_events=options.max_events)
    lines = LineOptions(
        options.partition_key,
        options.partition,
        options.rate,
        saves=options.state is not None,
        name="standard input" if str(options.file) == "-" else str(options.file),
        csv=format_ if is_csv else None,
        fields=fields,
        given=_given(options),
    )
    with command.opened(options.file) as source, _bar(source, quiet=options.quiet) as on_progress:
        producer = _producer(options, settings)
        if options.state is not None:
            await _check_place(options.state, producer, options.name)
        run = PublishingRun(source, producer, lines, limits=limits, on_progress=on_progress)
        return await run.carry_out()


def _given(options: Options) -> GivenOptions:
    """What decides where a line goes and what becomes of it."""
    return only_given(
        {
            "--partition-key": options.partition_key,
            "--partition": options.partition,
            "--property": ", ".join(sorted(options.property or [])) or None,
            "--property-field": ", ".join(sorted(options.property_field or [])) or None,
            "--id-field": options.id_field,
            "--content-type": options.content_type,
            "--delimiter": options.delimiter,
            "--encoding": options.encoding,
        }
    )


async def _check_place(state: Path, producer: IdempotentProducer, name: str) -> None:
    """A file that has states of this name for another hub or namespace, and none for this one, is of a run that went there.

    Raises InvalidProducerStateError: all lines would go here, and the rest never there.
    """
    spelled = (
        producer.fully_qualified_namespace
    )  # as earlier versions saved it: in another spelling it is not found
    here, formerly = (
        name_of(StateKey(namespace, producer.eventhub_name, name, ""))
        for namespace in (namespace_host(spelled), spelled)
    )
    there = [one for one in await FileStateStore(state).names() if is_of_same_producer(one, here)]
    if there and not any(one.startswith((here, formerly)) for one in there):
        hubs = " and ".join(sorted({"/".join(one.split("/")[:2]) for one in there}))
        raise InvalidProducerStateError(
            f"{state} is of what was published to {hubs}, not to {'/'.join(here.split('/')[:2])}: give --hub and --connection as "
            f"they were, or {ANOTHER_STATE}"
        )


def _producer(options: Options, settings: Mapping[str, str]) -> IdempotentProducer:
    from tidemark.publisher.event_hubs.producer import IdempotentProducer  # noqa: PLC0415 - as above

    return event_hubs_endpoint(settings, options.connection).client(
        IdempotentProducer,
        options.hub,
        enable_idempotent_partitions=options.idempotent,
        state_store=None if options.state is None else FileStateStore(options.state),
        producer_name=options.name,
        resend_unknown=options.resend_unknown,
        retry=RetryPolicy(max_attempts=ATTEMPTS, attempt_timeout=options.timeout, max_delay=30.0),
        sdk_insides=wants_insides(settings),
        ssl_context=tls_context(settings),
    )


@contextlib.contextmanager
def _bar(source: BinaryIO, *, quiet: bool) -> Iterator[Callable[[Counts], None]]:
    """What to call with the counts. What ends early says how far it came."""
    total, last = None, None
    if source.seekable():
        total = source.seek(0, os.SEEK_END)
        source.seek(0)
    with command.progress(console, "publishing", total=total, quiet=quiet) as show:

        def told(counts: Counts) -> None:
            nonlocal last
            if last is None and counts.unchecked:
                console.print(
                    "[yellow]not checked:[/] the saved state is of an earlier version, which did not write down of which "
                    f"input {_lines(counts.unchecked)} were published; this is taken to be the same one, and checked from "
                    "now on",
                    soft_wrap=True,
                )
            if last is None and counts.partitions < counts.partitions_now:
                console.print(
                    f"the hub has {counts.partitions_now} partitions now; this input goes on to the {counts.partitions} that it "
                    "was begun with",
                    soft_wrap=True,
                )
            last = counts
            show(counts.offset, f"{counts.published:,} published")

        try:
            yield told
        except BaseException:
            told_last = "nothing was published" if last is None else _published(last)
            console.print(told_last, soft_wrap=True)
            raise
