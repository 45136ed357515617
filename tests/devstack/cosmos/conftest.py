"""A client of the test's own `server`, and its container `flights`."""

import pytest
from azure.cosmos.aio import CosmosClient


@pytest.fixture
async def client(server):
    async with CosmosClient(server.endpoint, server.key) as connected:
        yield connected


@pytest.fixture
def container(client):
    return client.get_database_client("flights").get_container_client("flights")
