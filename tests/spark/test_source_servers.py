"""Frames of the sources that are servers: what the local Cosmos DB and the local Event Hubs hold, once."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from devstack.cosmos import CosmosServer
from spark_jobs.platform.failures import input_errors
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.cosmos import read_documents
from spark_jobs.sources.event_hubs.source import read_event_hub
from tests.integration import test_source_cosmos as cosmos_support
from tests.integration import test_source_event_hubs as hub_support
from tests.support.servers.event_hubs import running_server
from tests.support.servers.threaded import running_in_thread
from tidemark.analysis.errors import InputError

pytestmark = [pytest.mark.wire, pytest.mark.timeout(600)]


@pytest.fixture
def cosmos():
    with running_in_thread(CosmosServer) as threaded:
        yield threaded


def test_every_document_is_read_once_whatever_the_partition_and_the_page(spark, cosmos):
    documents = cosmos_support.flights(120)
    documents[7].pop("flight")
    cosmos_support.fill(cosmos, documents)
    frame = read_documents(
        spark, cosmos_support.options(cosmos, fields="number=/flight/number, tail=/flight/tail", pageSize="9")
    )
    rows = sorted(frame.collect(), key=lambda row: int(row["id"][1:]))

    assert frame.rdd.getNumPartitions() == 2
    assert [row["id"] for row in rows] == [document["id"] for document in documents]
    assert [row["partition_key"] for row in rows] == [f'["{document["dest"]}"]' for document in documents]
    assert [json.loads(row["fields"]) for row in rows] == [
        {"number": n, "tail": None} if n != 7 else {} for n in range(120)
    ]
    now = datetime.now(UTC).timestamp()
    assert all(now - 600 < row["modified_at"].replace(tzinfo=UTC).timestamp() <= now for row in rows)


@pytest.fixture
async def server(tmp_path):
    async with running_server(tmp_path) as running:
        yield running


async def test_a_batch_is_what_was_sent(spark, server):
    await hub_support.send(server, "0", 0, 300)
    await hub_support.send(server, "1", 0, 40)

    frame = read_event_hub(
        spark, hub_support.options(server, startingPosition='{"1": 10}', endingPosition='{"0": 250}')
    )
    rows = await asyncio.to_thread(frame.collect)

    assert frame.schema == EVENTS
    expected = [("0", n, b"0-%d" % n) for n in range(250)] + [("1", n, b"1-%d" % n) for n in range(10, 40)]
    assert sorted((row.partition, row.sequence_number, bytes(row.body)) for row in rows) == expected
    server.expire(hub_support.HUB, "0", 20)
    with pytest.raises(InputError, match="events 0 to 19 were removed by retention"), input_errors():
        await asyncio.to_thread(
            read_event_hub(spark, hub_support.options(server, startingPosition='{"0": 0}')).collect
        )
