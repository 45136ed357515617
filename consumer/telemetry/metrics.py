"""The consumer's OpenTelemetry metrics. `python -m consumer.telemetry.metrics` prints docs/metrics.md, made of INSTRUMENTS.

Without an exporter only the API is used: nothing is sent, unless the host process has set up a meter provider.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from consumer.core.statistics import PartitionStatistics, PipelineStatistics
from consumer.telemetry.interval import Interval
from consumer.telemetry.records import Identity
from foundation.errors import SettingsError

log = logging.getLogger("tidemark.consumer")

METER = "tidemark.consumer"
EXPORT_TIMEOUT_MS = 10_000.0
CONNECTION = "APPLICATIONINSIGHTS_CONNECTION_STRING"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


class Instrument(Struct, frozen=True):
    """One metric. Counters take what an interval adds, gauges what a picture shows; exactly one of them is set."""

    name: str
    unit: str
    description: str
    added: Callable[[Interval], float] | None = None
    shown: Callable[[PipelineStatistics], float | None] | None = None
    by_partition: Callable[[PartitionStatistics], float | None] | None = None

    @property
    def kind(self) -> Kind:
        return Kind.COUNTER if self.added is not None else Kind.GAUGE


INSTRUMENTS: tuple[Instrument, ...] = (
    Instrument(
        "consumer.events.received",
        "{event}",
        "Events taken from the hub, those skipped because they were settled before included",
        added=lambda i: i.received,
    ),
    Instrument(
        "consumer.events.expired",
        "{event}",
        "Events that retention took before they were received: the consumer is slower than the hub forgets",
        added=lambda i: i.expired,
    ),
    Instrument(
        "consumer.records.written",
        "{record}",
        "Records written: successes",
        added=lambda i: i.successes,
    ),
    Instrument(
        "consumer.records.attempted",
        "{record}",
        "Records sent to the sink, each retry again",
        added=lambda i: i.attempts,
    ),
    Instrument(
        "consumer.records.retried",
        "{record}",
        "Records to be sent again: throttled, transient or unknown outcomes",
        added=lambda i: i.retries,
    ),
    Instrument(
        "consumer.records.throttled",
        "{record}",
        "Those of the retried that were answered 429",
        added=lambda i: i.throttled,
    ),
    Instrument(
        "consumer.events.dead_lettered",
        "{event}",
        "Events rejected or unreadable whose dead letter was stored: failures",
        added=lambda i: i.failures,
    ),
    Instrument(
        "consumer.request_units",
        "{RU}",
        "Request units charged, for refused attempts too",
        added=lambda i: i.request_units,
    ),
    Instrument(
        "consumer.request_units.written",
        "{RU}",
        "Request units charged for records written; divided by consumer.records.written the RU per record",
        added=lambda i: i.written_units,
    ),
    Instrument("consumer.checkpoints", "{checkpoint}", "Checkpoints saved", added=lambda i: i.checkpoints),
    Instrument(
        "consumer.checkpoints.failed",
        "{checkpoint}",
        "Checkpoints that could not be saved; saved again with the next ones",
        added=lambda i: i.checkpoints_failed,
    ),
    Instrument(
        "consumer.backlog",
        "{event}",
        "Events received and not settled; ALLOW_BACKLOG_OF is the limit",
        shown=lambda s: s.backlog_count,
    ),
    Instrument(
        "consumer.backlog.size",
        "By",
        "Bytes of bodies and documents of the backlog",
        shown=lambda s: s.backlog_bytes,
    ),
    Instrument(
        "consumer.oldest_age",
        "s",
        "Time since the first attempt of the oldest event begun and not settled; ALLOW_BACKLOG_TO is the limit",
        shown=lambda s: s.oldest_age,
    ),
    Instrument(
        "consumer.rate_limit",
        "{record}/s",
        "Records per second that may begin; missing without a limit",
        shown=lambda s: s.rate_limit,
    ),
    Instrument("consumer.batches", "{batch}", "Batches being written", shown=lambda s: s.in_flight_batches),
    Instrument(
        "consumer.paused",
        "1",
        "1 while receiving is paused by back-pressure, else 0",
        shown=lambda s: s.paused,
    ),
    Instrument("consumer.partitions", "{partition}", "Partitions owned", shown=lambda s: len(s.partitions)),
    Instrument(
        "consumer.lag",
        "{event}",
        "Events of a partition not settled, up to the newest in the hub; missing while that is unknown",
        by_partition=lambda p: p.lag,
    ),
    Instrument(
        "consumer.in_flight",
        "{event}",
        "Events of a partition received and not settled",
        by_partition=lambda p: p.unsettled,
    ),
)


class ConsumerMetrics:
    """Feeds the instruments. All measurements carry the consumer, the instance, the hub and the consumer group."""

    def __init__(
        self,
        identity: Identity,
        provider: MeterProvider | None = None,
        *,
        shutdown: Callable[[float], object] | None = None,
    ) -> None:
        """`provider` is the one to report to; without, the one that the process has set up, if any. `shutdown` is
        called at the end with the milliseconds it may take, on a thread.
        """
        self._shutdown = shutdown
        self._attributes = {
            "consumer": identity.consumer,
            "instance": identity.instance,
            "hub": identity.hub,
            "consumer_group": identity.consumer_group,
        }
        self._shown: PipelineStatistics | None = None
        meter = (provider or get_meter_provider()).get_meter(METER)
        self._counters = []
        for each in INSTRUMENTS:
            if each.added is not None:
                counter = meter.create_counter(each.name, each.unit, each.description)
                self._counters.append((each.added, counter))
            else:
                meter.create_observable_gauge(each.name, [self._observer(each)], each.unit, each.description)

    def record(self, interval: Interval, statistics: PipelineStatistics) -> None:
        """Adds an interval; gauges show `statistics` until the next one."""
        self._shown = statistics
        for added, counter in self._counters:
            counter.add(added(interval), self._attributes)

    async def aclose(self, deadline: float) -> None:
        """Sends what is left, until `deadline` (of the loop's clock). Never raises."""
        left = deadline - asyncio.get_running_loop().time()
        if self._shutdown is None or left <= 0:
            return
        try:
            await asyncio.to_thread(self._shutdown, left * 1000)
        except Exception as error:  # noqa: BLE001 - telemetry ends nothing
            log.warning("the last metrics were not sent: %r", error)

    def _observer(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            if self._shown is None:
                return
            for attributes, value in _values(instrument, self._shown):
                if value is not None:
                    yield Observation(value, {**self._attributes, **attributes})

        return observe


def _values(
    instrument: Instrument, statistics: PipelineStatistics
) -> Iterator[tuple[dict[str, str], float | None]]:
    if instrument.shown is not None:
        yield {}, instrument.shown(statistics)
    if instrument.by_partition is not None:
        for each in statistics.partitions:
            yield {"partition": each.partition}, instrument.by_partition(each)


def azure_monitor_metrics(identity: Identity, settings: Mapping[str, str]) -> ConsumerMetrics:
    """Metrics that go to Application Insights every minute.

    Raises SettingsError without APPLICATIONINSIGHTS_CONNECTION_STRING, or without the extra `azure-monitor`.
    """
    text = settings.get(CONNECTION, "").strip()
    if not text:
        raise SettingsError(
            f"{CONNECTION} is not set; CONSUMER_METRICS_EXPORTER=azure_monitor needs it:"
            " InstrumentationKey=...;IngestionEndpoint=..."
        )
    try:
        from azure.monitor.opentelemetry.exporter import AzureMonitorMetricExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider as Provider  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            f"CONSUMER_METRICS_EXPORTER is 'azure_monitor', but {error.name} is not installed:"
            " `pip install tidemark[azure-monitor]`"
        ) from error
    try:
        exporter = AzureMonitorMetricExporter(connection_string=text)
    except ValueError as error:
        raise SettingsError(f"{CONNECTION} cannot be used: {error}") from error
    reader = PeriodicExportingMetricReader(exporter, export_timeout_millis=EXPORT_TIMEOUT_MS)
    provider = Provider(
        metric_readers=[reader],
        resource=Resource.create({SERVICE_NAME: METER}),
        shutdown_on_exit=False,  # `aclose` does it, with a deadline
    )
    return ConsumerMetrics(identity, provider, shutdown=provider.shutdown)


HEAD = f"""# Metrics of the consumer

Made from the table in `consumer/telemetry/metrics.py`: after a change, run `python -m consumer.telemetry.metrics > docs/metrics.md`.

All instruments belong to the meter `{METER}` and are fed every `CONSUMER_TELEMETRY_EVERY`. Their attributes are
`consumer`, `instance`, `hub` and `consumer_group`; those of a partition also carry `partition`. How they are exported
stands in [consuming](consuming.md#the-consumers-telemetry).

| name | kind | unit | meaning |
|---|---|---|---|
"""


def document() -> str:
    """docs/metrics.md."""
    lines = []
    for each in INSTRUMENTS:
        kind = f"{each.kind} by partition" if each.by_partition is not None else str(each.kind)
        lines.append(f"| `{each.name}` | {kind} | `{each.unit}` | {each.description} |\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(document())
