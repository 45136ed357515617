"""Builds a consumer from its settings. Clients connect on first use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import structs

from consumer.config import ConsumerConfig, DeadLettersKind, MetricsExporter, SinkKind, StoreKind
from consumer.core.statistics import PipelineStatistics
from consumer.mapping.documents import MappingOptions
from consumer.mapping.transforms import load_transform
from consumer.model import Stream
from consumer.ports import CheckpointStore, DeadLetterStore, LeaseStore, Sink
from consumer.receiving.receiver import HubReceiver, ReceiverOptions
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.stores.blob.checkpoints import BlobCheckpointStore
from consumer.stores.blob.dead_letters import BlobDeadLetterStore
from consumer.stores.blob.leases import BlobLeaseStore
from consumer.stores.cosmos.dead_letters import CosmosDeadLetterStore
from consumer.telemetry.landing import Landing
from consumer.telemetry.metrics import ConsumerMetrics, azure_monitor_metrics
from consumer.telemetry.rate_orders import RateFollower, Rates, TableRateStore
from consumer.telemetry.records import Identity
from consumer.telemetry.reporter import Reporter
from consumer.telemetry.stats_store import TableStatsStore
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.azure.connections import ConnectionSettingsError, blob_container, event_hubs_endpoint
from tidemark.foundation.secrets.known import hide_settings

if TYPE_CHECKING:  # loaded only by those who use them
    from azure.storage.blob.aio import ContainerClient

    from consumer.running.sql_parts import SqlParts

log = logging.getLogger("tidemark.consumer")


class Parts:
    """Creates the adapters that a configuration names.

    The caller of a method closes what it returns. SQL adapters share one database, which the last of them closes.
    """

    def __init__(self, config: ConsumerConfig, settings: Mapping[str, str]) -> None:
        """Raises SettingsError for a connection that cannot work."""
        hide_settings(settings)
        self.config = config
        self.settings = settings
        self.namespace = event_hubs_endpoint(settings, config.hub_connection).address

    def sink(self) -> Sink:
        config = self.config
        transform = load_transform(config.transform) if config.transform else None
        if config.sink is SinkKind.COSMOS:
            return CosmosBulkSink(
                self.settings,
                database=config.cosmos_database,
                container=config.cosmos_container,
                mapping=MappingOptions(config.hub, config.id_from, transform, config.meta),
                connection=config.cosmos_connection,
            )
        return self._sql.sink()

    def checkpoints(self) -> CheckpointStore:
        if self.config.checkpoints is StoreKind.BLOB:
            return BlobCheckpointStore(self._container(self.config.blob_container), self.stream)
        return self._sql.checkpoints()

    def known_hubs(self) -> CheckpointStore:
        """The store in which a trigger notes which hub it receives from; its positions are in the host's own store."""
        group = f"{self.config.consumer_group}~trigger"
        return Parts(structs.replace(self.config, consumer_group=group), self.settings).checkpoints()

    def leases(self) -> LeaseStore:
        if self.config.checkpoints is StoreKind.BLOB:
            return BlobLeaseStore(self._container(self.config.blob_container), self.stream)
        return self._sql.leases()

    def dead_letters(self) -> DeadLetterStore:
        config = self.config
        if config.dead_letters is DeadLettersKind.BLOB:
            return BlobDeadLetterStore(self._container(config.dead_letters_container), self.stream)
        if config.dead_letters is DeadLettersKind.COSMOS:
            where = config.cosmos_connection, config.cosmos_database, config.dead_letters_container
            return CosmosDeadLetterStore(self.settings, *where, self.stream)
        return self._sql.dead_letters()

    def receiver(self) -> HubReceiver:
        where = self.config.hub_connection, self.config.hub, self.config.consumer_group
        return HubReceiver(self.settings, *where, options=ReceiverOptions(shortcut=self.config.shortcut))

    @property
    def stream(self) -> Stream:
        return Stream(self.namespace, self.config.hub, self.config.consumer_group)

    @cached_property
    def _sql(self) -> SqlParts:
        from consumer.running.sql_parts import SqlParts  # noqa: PLC0415 - SQLAlchemy is an optional extra

        return SqlParts(self.config, self.stream)

    def _container(self, name: str) -> ContainerClient:
        return blob_container(self.settings, self.config.storage_connection, name)


def reporter(
    parts: Parts,
    instance: str,
    statistics: Callable[[], PipelineStatistics | None],
    *,
    set_rate: Callable[[float | None], None],
    set_fleet_rate: Callable[[float | None], None],
) -> Reporter:
    """The reporter of an instance. In a dry run it writes to the log only.

    Raises SettingsError for a folder or an exporter that cannot work.
    """
    config, settings = parts.config, parts.settings
    identity = Identity(config.name, instance, config.hub, config.consumer_group)
    if config.dry_run:
        return Reporter(identity, statistics, every=config.telemetry.every)
    stats: TableStatsStore | None = None
    rates: RateFollower | None = None
    try:
        stats = TableStatsStore(settings, STORAGE)
        rates = RateFollower(
            TableRateStore(settings, STORAGE),
            config.name,
            Rates(config.rate, config.fleet_rate),
            set_rate=set_rate,
            set_fleet_rate=set_fleet_rate,
        )
    except ConnectionSettingsError as error:
        log.warning("no row in ConsumerStats and no rate orders: %s", error)
    telemetry = config.telemetry
    monitor = telemetry.exporter is MetricsExporter.AZURE_MONITOR
    return Reporter(
        identity,
        statistics,
        every=telemetry.every,
        stats=stats,
        rates=rates,
        landing=Landing(telemetry.folder, instance, rotate=telemetry.land) if telemetry.folder else None,
        metrics=azure_monitor_metrics(identity, settings) if monitor else ConsumerMetrics(identity),
    )
