"""The instruments: what they say, and that they reach an exporter."""

import asyncio
import gzip
import json
import os
import uuid

import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from consumer.telemetry.interval import Interval
from consumer.telemetry.metrics import INSTRUMENTS, ConsumerMetrics, azure_monitor_metrics, otlp_metrics
from tests.support.consumer.telemetry import IDENTITY, partition, statistics
from tidemark.foundation.errors import SettingsError

INTERVAL = Interval(seconds=5.0, received=10, written=9, dead_letters=1, attempts=12, retried=3, throttled=2)


def read(reader):
    """Values by name of the metric and partition."""
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    found[metric.name, point.attributes.get("partition")] = point.value
    return found


def test_every_instrument_has_a_name_of_its_own():
    names = [instrument.name for instrument in INSTRUMENTS]

    assert len(set(names)) == len(names)


def test_counters_add_up_and_gauges_show_the_newest_picture():
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    metrics = ConsumerMetrics(IDENTITY, provider)
    metrics.record(INTERVAL, statistics(partition("0"), partition("1", last=None)))
    metrics.record(INTERVAL, statistics(partition("1", last=None), partition("2"), rate_limit=None))
    found = read(reader)
    provider.shutdown()

    assert (found["consumer.records.written", None], found["consumer.records.throttled", None]) == (18, 4)
    assert found["consumer.events.dead_lettered", None] == 2
    assert found["consumer.backlog", None] == 60
    assert {name: value for name, value in found.items() if name[0] == "consumer.lag"} == {
        ("consumer.lag", "2"): 160
    }
    assert ("consumer.rate_limit", None) not in found


def test_without_a_provider_metrics_go_nowhere_and_cost_nothing():
    ConsumerMetrics(IDENTITY).record(INTERVAL, statistics())


@pytest.mark.parametrize(("text", "told"), [("", "is not set"), ("InstrumentationKey=x", "cannot be used")])
def test_an_unusable_connection_string_is_told_by_name(text, told):
    with pytest.raises(SettingsError, match=f"APPLICATIONINSIGHTS_CONNECTION_STRING {told}"):
        azure_monitor_metrics(IDENTITY, {"APPLICATIONINSIGHTS_CONNECTION_STRING": text})


async def listening(handler):
    """A collector that answers every request by `handler`."""
    app = web.Application()
    app.router.add_post("/{tail:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


@pytest.mark.wire
async def test_otlp_goes_where_opentelemetrys_own_settings_say(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    sent = []

    async def take(request):
        sent.append(
            (
                request.path,
                request.headers["x-team"],
                ExportMetricsServiceRequest.FromString(await request.read()),
            )
        )
        return web.Response()

    runner, port = await listening(take)
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=flights",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_SERVICE_NAME": "landings",
    }
    for name in settings:
        monkeypatch.setenv(name, "")  # so that what is put into the environment is taken out at the end
        monkeypatch.delenv(name)
    try:
        metrics = otlp_metrics(IDENTITY, settings)
        metrics.record(INTERVAL, statistics(partition("0")))
        await metrics.aclose(asyncio.get_running_loop().time() + 20)
    finally:
        await runner.cleanup()

    (path, team, request) = sent[-1]
    (resource,) = request.resource_metrics
    names = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    assert (path, team) == ("/v1/metrics", "flights")
    assert "landings" in {each.value.string_value for each in resource.resource.attributes}
    assert {"consumer.records.written", "consumer.lag"} <= names


def test_a_protocol_that_otlp_does_not_have_here_is_told(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(
        SettingsError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; accepted with .*=otlp: http/protobuf"
    ):
        otlp_metrics(IDENTITY, {})


@pytest.mark.wire
async def test_azure_monitor_gets_the_last_metrics_at_the_end(monkeypatch):
    monkeypatch.setenv("APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL", "true")
    monkeypatch.setenv("APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED", "true")
    monkeypatch.setenv("APPLICATIONINSIGHTS_SDKSTATS_DISABLED", "true")
    sent = []

    async def track(request):
        body = await request.read()
        sent.extend(json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body))
        return web.json_response({"itemsReceived": 1, "itemsAccepted": 1, "errors": []})

    runner, port = await listening(track)
    key = f"InstrumentationKey={uuid.uuid4()}"  # of its own: the exporter sends again what it kept on disk
    try:
        text = f"{key};IngestionEndpoint=http://127.0.0.1:{port}/"
        metrics = azure_monitor_metrics(IDENTITY, {"APPLICATIONINSIGHTS_CONNECTION_STRING": text})
        metrics.record(INTERVAL, statistics(partition("0")))
        await metrics.aclose(asyncio.get_running_loop().time() + 20)
    finally:
        await runner.cleanup()

    values = {
        item["data"]["baseData"]["metrics"][0]["name"]: item["data"]["baseData"]["metrics"][0]["value"]
        for item in sent
    }
    assert (values["consumer.records.written"], values["consumer.lag"]) == (9, 160)
