"""Builds a consumer from its settings. Clients connect on first use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import structs

from consumer.config import ConsumerConfig, DeadLettersKind, SinkKind, StoreKind
from consumer.core.parked import SUFFIX
from consumer.core.statistics import PipelineStatistics
from consumer.decoding.table import DecoderContext, build_decoder
from consumer.definition.bodies import BodyReader
from consumer.definition.model import HubDefinition, SinkDefinition
from consumer.mapping.documents import DocumentMapper
from consumer.mapping.operations import write_options
from consumer.mapping.preparing import Preparation
from consumer.mapping.transforms import load_transform, mapping_of
from consumer.model import Stream
from consumer.options import MetricsExporter
from consumer.ports import CheckpointStore, DeadLetterStore, Decoder, LeaseStore, Sink
from consumer.receiving.receiver import HubReceiver, ReceiverOptions
from consumer.receiving.until import UntilReceiver
from consumer.sinks.routed import RoutedSink, prepare_for_only
from consumer.sinks.types import SinkContext, find_sink_type, read_options
from consumer.stores.blob.checkpoints import BlobCheckpointStore
from consumer.stores.blob.dead_letters import BlobDeadLetterStore
from consumer.stores.blob.elsewhere import accounts_with_positions, containers_with_positions
from consumer.stores.blob.leases import BlobLeaseStore
from consumer.stores.cosmos.dead_letters import CosmosDeadLetterStore
from consumer.telemetry.landing import Landing
from consumer.telemetry.metrics import ConsumerMetrics, azure_monitor_metrics, otlp_metrics
from consumer.telemetry.rate_orders import Limits, RateFollower, Rates, TableRateStore, Unit
from consumer.telemetry.records import Identity, shared
from consumer.telemetry.reporter import Reporter
from consumer.telemetry.stats_store import TableStatsStore
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.azure.connections import ConnectionSettingsError, blob_container, event_hubs_endpoint
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.secrets.known import hide_settings
from tidemark.foundation.tracing.spans import Spans, spans

if TYPE_CHECKING:  # loaded only by those who use them
    from azure.storage.blob.aio import ContainerClient

    from consumer.running.sql_parts import SqlParts

log = logging.getLogger("tidemark.consumer")


class Parts:
    """Creates the adapters that a configuration names.

    The caller of a method closes what it returns. SQL adapters share one database, which the last of them closes.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        settings: Mapping[str, str],
        hub: HubDefinition | None = None,
    ) -> None:
        """`hub` has the sinks, steps and routes of a file. Raises SettingsError for a connection that cannot work."""
        hide_settings(settings)
        write_options(config.writing, named=lambda option: f"COSMOS_{option.upper()}")
        self.config = config
        self.settings = settings
        self._hub = HubDefinition(config, settings) if hub is None else hub
        self.namespace = event_hubs_endpoint(settings, config.hub_connection).address

    def sink(self) -> Sink:
        """Raises SettingsError for a type that cannot be imported, and for options that cannot work."""
        if not self._hub.sinks:
            kind = find_sink_type(self.config.sink)
            with _names_settings(self.settings):
                options = read_options(kind, sink_table(self.config), f"the sink {kind.name}")
                return kind.build(options, self._sink_context)
        sinks = {sink.name: self.build_sink(sink) for sink in self._hub.sinks}
        return RoutedSink(sinks) if len(sinks) > 1 else sinks[self._hub.sinks[0].name]

    def build_sink(self, sink: SinkDefinition) -> Sink:
        """One of the file's sinks. Raises SettingsError."""
        alone = len(self._hub.sinks) == 1
        context = replace(self._sink_context, settings=self.settings, name=sink.name, alone=alone)
        return find_sink_type(sink.type).build(sink.options, context)

    @property
    def sink_names(self) -> str:
        """For messages."""
        return ", ".join(sink.name for sink in self._hub.sinks) or str(self.config.sink)

    @property
    def guards(self) -> dict[str, str]:
        """By sink what decides between the events of one document: its version guard, `none` (the last one written), or
        `append`: each event is a row or message of its own.
        """
        if self._hub.sinks:
            return {sink.name: _guard_of(sink.type, sink.options) for sink in self._hub.sinks}
        options = self.config.writing if self.config.sink is SinkKind.COSMOS else self.config.sql
        return {str(self.config.sink): _guard_of(str(self.config.sink), options)}

    @property
    def sinks_with_marks(self) -> list[str]:
        """Sinks that skip what is at or below a mark of their own, wherever the checkpoint is. SQL alone has no other mark."""
        is_alone = len(self._hub.sinks) == 1
        return [
            sink.name
            for sink in self._hub.sinks
            if sink.type in _MARKED and not (is_alone and sink.type == "sql")
        ]

    def decoder(self) -> Decoder | None:
        """None: the sink reads bodies as JSON itself. Raises SettingsError for options that cannot work."""
        return build_decoder(self.config.decoder, self.config.decode, DecoderContext(self.settings))

    def preparation(self, sink: Sink | DocumentMapper) -> Preparation:
        """What becomes of events before this sink. Raises SettingsError for a transform that cannot be imported."""
        name, mapper, decoder = self.config.transform, self._hub.mapper, self.decoder()
        with _names_settings(self.settings):
            transform = mapping_of(load_transform(name)) if name else None
        mapping = transform if mapper is None or transform is None else mapper.after(transform)
        if mapper is not None and (decoder is None or self._hub.takes_tombstones):
            decoder = BodyReader(decoder)
        may_name_another = transform is not None and not isinstance(sink, RoutedSink)
        prepare = prepare_for_only(self.sink_names, sink.prepare) if may_name_another else sink.prepare
        return Preparation(prepare, decoder=decoder, mapping=mapping or mapper)

    def checkpoints(self) -> CheckpointStore:
        if self.config.checkpoints is StoreKind.BLOB:
            container = self._container(self.config.blob_container)
            return BlobCheckpointStore(container, self.stream, connection=self.config.storage_connection)
        return self._sql.checkpoints()

    @property
    def positions_place(self) -> str:
        """Where positions are stored, in words."""
        config = self.config
        if config.checkpoints is StoreKind.BLOB:
            return f"the container '{config.blob_container}' of {config.storage_connection}"
        alone = (
            self._hub.sinks[0].options.connection if config.sink is SinkKind.SQL and self._hub.sinks else ""
        )
        return f"the database of {alone or 'CONSUMER_SQL_URL'}"

    def other_positions(self) -> Iterator[tuple[str, CheckpointStore]]:
        """Where else the hub's positions may be: CONSUMER_CHECKPOINTS chooses the container or the database of CONSUMER_SQL_URL, and
        one that writes SQL alone keeps them with its rows. Nothing is created there. What these settings cannot open is left out.
        """
        config = self.config
        if config.checkpoints is StoreKind.SQL:
            with suppress(ConnectionSettingsError):
                container = self._container(config.blob_container)
                yield (
                    f"the container '{container.container_name}'",
                    BlobCheckpointStore(container, self.stream, connection=config.storage_connection),
                )
        of_sinks = [sink.options for sink in self._hub.sinks if sink.type == SinkKind.SQL]
        if not (of_sinks or config.sql.url):
            return
        with suppress(ImportError, SettingsError):
            from consumer.running.sql_parts import SqlParts, sql_options  # noqa: PLC0415 - as in _sql

            context = replace(self._sink_context, dry_run=True, shared={})
            seen = {"", config.sql.url if config.checkpoints is StoreKind.SQL else ""}
            for options in (*of_sinks, sql_options(config.sql)):
                url = context.settings.get(options.connection, "").strip()
                if url not in seen:
                    seen.add(url)
                    store = SqlParts(options, context).checkpoints()
                    yield (f"the database of {options.connection}", store)

    async def positions_in_other_containers(
        self, *, is_first: bool = True
    ) -> list[tuple[str, CheckpointStore]]:
        """As `other_positions`, where BLOB_CONTAINER was another one, or the storage connection one that is still set. `is_first`: none
        are stored here.
        """
        config = self.config
        if config.checkpoints is not StoreKind.BLOB:
            return []
        own, connection = config.blob_container, config.storage_connection
        where = self.settings, connection, self.stream, own
        names, accounts = await asyncio.gather(
            containers_with_positions(*where, is_first=is_first), accounts_with_positions(*where)
        )
        stores = [(f"the container '{name}'", self._container(name), connection) for name in names]
        for other in accounts:
            container = blob_container(self.settings, other, own)
            stores.append((f"the container '{own}' in the account of {other}", container, other))
        return [
            (text, BlobCheckpointStore(container, self.stream, connection=account))
            for text, container, account in stores
        ]

    def known_hubs(self) -> CheckpointStore:
        """The store in which a trigger notes which hub it receives from; its positions are in the host's own store."""
        group = f"{self.config.consumer_group}~trigger"
        return Parts(structs.replace(self.config, consumer_group=group), self.settings).checkpoints()

    def leases(self) -> LeaseStore:
        if self.config.checkpoints is StoreKind.BLOB:
            container = self._container(self.config.blob_container)
            return BlobLeaseStore(container, self.stream, connection=self.config.storage_connection)
        return self._sql.leases()

    def parked(self, *, create: bool = True) -> DeadLetterStore:
        """Beside the dead letters: a store of the same kind, under another consumer group."""
        group, dry_run = self.config.consumer_group + SUFFIX, self.config.dry_run or not create
        config = structs.replace(self.config, consumer_group=group, dry_run=dry_run)
        return Parts(config, self.settings).dead_letters()

    def parked_untried(self, *, behind_trigger: bool = False) -> Iterator[tuple[str, DeadLetterStore]]:
        """Where events may be parked that nobody tries again, and by whom: by a start that kept dead letters in Blob Storage, as most do,
        and behind the trigger here, too. Nothing is created there.
        """
        if behind_trigger:
            how = "by a start without the trigger, behind which nobody tries them again. Run"
            yield how, self.parked(create=False)
        if self.config.dead_letters is not DeadLettersKind.BLOB:
            with suppress(ConnectionSettingsError):  # then no start before this one had them there
                container = self._container(self.config.dead_letters_container)
                stream = structs.replace(self.stream, consumer_group=self.config.consumer_group + SUFFIX)
                how = (
                    f"in the container '{container.container_name}', by a start that kept its dead letters there, and this one does not"
                    " try them again. Put its settings back and run"
                )
                connection = self.config.storage_connection
                yield how, BlobDeadLetterStore(container, stream, create=False, connection=connection)

    def dead_letters(self) -> DeadLetterStore:
        config = self.config
        if config.dead_letters is DeadLettersKind.BLOB:
            container = self._container(config.dead_letters_container)
            return BlobDeadLetterStore(
                container, self.stream, create=not config.dry_run, connection=config.storage_connection
            )
        if config.dead_letters is DeadLettersKind.COSMOS:
            where = config.cosmos_connection, config.cosmos_database, config.dead_letters_container
            return CosmosDeadLetterStore(self.settings, *where, self.stream, create=not config.dry_run)
        return self._sql.dead_letters()

    def spans(self) -> Spans:
        """Raises SettingsError where tracing is asked for and cannot be."""
        return spans(self.config.tracing, self.config.hub, self.config.consumer_group)

    def receiver(self) -> HubReceiver:
        where = self.config.hub_connection, self.config.hub, self.config.consumer_group
        options = self.config.receiving
        kind = UntilReceiver if options.until else HubReceiver
        return kind(self.settings, *where, options=shared(ReceiverOptions, options))

    @property
    def stream(self) -> Stream:
        return Stream(self.namespace, self.config.hub, self.config.consumer_group)

    @cached_property
    def _sql(self) -> SqlParts:
        from consumer.running.sql_parts import (  # noqa: PLC0415 - SQLAlchemy is an optional extra
            SqlParts,
            sql_options,
        )

        return SqlParts(sql_options(self.config.sql), self._sink_context)

    @cached_property
    def _sink_context(self) -> SinkContext:
        config = self.config
        # A configuration may be made without app settings.
        settings = {"CONSUMER_SQL_URL": config.sql.url, **self.settings}
        return SinkContext(settings, config.hub, self.stream, config.sink, dry_run=config.dry_run)

    def _container(self, name: str) -> ContainerClient:
        return blob_container(self.settings, self.config.storage_connection, name)


