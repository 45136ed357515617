"""The examples of docs/sinks.md: the file runs on the local stack, and each table of a sink is read without a problem."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from deltalake.exceptions import TableNotFoundError

from consumer.definition.loading import load_definition
from consumer.running.assembly import Parts
from consumer.running.hubs import Hubs
from devstack.demo.common.flights import flights
from devstack.stack.supervisor import Stack
from tests.support.consumer.lake import delta_rows, parquet_rows
from tests.support.servers.event_hubs import abandon_sockets
from tests.support.waiting import until
from tidemark.foundation.azure.connections import blob_container

PAGE = (Path(__file__).parents[2] / "docs/sinks.md").read_text(encoding="utf-8")
[FILE] = re.findall(r"^```toml file=sinks.toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
TABLES = re.findall(r"^```toml\n(\[sinks\..*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SETTINGS = {
    "EventHubConnection": "Endpoint=sb://one.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "TargetConnection": "Endpoint=sb://two.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "OrdersServiceBus": "Endpoint=sb://two.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "API_AUTHORIZATION": "Bearer x",
}
EVENTS = 40


@pytest.mark.parametrize("table", TABLES, ids=lambda table: re.search(r'type = "(\w+)"', table)[1])
async def test_each_example_of_a_sink_is_read_and_built(table, tmp_path):
    (tmp_path / "c.toml").write_text(f'version = 1\n[hubs.a]\nhub = "a"\n{table}')
    [hub] = load_definition({**SETTINGS, "CONSUMER_FILE": str(tmp_path / "c.toml")}).hubs
    parts = Parts(hub.config, hub.settings, hub)
    assert set(parts.guards.values()) == {"none" if 'type = "http"' in table else "append"}
    await parts.sink().aclose()


def test_every_type_with_a_section_has_an_example():
    assert len(TABLES) == 5


def rows_of_table():
    try:
        return delta_rows("flights.delta")
    except TableNotFoundError:  # the consumer creates it
        return []


@pytest.mark.wire
@pytest.mark.torture
async def test_the_file_of_the_page_writes_each_event_to_four_targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the table is made
    async with Stack() as stack:
        stack.add_workload()
        stack.event_hubs.create_hub("flights-copy", 4)
        for partition in range(4):
            bodies = [json.dumps(each).encode() for each in flights(EVENTS // 4, first=partition * EVENTS)]
            stack.event_hubs.append("flights", str(partition), bodies)
        text = FILE.replace('"10s"', "0.2").replace("uri =", "commit_every = 0.2\nuri =")
        (tmp_path / "sinks.toml").write_text(text)
        settings = {**stack.settings(), "CONSUMER_FILE": "sinks.toml", "EVENTHUB_CONSUMERGROUP": "tidemark"}
        stop, hubs = asyncio.Event(), Hubs(load_definition(settings))
        running = asyncio.create_task(hubs.run(stop))
        async with blob_container(settings, "AzureWebJobsStorage", "lake") as lake:

            async def all_there():
                await asyncio.sleep(0.2)
                assert not running.done(), running.exception()
                files = await parquet_rows(lake, "flights/") if await lake.exists() else []
                messages = stack.service_bus.counts("orders/Subscriptions/fulfilment").active
                counts = {
                    len(rows_of_table()),
                    len(files),
                    stack.event_hubs.event_count("flights-copy"),
                    messages,
                }
                return counts == {EVENTS}

            await until(all_there, within=60)
        stop.set()
        await running
    await abandon_sockets()
