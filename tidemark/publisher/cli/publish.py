"""`tidemark publish`: the lines of a file or a pipe become the events of a hub."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from tidemark.foundation.app_settings import COMMAND_ROOT, load_settings
from tidemark.foundation.azure.connections import event_hubs_endpoint, tls_context
from tidemark.foundation.keys import namespace_host
from tidemark.foundation.wording import count_text, file_problem
from tidemark.publisher.cli import command
from tidemark.publisher.cli.command import console
from tidemark.publisher.cli.csv_rows import CsvFormat
from tidemark.publisher.cli.given_options import GivenOptions, only_given
from tidemark.publisher.cli.input_lines import ANOTHER_STATE
from tidemark.publisher.cli.rows.containers import AVRO, format_of
from tidemark.publisher.cli.rows.encoding import CloudEvents, RegistryOptions, RowEncoding, find_encoder
from tidemark.publisher.cli.text.event_fields import EventFields
from tidemark.publisher.errors import InvalidProducerStateError, PublishSettingsError
from tidemark.publisher.event_hubs.batching import BufferLimits
from tidemark.publisher.event_hubs.ports.state_store import is_of_same_producer, name_of
from tidemark.publisher.event_hubs.states.file import FileStateStore
from tidemark.publisher.model import RetryPolicy, StateKey
from tidemark.publisher.sdk_insides import wants_insides

if TYPE_CHECKING:
    from tidemark.publisher.cli.publishing_run import Progress as Counts
    from tidemark.publisher.event_hubs.producer import IdempotentProducer

MAX_ATTEMPTS = 10
"""With delays that double from 0.8 s up to 30 s, the attempts cover an outage of two and a half minutes. Chosen: most restarts
of a gateway or a database are shorter. With a saved state, a later start goes on anyway.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command."""

    hub: Annotated[str, "The event hub."]
    file: command.File
    connection: Annotated[str, "App setting of the Event Hubs connection."] = "EventHubConnection"
    partition_key: Annotated[
        str | None,
        "Field of the JSON lines or CSV rows whose value chooses the partition. Default: round robin.",
    ] = None
    property: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: application property of every event. May be repeated."),
    ] = None
    property_field: Annotated[
        list[str] | None,
        typer.Option(
            help="[NAME=]FIELD: application property with the value of a field or column. May be repeated."
        ),
    ] = None
    id_field: Annotated[str | None, "Field of the JSON lines or CSV rows with the message id."] = None
    content_type: Annotated[str | None, "Content type of every event, such as application/json."] = None
    schema_registry: Annotated[
        str | None,
        "App setting of a schema registry connection, such as SchemaRegistry: each row becomes Avro with the id of its schema.",
    ] = None
    schema_group: Annotated[str | None, "Group of the schema in the registry."] = None
    schema: Annotated[Path | None, "Avro schema of the rows. Default: that of an Avro file."] = None
    schema_name: Annotated[str | None, "Name of the schema in the registry. Default: that of its record."] = (
        None
    )
    register_schema: Annotated[bool, "Add the schema to the registry, if it is not there."] = False
    cloudevents: Annotated[str | None, "Publish CloudEvents: binary or structured."] = None
    cloudevents_source: Annotated[str | None, "Attribute source of CloudEvents, a URI."] = None
    cloudevents_type: Annotated[str | None, "Attribute type of CloudEvents."] = None
    cloudevents_subject_field: Annotated[str | None, "Field with the attribute subject of CloudEvents."] = (
        None
    )
    cloudevents_time_field: Annotated[str | None, "Field with the attribute time of CloudEvents."] = None
    delimiter: command.Delimiter = None
    encoding: command.Encoding = None
    partition: Annotated[str | None, "Send all lines to this partition."] = None
    idempotent: Annotated[bool, "Store no line twice, even if an acknowledgement is lost."] = False
    state: Annotated[
        Path | None, "File of the saved state. After a crash, start again with the same file."
    ] = None
    resend_unknown: Annotated[
        bool,
        "Send events with an unknown outcome again where the service has forgotten this producer. May store them twice.",
    ] = False
    name: Annotated[str, "Name of this producer in the saved state."] = "tidemark-publish"
    rate: Annotated[float | None, typer.Option(min=0.001, help="Maximum lines per second.")] = None
    max_wait: Annotated[
        float, typer.Option(min=0.0, help="Longest time in seconds that a line waits for its batch.")
    ] = 0.2
    max_events: Annotated[
        int | None, typer.Option(min=1, help="Maximum lines per batch. Default: as many as fit.")
    ] = None
    timeout: command.Timeout = 60.0
    quiet: command.Quiet = False
    root: command.Root = COMMAND_ROOT


@command.from_options(Options)
def publish(options: Options) -> None:
    """Publishes the lines of a file to an event hub, in batches, in order per partition.

    With --idempotent --state FILE it can be killed at any time: started again, it goes on where it stopped and neither
    loses nor doubles a line. Exit status: 0 all lines were published, 2 a setting or the input is wrong, 3 another
    producer has taken over or the state does not match, 130 stopped by a signal, 1 any other error.
    """
    how_to_go_on = "; start it again with the same --state to go on" if options.state is not None else ""
    hub, asked = f"--hub {options.hub}", {options.connection: f"hub {options.hub}"}
    with (
        command.report_early_end(hub, options.connection, stopped=f"stopped{how_to_go_on}"),
        command.say_if_slow(options.root, asked, "tidemark.publisher.event_hubs.producer") as answered,
    ):
        counts = asyncio.run(_publish(options, load_settings(options.root), answered))
    console.print(_summary(counts))


def _summary(counts: Counts) -> str:
    if not counts.published and not counts.before:
        return "nothing to publish: the input has no lines"
    if not counts.published:
        before = count_text(counts.before, "line was", "lines were", style=",")
        return f"nothing left: {before} published before"
    return _published(counts)


def _published(counts: Counts) -> str:
    unknown = f", {counts.unknown:,} more with an unknown outcome" if counts.unknown else ""
    before = f"; {count_text(counts.before, 'line', style=',')} by earlier runs" if counts.before else ""
    return f"{count_text(counts.published, 'line', style=',')} published{unknown}{before}"


async def _publish(options: Options, settings: Mapping[str, str], answered: Callable[[], None]) -> Counts:
    command.cancel_on_signals()
    from tidemark.publisher.cli.publishing_run import LineOptions, PublishingRun

    if options.partition_key is not None and options.partition is not None:
        raise PublishSettingsError(
            "--partition-key and --partition are both given; accepted: one of them, or none"
        )
    _check_state(options)
    is_csv = command.is_csv(options.file)
    format_ = CsvFormat.of_options(options.delimiter, options.encoding, is_csv=is_csv)
    fields = EventFields.of_options(
        options.property or [], options.property_field or [], options.id_field, options.content_type
    )
    limits = BufferLimits(max_wait=options.max_wait, max_events=options.max_events)
    command.check_local_stack(settings, options.connection)
    rows = format_of(options.file.suffix)
    with command.open_input(options.file) as source:
        encoding = await _encoding(options, settings, source, rows)
    lines = LineOptions(
        options.partition_key,
        options.partition,
        options.rate,
        saves=options.state is not None,
        name="standard input" if str(options.file) == "-" else str(options.file),
        csv=format_ if is_csv else None,
        rows=rows,
        encoding=encoding,
        fields=fields,
        given=_compared_options(options, encoding),
    )
    async with command.tracing(settings) as traced:
        with (
            command.open_input(options.file) as source,
            _show_counts(source, answered, quiet=options.quiet) as on_progress,
        ):
            producer = await _reached_producer(options, settings, traced=traced)
            if options.state is not None:
                await _refuse_state_of_other_hub(options.state, producer, options.name)
            run = PublishingRun(source, producer, lines, limits=limits, on_progress=on_progress)
            return await run.carry_out()


async def _reached_producer(
    options: Options, settings: Mapping[str, str], *, traced: bool
) -> IdempotentProducer:
    """It knows the hub's partitions, for which the run does not ask again. Raises PublishError."""
    producer, address = (
        _producer(options, settings, traced=traced),
        event_hubs_endpoint(settings, options.connection).address,
    )
    try:
        await command.check_reached(address)
        async with command.first_answer(address, lambda: False):
            await producer.get_partition_ids()
    except BaseException:
        await producer.close()
        raise
    return producer


