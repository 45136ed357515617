"""The consumer's OpenTelemetry metrics. `python -m consumer.telemetry.metrics` prints their part of docs/metrics.md.

Without an exporter only the API is used: nothing is sent, unless the host process has set up a meter provider.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import structs
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from consumer.core.statistics import PipelineStatistics
from consumer.telemetry.instruments import BY_PARTITION, BY_REASON, INSTRUMENTS, Instrument
from consumer.telemetry.interval import Interval
from consumer.telemetry.records import Identity
from tidemark.foundation.azure.exporting import azure_monitor_provider, otlp_provider
from tidemark.foundation.sanitize import describe_error

log = logging.getLogger("tidemark.consumer")

METER = "tidemark.consumer"


class ConsumerMetrics:
    """Feeds the instruments. Every measurement has the attributes consumer, instance, hub and consumer group."""

    def __init__(
        self,
        identity: Identity,
        provider: MeterProvider | None = None,
        *,
        shutdown: Callable[[float], object] | None = None,
    ) -> None:
        """`provider` gets the metrics; None means the one that the process has set up, if any.

        `shutdown` is called at the end, on a thread, with the milliseconds that it may take.
        """
        self._shutdown = shutdown
        self._attributes: dict[str, str] = structs.asdict(identity)
        self._shown: PipelineStatistics | None = None
        meter = (provider or get_meter_provider()).get_meter(METER)
        self._counters = []
        for metric in INSTRUMENTS:
            if metric.kind in {"counter", BY_REASON}:
                counter = meter.create_counter(metric.name, metric.unit, metric.description)
                self._counters.append((metric.read, counter))
            else:
                meter.create_observable_gauge(
                    metric.name, [self._observer(metric)], metric.unit, metric.description
                )

    def record(self, interval: Interval, statistics: PipelineStatistics) -> None:
        """Adds an interval; gauges show `statistics` until the next one."""
        self._shown = statistics
        for read, counter in self._counters:
            grown = read(interval)
            if isinstance(grown, Mapping):
                for reason, count in grown.items():
                    counter.add(count, {**self._attributes, "reason": reason})
            else:
                counter.add(grown, self._attributes)

    async def aclose(self, deadline: float) -> None:
        """Sends the remaining metrics, until `deadline` (of the loop's clock). Never raises."""
        left = deadline - asyncio.get_running_loop().time()
        if self._shutdown is None or left <= 0:
            return
        try:
            await asyncio.to_thread(self._shutdown, left * 1000)
        except Exception as error:  # telemetry ends nothing
            log.warning("the last metrics were not sent: %s", describe_error(error))

    def _observer(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            if self._shown is None:
                return
            shown: list[tuple[dict[str, str], Any]] = [({}, self._shown)]
            if instrument.kind == BY_PARTITION:
                shown = [({"partition": state.partition}, state) for state in self._shown.partitions]
            for attributes, source in shown:
                value = instrument.read(source)
                if value is not None:
                    yield Observation(value, {**self._attributes, **attributes})

        return observe


def azure_monitor_metrics(identity: Identity, settings: Mapping[str, str]) -> ConsumerMetrics:
    """Metrics that go to Application Insights every minute; `aclose` sends the last, with a deadline.

    Raises SettingsError without APPLICATIONINSIGHTS_CONNECTION_STRING, or without the extra `azure-monitor`.
    """
    provider = azure_monitor_provider("CONSUMER_METRICS_EXPORTER", METER, settings)
    return ConsumerMetrics(identity, provider, shutdown=provider.shutdown)


def otlp_metrics(identity: Identity, settings: Mapping[str, str]) -> ConsumerMetrics:
    """Metrics that go where OpenTelemetry's own settings (OTEL_*) say. Raises SettingsError without the extra `otlp`."""
    provider = otlp_provider("CONSUMER_METRICS_EXPORTER", METER, settings)
    return ConsumerMetrics(identity, provider, shutdown=provider.shutdown)


HEAD = f"""# Metrics

Made from the tables in `consumer/telemetry/instruments.py` and `scaling/service/metrics.py`. After a change, run
`python -m consumer.telemetry.metrics > docs/metrics.md; python -m scaling.service.metrics >> docs/metrics.md`.

## The consumer

All instruments belong to the meter `{METER}` and are fed every `CONSUMER_TELEMETRY_EVERY`. Their attributes are
`consumer`, `instance`, `hub` and `consumer_group`; those of a partition also carry `partition`. How they are exported
stands in [consuming](consuming.md#the-consumers-telemetry).

| name | kind | unit | meaning |
|---|---|---|---|
"""


def document() -> str:
    """The first part of docs/metrics.md."""
    lines = (
        f"| `{metric.name}` | {metric.kind} | `{metric.unit}` | {metric.description} |\n"
        for metric in INSTRUMENTS
    )
    return HEAD + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(document())
