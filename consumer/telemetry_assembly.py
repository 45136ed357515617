"""The reporter of one instance, from its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from consumer.api import STORAGE
from consumer.config import ConsumerConfig, MetricsExporter
from consumer.errors import SettingsError
from consumer.metrics import ConsumerMetrics, azure_monitor_metrics
from consumer.rate_control import RateFollower, Rates, TableRateStore
from consumer.statistics import PipelineStatistics
from consumer.stats_store import TableStatsStore
from consumer.telemetry import Reporter
from consumer.telemetry_landing import Landing
from consumer.telemetry_records import Identity
from scaling.connections import ConnectionSettingsError

log = logging.getLogger("tidemark.consumer")

SetRate = Callable[[float | None], None]


def make_reporter(
    config: ConsumerConfig,
    settings: Mapping[str, str],
    instance: str,
    *,
    statistics: Callable[[], PipelineStatistics | None],
    set_rate: SetRate,
    set_fleet_rate: SetRate,
) -> Reporter:
    """A reporter to be started; it closes all it owns.

    The tables are those of AzureWebJobsStorage. Without that setting there is no row and no rate order, and a dry run
    has neither: nobody else may notice it. Raises SettingsError.
    """
    identity = Identity(config.name, instance, config.hub, config.consumer_group)
    stats, rates = None, None
    if not config.dry_run and any(name.partition("__")[0] == STORAGE for name in settings):
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
            raise SettingsError(str(error)) from error
    elif not config.dry_run:
        log.info("%s is not set: no row in ConsumerStats, and no rate orders are followed", STORAGE)
    azure = config.metrics_exporter is MetricsExporter.AZURE_MONITOR
    return Reporter(
        identity,
        statistics,
        every=config.telemetry_every,
        stats=stats,
        rates=rates,
        landing=Landing(config.telemetry_folder, instance) if config.telemetry_folder else None,
        metrics=azure_monitor_metrics(identity, settings) if azure else ConsumerMetrics(identity),
    )
