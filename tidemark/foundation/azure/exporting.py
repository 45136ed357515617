"""OpenTelemetry metrics to Application Insights, or by OTLP to any collector, where the extra for it is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.version import install_hint

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

CONNECTION = "APPLICATIONINSIGHTS_CONNECTION_STRING"
EXPORT_TIMEOUT_MS = 10_000.0
"""Chosen: a program that ends waits for the last export no longer than this; the default of OpenTelemetry is 30 s."""


def azure_monitor_provider(setting: str, service: str, settings: Mapping[str, str]) -> MeterProvider:
    """A provider that sends every minute; the caller shuts it down. `setting` is the setting that requests it.

    Raises SettingsError without APPLICATIONINSIGHTS_CONNECTION_STRING, or without the extra `azure-monitor`.
    """
    text = settings.get(CONNECTION, "").strip()
    if not text:
        raise SettingsError(
            f"{CONNECTION} is not set; {setting}=azure_monitor needs it: InstrumentationKey=...;IngestionEndpoint=..."
        )
    try:
        from azure.monitor.opentelemetry.exporter import AzureMonitorMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    except ImportError as error:
        raise SettingsError(
            f"{setting} is 'azure_monitor', but {error.name} is not installed: {install_hint('azure-monitor')}"
        ) from error
    try:
        exporter = AzureMonitorMetricExporter(connection_string=text)
    except ValueError as error:
        raise SettingsError(f"{CONNECTION} cannot be used: {error}") from error
    reader = PeriodicExportingMetricReader(exporter, export_timeout_millis=EXPORT_TIMEOUT_MS)
    return MeterProvider(
        metric_readers=[reader],
        resource=Resource.create({SERVICE_NAME: service}),
        shutdown_on_exit=False,
    )


OTLP = "OTEL_"
"""What OpenTelemetry's own settings begin with: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_METRIC_EXPORT_INTERVAL, OTEL_SERVICE_NAME, ..."""


def otlp_provider(setting: str, service: str, settings: Mapping[str, str]) -> MeterProvider:
    """A provider of metrics that sends by OTLP over HTTP; the caller shuts it down. `setting` is the setting that requests it.

    Raises SettingsError without the extra `otlp`, and for a protocol that it does not have.
    """
    with _otlp(setting, settings, "METRICS"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_timeout_millis=EXPORT_TIMEOUT_MS)
    return MeterProvider(metric_readers=[reader], resource=_named(service), shutdown_on_exit=False)


def otlp_tracing(setting: str, service: str, settings: Mapping[str, str]) -> TracerProvider:
    """As `otlp_provider` for spans; it becomes the provider of this process."""
    with _otlp(setting, settings, "TRACES"):
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    provider = TracerProvider(resource=_named(service), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


@contextmanager
def _otlp(setting: str, settings: Mapping[str, str], signal: str) -> Iterator[None]:
    """Imports the exporter. OpenTelemetry reads its settings from the environment; those of a file are put there, where the
    environment has none.
    """
    for name, value in settings.items():
        if name.startswith(OTLP):
            os.environ.setdefault(name, value)
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(name, "").strip()
        if protocol not in {"", "http/protobuf"}:
            raise SettingsError(
                f"{name} is '{protocol}'; accepted with {setting}=otlp: http/protobuf (port 4318 of a collector)"
            )
        if protocol:
            break
    try:
        yield
    except ImportError as error:
        raise SettingsError(
            f"{setting} is 'otlp', but {error.name} is not installed: {install_hint('otlp')}"
        ) from error


def _named(service: str) -> Resource:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    return Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service})
