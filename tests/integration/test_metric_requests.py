"""The wire form of Azure Monitor's data planes against Microsoft's own clients, as tests/data/make_metric_requests.py recorded them.

They are no dependency of Tidemark: each would add packages, a pipeline and a quarter of a second for one request that it
sends in the same form.
"""

import json
from datetime import datetime
from urllib.parse import parse_qsl, urlsplit

import pytest

from scaling.collectors.number.log_query import LogQueryCollector
from scaling.collectors.number.metric_answers import Series, values_of
from scaling.collectors.number.metrics_reader import MetricsReader
from tests.data.make_metric_requests import BUS, NOW, QUERY, RECORDED, WORKSPACE, monitor
from tests.support.servers.resource_manager import arm_settings, resource_manager

pytestmark = pytest.mark.wire
SERIES = Series(
    BUS, "IncomingMessages", "total", 60, (("EntityName", "orders"),), "Microsoft.ServiceBus/namespaces"
)
THEIRS = json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.fixture
async def server(tmp_path_factory):
    # Of the authority that the local Resource Manager has as well.
    async with monitor(tmp_path_factory.getbasetemp() / "certificate") as server:
        yield server


def meant(method, path, query, body, content_type):
    """A request as the service understands it: names of parameters have no case, and times are times."""
    query = {name.casefold(): value for name, value in query.items()}
    for name in ("starttime", "endtime"):
        query[name] = datetime.fromisoformat(query[name]).timestamp()
    return method, path, query | {"aggregation": query["aggregation"].casefold()}, body, content_type


async def test_metrics_of_several_resources_are_asked_for_as_the_sdk_does(
    server, tmp_path_factory, monkeypatch
):
    theirs = THEIRS["metrics"]
    target = urlsplit(theirs["target"])
    async with resource_manager(tmp_path_factory, monkeypatch) as management:
        reader = MetricsReader(arm_settings(management, AZURE_METRICS_ENDPOINT=server.base_url))
        answer = await reader.read(SERIES, NOW, region="westeurope", now=float(NOW))
        await reader.close()

    [ours] = server.asked
    assert meant(ours.method, ours.path, ours.query, ours.body, ours.headers["Content-Type"]) == meant(
        theirs["method"],
        target.path,
        dict(parse_qsl(target.query)),
        json.loads(theirs["body"]),
        theirs["headers"]["Content-Type"],
    )
    assert values_of(answer, SERIES, NOW)[NOW] == theirs["value"] == 1.0


async def test_a_log_is_asked_as_the_sdk_does(server, tmp_path_factory, monkeypatch):
    theirs, asked = THEIRS["logs"], json.loads(THEIRS["logs"]["body"])
    async with resource_manager(tmp_path_factory, monkeypatch) as management:
        settings = arm_settings(management, AZURE_LOGS_ENDPOINT=server.base_url)
        collector = LogQueryCollector(LogQueryCollector.Params(workspace=WORKSPACE, query=QUERY), settings)
        reading = await collector.collect(now=float(NOW))
        await collector.aclose()

    [ours] = server.asked
    assert (ours.method, ours.path, ours.headers["Prefer"]) == (
        theirs["method"],
        theirs["target"],
        theirs["headers"]["Prefer"],
    )
    assert ours.body["query"] == asked["query"]
    assert (asked["timespan"], ours.body["timespan"]) in {("PT1H", "PT3600S"), ("PT3600.0S", "PT3600S")}
    assert reading.values["value"] == theirs["value"] == 42