async def _encoding(
    options: Options, settings: Mapping[str, str], source: BinaryIO, rows: str | None
) -> RowEncoding:
    """Raises PublishSettingsError for options that do not go together, and what asking the registry raises."""
    avro = cloud_events = None
    registry = RegistryOptions(
        options.schema_registry or "",
        options.schema_group,
        options.schema,
        options.schema_name,
        options.register_schema,
    )
    if options.schema_registry is not None:
        avro = await find_encoder(registry, settings, source, is_avro=rows == AVRO)
    elif registry != RegistryOptions(""):
        raise PublishSettingsError(
            "--schema-group, --schema, --schema-name and --register-schema need --schema-registry, the app setting of the registry"
        )
    source_, type_ = options.cloudevents_source, options.cloudevents_type
    if options.cloudevents is not None:
        if source_ is None or type_ is None:
            raise PublishSettingsError("--cloudevents needs --cloudevents-source and --cloudevents-type")
        subject, time_ = options.cloudevents_subject_field, options.cloudevents_time_field
        cloud_events = CloudEvents(
            options.cloudevents,
            source_,
            type_,
            f"{options.name}-{options.file.name}",
            options.id_field,
            subject,
            time_,
        )
    elif source_ or type_ or options.cloudevents_subject_field or options.cloudevents_time_field:
        raise PublishSettingsError("the options of CloudEvents need --cloudevents, binary or structured")
    return RowEncoding(avro, cloud_events)


