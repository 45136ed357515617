"""Writes tests/data/metric_requests.json: what Microsoft's own clients send for a batch of metrics and for a query of a log.

    pip install azure-monitor-query azure-monitor-querymetrics    # beside the packages of the tests, in an environment of its own
    python -m tests.data.make_metric_requests

They ask the local server, so that it is known, too, that they understand its answers. Their versions stand in what is written.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from azure.core.credentials import AccessToken

from devstack.monitor import MonitorServer
from devstack.resource_manager.metrics import MetricsApi
from devstack.servers.certificates import ensure_certificate

RECORDED = Path(__file__).parent / "metric_requests.json"
NOW = 1_700_000_040
WORKSPACE = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
QUERY = "requests | count"
BUS = (
    "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg"
    "/providers/Microsoft.ServiceBus/namespaces/bus"
)
HEADERS = ("Content-Type", "Prefer")


def monitor(folder: Path) -> MonitorServer:
    """A server with one metric, whose newest value is 1, and one log, whose only value is 42."""
    metrics = MetricsApi(lambda: NOW + 600.0, {})
    metrics.add(BUS, "IncomingMessages", {NOW - 60.0 * n: float(n) for n in range(6)}, EntityName="orders")
    return MonitorServer(ensure_certificate(folder), metrics, logs={QUERY: [[42]]})


class Token:
    """Of an identity that everybody knows."""

    async def get_token(self, *_scopes, **_options):
        return AccessToken("token", 4_000_000_000)

    async def close(self): ...

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_): ...


class Recorder:
    """Keeps the request that led to an answer, as it was sent."""

    def __init__(self, base):
        self.base, self.kept = base, {}

    def __call__(self, answer):
        sent = answer.http_request
        self.kept = {
            "method": sent.method,
            "target": sent.url.removeprefix(self.base),
            "headers": {name: sent.headers[name] for name in HEADERS if name in sent.headers},
            "body": sent.content if isinstance(sent.content, str) else sent.content.decode(),
        }


async def recorded():
    """By what is asked: the client and its version, its request, and the value it read."""
    from azure.monitor.query.aio import LogsQueryClient  # noqa: PLC0415 - no dependency of the tests
    from azure.monitor.querymetrics.aio import MetricsClient  # noqa: PLC0415 - the same

    with TemporaryDirectory() as folder:
        async with monitor(Path(folder)) as server:
            kept, options = Recorder(server.base_url), {"connection_verify": str(server.ca_path)}
            async with MetricsClient(server.base_url, Token(), **options) as client:
                [answer] = await client.query_resources(
                    resource_ids=[BUS],
                    metric_namespace="Microsoft.ServiceBus/namespaces",
                    metric_names=["IncomingMessages"],
                    timespan=(datetime.fromtimestamp(NOW - 300, UTC), datetime.fromtimestamp(NOW, UTC)),
                    granularity=timedelta(minutes=1),
                    aggregations=["Total"],
                    filter="EntityName eq 'orders'",
                    raw_response_hook=kept,
                )
            points = answer.metrics[0].timeseries[0].data
            metrics = {
                "client": _client("azure-monitor-querymetrics"),
                **kept.kept,
                "value": points[-1].total,
            }
            async with LogsQueryClient(Token(), endpoint=server.base_url, **options) as client:
                found = await client.query_workspace(
                    WORKSPACE, QUERY, timespan=timedelta(hours=1), server_timeout=10, raw_response_hook=kept
                )
            logs = {
                "client": _client("azure-monitor-query"),
                **kept.kept,
                "value": found.tables[0].rows[0][0],
            }
    return {"metrics": metrics, "logs": logs}


def _client(name):
    return f"{name} {version(name)}"


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(asyncio.run(recorded()), indent=2) + "\n", encoding="utf-8")
