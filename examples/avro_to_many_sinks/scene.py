"""Publishes orders as Avro events by the SDKs of Azure, and shows what the consumer made of them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
from azure.cosmos import CosmosClient
from azure.eventhub import EventData, EventHubProducerClient, TransportType
from azure.identity import ManagedIdentityCredential
from azure.schemaregistry import SchemaRegistryClient
from deltalake import DeltaTable

from examples.stage import Stage

ORDERS, CANCELLED, LARGE = 2_000, 300, 1_000

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "customer", "type": "string"},
        {"name": "state", "type": "string"},
        {"name": "amount", "type": "long"},
    ],
}


async def play(stage: Stage) -> list[str]:
    stack = stage.stack
    stack.event_hubs.ensure_hub("orders", 4, consumer_groups=["tidemark"])
    for name in ("orders", "large-orders"):
        stack.cosmos.create_container("shop", name, "/id", default_ttl=-1, throughput=20_000)
    file = str(stage.here / "consumer.toml")
    stage.settings |= {"CONSUMER_FILE": file, "CUSTOMER_KEY": "only-an-example-of-a-key"}
    os.environ |= {key: value for key, value in stage.settings.items() if key.startswith("IDENTITY_")}
    await asyncio.to_thread(publish, stage.settings)
    await stage.tidemark("lint", file)
    await stage.tidemark("consume", "--until", "latest")
    await stage.tidemark("dead-letters", "list")
    return await asyncio.to_thread(show, stage.settings, stage.folder / "output")


def publish(settings: Mapping[str, str]) -> None:
    """Two thousand orders, some of which are cancelled later, and one event that is no order."""
    rng = random.Random(1)
    orders: list[dict[str, Any]] = [
        {
            "id": f"order-{n}",
            "customer": f"c{n % 97}@example.com",
            "state": "new",
            "amount": rng.randrange(2_000),
        }
        for n in range(ORDERS)
    ]
    events = [*orders, *({**order, "state": "cancelled"} for order in rng.sample(orders, CANCELLED))]
    registry = SchemaRegistryClient(
        settings["SchemaRegistry__fullyQualifiedNamespace"],
        ManagedIdentityCredential(),
        connection_verify=settings["TIDEMARK_CA_BUNDLE"],
    )
    schema_id = registry.register_schema("shop", "Order", json.dumps(SCHEMA), "Avro").id
    schema = fastavro.parse_schema(SCHEMA)
    with EventHubProducerClient.from_connection_string(
        settings["EventHubConnection"], eventhub_name="orders", transport_type=TransportType.Amqp
    ) as producer:
        for key in range(16):  # the events of an order have one key, and so one partition
            batch = producer.create_batch(partition_key=str(key))
            for event in events:
                if int(event["id"].partition("-")[2]) % 16 == key:
                    body = io.BytesIO()
                    fastavro.schemaless_writer(body, schema, event)
                    data = EventData(body.getvalue())
                    data.content_type = f"avro/binary+{schema_id}"
                    batch.add(data)
            producer.send_batch(batch)
        broken = EventData(b"no order")
        broken.content_type = f"avro/binary+{schema_id}"
        producer.send_batch([broken])


def show(settings: Mapping[str, str], output: Path) -> list[str]:
    """What is there, against what must be. Raises AssertionError where the two differ."""
    database = CosmosClient.from_connection_string(settings["CosmosConnection"]).get_database_client("shop")
    living = "SELECT c.id, c.amount, c.customer FROM c WHERE NOT IS_DEFINED(c._deleted)"
    documents, large = (
        list(database.get_container_client(name).query_items(living, enable_cross_partition_query=True))
        for name in ("orders", "large-orders")
    )
    rows = DeltaTable(output / "history").to_pyarrow_table().to_pylist()
    cancelled = {row["id"] for row in rows if row["state"] == "cancelled"}
    assert len(rows) == ORDERS + CANCELLED
    assert len(documents) == ORDERS - CANCELLED
    assert {document["id"] for document in documents}.isdisjoint(cancelled)
    assert {document["id"] for document in large} == {
        document["id"] for document in documents if document["amount"] >= LARGE
    }
    assert not any("@" in document["customer"] for document in documents)
    return [
        f"container orders: {len(documents):,} of {ORDERS:,} orders; {CANCELLED} were cancelled, and are deleted",
        f"container large-orders: {len(large)} orders of {LARGE:,} or more",
        f"Delta table output/history: {len(rows):,} rows, every change once",
        f"customers are hashed: {documents[0]['customer'][:16]}...",
    ]