def _compared_options(options: Options, encoding: RowEncoding) -> GivenOptions:
    """The options that decide where a line goes and what becomes of it; the saved state keeps them."""
    return only_given(
        {
            "--partition-key": options.partition_key,
            "--partition": options.partition,
            "--property": ", ".join(sorted(options.property or [])) or None,
            "--property-field": ", ".join(sorted(options.property_field or [])) or None,
            "--id-field": options.id_field,
            "--content-type": options.content_type,
            "the schema": None if encoding.avro is None else encoding.avro.schema_id,
            "--cloudevents": options.cloudevents,
            "--cloudevents-source": options.cloudevents_source,
            "--cloudevents-type": options.cloudevents_type,
            "--cloudevents-subject-field": options.cloudevents_subject_field,
            "--cloudevents-time-field": options.cloudevents_time_field,
            "--delimiter": options.delimiter,
            "--encoding": options.encoding,
        }
    )


def _check_state(options: Options) -> None:
    if options.state is None:
        return
    if not options.idempotent:
        raise PublishSettingsError("--state needs --idempotent: there is no state to save without it")
    refuse_unwritable(options.state)


def refuse_unwritable(state: Path) -> None:
    """Raises PublishSettingsError where no state can be saved: the producer would try for minutes, and nothing would say why."""
    try:
        if state.exists():
            with state.open("r+b"):
                return
        with NamedTemporaryFile(dir=state.parent, prefix=f".{state.name}.") as probe:
            probe.write(bytes(4096))  # a disk that is full may still take an empty file
            probe.flush()
    except OSError as error:
        raise PublishSettingsError(
            f"--state is '{state}', where nothing can be written: {file_problem(error)}; accepted: a file in a folder that can be"
            " written to, on a disk with room"
        ) from None


async def _refuse_state_of_other_hub(state: Path, producer: IdempotentProducer, name: str) -> None:
    """Raises InvalidProducerStateError if the file has states of this producer name for other hubs only.

    The run before went there. All lines would be published to this hub, and the rest never to the other.
    """
    namespace = producer.fully_qualified_namespace
    prefix, prefix_of_earlier_versions = (  # which saved the namespace in the spelling of the connection
        name_of(StateKey(spelling, producer.eventhub_name, name, ""))
        for spelling in (namespace_host(namespace), namespace)
    )
    saved = [key for key in await FileStateStore(state).names() if is_of_same_producer(key, prefix)]
    if saved and not any(key.startswith((prefix, prefix_of_earlier_versions)) for key in saved):
        hubs = " and ".join(sorted({"/".join(key.split("/")[:2]) for key in saved}))
        raise InvalidProducerStateError(
            f"{state} is the state of a run that published to {hubs}, not to {'/'.join(prefix.split('/')[:2])}; give --hub and "
            f"--connection as they were, or {ANOTHER_STATE}"
        )


def _producer(options: Options, settings: Mapping[str, str], *, traced: bool) -> IdempotentProducer:
    from tidemark.publisher.event_hubs.producer import IdempotentProducer

    return event_hubs_endpoint(settings, options.connection).client(
        IdempotentProducer,
        options.hub,
        enable_idempotent_partitions=options.idempotent,
        state_store=None if options.state is None else FileStateStore(options.state),
        producer_name=options.name,
        resend_unknown=options.resend_unknown,
        retry=RetryPolicy(max_attempts=MAX_ATTEMPTS, attempt_timeout=options.timeout, max_delay=30.0),
        sdk_insides=wants_insides(settings),
        tracing=traced,
        ssl_context=tls_context(settings),
    )


@contextlib.contextmanager
def _show_counts(
    source: BinaryIO, answered: Callable[[], None], *, quiet: bool
) -> Iterator[Callable[[Counts], None]]:
    """Yield the function that shows the counts. If the command ends early, print how many lines were published."""
    total, last_counts = None, None
    if source.seekable():
        total = source.seek(0, os.SEEK_END)
        source.seek(0)
    with command.show_progress(console, "publishing", total=total, quiet=quiet) as show:

        def show_counts(counts: Counts) -> None:
            nonlocal last_counts
            answered()
            if last_counts is None and counts.unchecked:
                console.print(
                    "[yellow]not checked:[/] an earlier version wrote the saved state, without a digest of the input; "
                    f"{count_text(counts.unchecked, 'line of this input is', 'lines of this input are', style=',')} taken as published. "
                    "Later starts check the digest",
                    soft_wrap=True,
                )
            if last_counts is None and counts.unended is not None:
                console.print(
                    f"it was published by {counts.unended.process} since {counts.unended.since}, which has not ended in order: this "
                    "run goes on where that one was; if it still runs, one of the two ends with exit status 3 at its next batch",
                    soft_wrap=True,
                )
            if last_counts is None and counts.partitions < counts.partitions_now:
                console.print(
                    f"the hub has {counts.partitions_now} partitions now; this input still goes to the {counts.partitions} that "
                    "it was started with",
                    soft_wrap=True,
                )
            last_counts = counts
            show(counts.offset, f"{counts.published:,} published")

        try:
            yield show_counts
        except BaseException:
            published = "nothing was published" if last_counts is None else _published(last_counts)
            console.print(published, soft_wrap=True)
            raise