@contextmanager
def _names_settings(settings: Mapping[str, str]) -> Iterator[None]:
    """Puts before a SettingsError the names of the consumer's settings whose values it quotes: a sink knows its options alone."""
    try:
        yield
    except SettingsError as error:
        text = str(error)
        names = [
            name
            for name, value in settings.items()
            if name.startswith(("CONSUMER_", "COSMOS_")) and value.strip() and f"'{value.strip()}'" in text
        ]
        if not names or any(name in text for name in names):
            raise
        raise SettingsError(f"{', '.join(names)}: {text}") from None


_MARKED = ("sql", "delta", "parquet")
_APPENDING = ("delta", "parquet", "event_hubs", "service_bus")


def _guard_of(kind: str, options: Any) -> str:
    if kind in _APPENDING or (kind == "sql" and not (options.key or options.handler)):
        return "append"
    return getattr(options, "guard", "") or "none"


METRICS: Mapping[MetricsExporter, Callable[[Identity, Mapping[str, str]], ConsumerMetrics]] = {
    MetricsExporter.NONE: lambda identity, _: ConsumerMetrics(identity),
    MetricsExporter.AZURE_MONITOR: azure_monitor_metrics,
    MetricsExporter.OTLP: otlp_metrics,
}


def sink_table(config: ConsumerConfig) -> dict[str, Any]:
    """The options of the sink that the app settings give, as a table of the file would have them."""
    if config.sink is SinkKind.SQL:
        return {name: value for name, value in structs.asdict(config.sql).items() if name != "url"}
    return {
        "connection": config.cosmos_connection,
        "database": config.cosmos_database,
        "container": config.cosmos_container,
        "id": config.id_from,
        "meta": config.meta,
        **structs.asdict(config.writing),
        "throughput_bucket": config.cosmos_bucket,
        "priority": str(config.cosmos_priority),
    }


