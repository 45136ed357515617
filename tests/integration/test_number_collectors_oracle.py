"""The wire form of Azure Monitor's data planes against Microsoft's own clients, where these are installed.

They are no dependency of Tidemark: each would add packages, a pipeline and a quarter of a second for one request that it
sends in the same form. To run this: `pip install azure-monitor-query azure-monitor-querymetrics`.
"""

from datetime import UTC, datetime, timedelta

import pytest
from azure.core.credentials import AccessToken

from devstack.monitor import MonitorServer
from devstack.resource_manager.metrics import MetricsApi
from devstack.servers.certificates import ensure_certificate
from scaling.collectors.number.log_query import LogQueryCollector
from scaling.collectors.number.metric_answers import Series, value_of
from scaling.collectors.number.metrics_reader import MetricsReader
from tests.arm_support import arm_settings, resource_manager

pytestmark = pytest.mark.wire
NOW = 1_700_000_040
WORKSPACE = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
BUS = (
    "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg"
    "/providers/Microsoft.ServiceBus/namespaces/bus"
)
SERIES = Series(
    BUS, "IncomingMessages", "total", 60, (("EntityName", "orders"),), "Microsoft.ServiceBus/namespaces"
)


class Token:
    async def get_token(self, *_scopes, **_options):
        return AccessToken("token", 4_000_000_000)

    async def close(self): ...

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_): ...


@pytest.fixture
async def server(tmp_path_factory):
    metrics = MetricsApi(lambda: NOW + 600.0, {})
    metrics.add(BUS, "IncomingMessages", {NOW - 60.0 * n: float(n) for n in range(6)}, EntityName="orders")
    certificate = ensure_certificate(tmp_path_factory.getbasetemp() / "certificate")
    async with MonitorServer(certificate, metrics, logs={"requests | count": [[42]]}) as server:
        yield server


def meant(asked):
    """A request as the service understands it: names of parameters have no case, and times are times."""
    query = {name.casefold(): value for name, value in asked.query.items()}
    for name in ("starttime", "endtime"):
        query[name] = datetime.fromisoformat(query[name]).timestamp()
    return asked.method, asked.path, query, asked.body, asked.headers["Content-Type"]


async def test_metrics_of_several_resources_are_asked_for_as_the_sdk_does(
    server, tmp_path_factory, monkeypatch
):
    sdk = pytest.importorskip("azure.monitor.querymetrics.aio")
    async with sdk.MetricsClient(server.base_url, Token(), connection_verify=str(server.ca_path)) as client:
        [theirs] = await client.query_resources(
            resource_ids=[BUS],
            metric_namespace=SERIES.namespace,
            metric_names=["IncomingMessages"],
            timespan=(datetime.fromtimestamp(NOW - 300, UTC), datetime.fromtimestamp(NOW, UTC)),
            granularity=timedelta(minutes=1),
            aggregations=["Total"],
            filter="EntityName eq 'orders'",
        )
    async with resource_manager(tmp_path_factory, monkeypatch) as management:
        reader = MetricsReader(arm_settings(management, AZURE_METRICS_ENDPOINT=server.base_url))
        ours = await reader.read(SERIES, NOW, region="westeurope", now=float(NOW))
        await reader.close()

    first, second = map(meant, server.asked)
    first[2]["aggregation"] = first[2]["aggregation"].casefold()
    assert second == first
    points = theirs.metrics[0].timeseries[0].data
    assert value_of(ours, SERIES, NOW) == points[-1].total == 1.0


async def test_a_log_is_asked_as_the_sdk_does(server, tmp_path_factory, monkeypatch):
    sdk = pytest.importorskip("azure.monitor.query.aio")
    async with sdk.LogsQueryClient(
        Token(), endpoint=server.base_url, connection_verify=str(server.ca_path)
    ) as client:
        answer = await client.query_workspace(
            WORKSPACE, "requests | count", timespan=timedelta(hours=1), server_timeout=10
        )
    async with resource_manager(tmp_path_factory, monkeypatch) as management:
        settings = arm_settings(management, AZURE_LOGS_ENDPOINT=server.base_url)
        params = LogQueryCollector.Params(workspace=WORKSPACE, query="requests | count")
        collector = LogQueryCollector(params, settings)
        reading = await collector.collect(now=float(NOW))
        await collector.aclose()

    theirs, ours = server.asked
    assert (ours.method, ours.path, ours.headers["Prefer"]) == (
        theirs.method,
        theirs.path,
        theirs.headers["Prefer"],
    )
    assert ours.body["query"] == theirs.body["query"]
    assert (theirs.body["timespan"], ours.body["timespan"]) in {("PT1H", "PT3600S"), ("PT3600.0S", "PT3600S")}
    assert reading.values["value"] == answer.tables[0].rows[0][0] == 42
