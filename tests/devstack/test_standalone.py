"""The servers can be used without Tidemark: by what they import, and as a command that starts them all."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from azure.cosmos import CosmosClient
from azure.eventhub import EventHubConsumerClient
from azure.servicebus import ServiceBusClient
from azure.storage.blob import BlobServiceClient

ROOT = Path(__file__).parents[2]
SERVERS = (
    "amqp",
    "cosmos",
    "event_hubs",
    "monitor",
    "processes",
    "resource_manager",
    "schema_registry",
    "servers",
    "service_bus",
    "setup",
)
PRODUCT = {"consumer", "scaling", "spark_jobs", "tests", "tidemark"}


@pytest.mark.parametrize("folder", SERVERS)
def test_a_server_imports_nothing_of_the_product(folder):
    for path in (ROOT / "devstack" / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & PRODUCT, path


@pytest.mark.wire
def test_one_command_starts_all_servers_says_how_to_reach_them_and_ends_when_told(tmp_path):
    command = [sys.executable, "-m", "devstack", "servers", "--free-ports", "--data", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as servers:
        try:
            found = {}
            for line in servers.stdout:
                name, _, value = line.rstrip("\n").partition("=")
                found[name] = value
                if name == "DEVSTACK_CONTROL":
                    break
            with EventHubConsumerClient.from_connection_string(
                found["EventHubConnection"], "$Default"
            ) as hub:
                assert hub.get_partition_ids() == ["0", "1", "2", "3"]
            with (
                ServiceBusClient.from_connection_string(found["OrdersServiceBus"]) as bus,
                bus.get_subscription_receiver("orders", "fulfilment") as receiver,
            ):
                assert receiver.peek_messages() == []
            with CosmosClient.from_connection_string(found["CosmosConnection"]) as cosmos:
                assert [database["id"] for database in cosmos.list_databases()] == ["flights"]
            with BlobServiceClient.from_connection_string(found["AzureWebJobsStorage"]) as blobs:
                assert list(blobs.list_containers()) == []
        finally:
            os.kill(servers.pid, signal.SIGTERM)
        assert servers.wait(timeout=60) == 0