def reporter(
    parts: Parts,
    instance: str,
    statistics: Callable[[], PipelineStatistics | None],
    limits: Mapping[Unit, Limits],
) -> Reporter:
    """The reporter of an instance. In a dry run it writes to the log only. `limits` are changed by orders.

    Raises SettingsError for a folder or an exporter that cannot work.
    """
    config, settings = parts.config, parts.settings
    identity = Identity(config.name, instance, config.hub, config.consumer_group)
    if config.dry_run:
        return Reporter(identity, statistics, every=config.telemetry.every)
    stats: TableStatsStore | None = None
    rates: RateFollower | None = None
    configured = {
        Unit.RECORDS: Rates(config.rate, config.fleet_rate),
        Unit.REQUEST_UNITS: Rates(config.request_units, config.fleet_request_units),
    }
    try:
        stats = TableStatsStore(settings, STORAGE)
        rates = RateFollower(TableRateStore(settings, STORAGE), config.name, configured, limits)
    except ConnectionSettingsError as error:
        log.warning("no row in ConsumerStats and no rate orders: %s", error)
    telemetry = config.telemetry
    return Reporter(
        identity,
        statistics,
        every=telemetry.every,
        stats=stats,
        rates=rates,
        landing=Landing(telemetry.folder, instance, rotate=telemetry.land) if telemetry.folder else None,
        metrics=METRICS[telemetry.exporter](identity, settings),
    )
