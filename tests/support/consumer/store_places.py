"""Places of the consumer's stores, for the suites of checkpoints, leases and dead letters.

A suite names its kinds: `SQL` is a class of stores, `BLOB` a method of BlobPlace.
"""

import asyncio
import uuid

import pytest
from sqlalchemy import delete, update

from consumer.model import Stream
from consumer.stores.sql.tables import CHECKPOINTS, TABLES, of_scope
from tests.support.servers.blobs import BlobPlace
from tidemark.foundation.sql.database import SqlDatabase

HUB, GROUP = "orders", "readers"


def soon():
    return asyncio.get_running_loop().time() + 30


class SqlPlace:
    """A namespace of its own in a database, and the stores on it."""

    def __init__(self, url, kind):
        self.database = SqlDatabase(url, create_tables=True, tables=TABLES)
        self.namespace = f"{uuid.uuid4().hex}.servicebus.windows.net"
        self._kind = kind
        self._stores = []

    def store(self, hub, consumer_group):
        self._stores.append(self._kind(self.database, Stream(self.namespace, hub, consumer_group)))
        return self._stores[-1]

    async def spoil(self, hub, consumer_group, partition):
        """What is stored of the partition cannot be read."""
        scope = Stream(self.namespace, hub, consumer_group)
        query = (
            update(CHECKPOINTS)
            .where(
                *(CHECKPOINTS.c[name] == value for name, value in scope.keys.items()),
                CHECKPOINTS.c.PartitionID == partition,
            )
            .values(Beyond="[[1,")
        )
        await self.database.transact(lambda connection: connection.execute(query))

    async def delete(self, hub, consumer_group, partition):
        """Somebody deletes what is stored of the partition."""
        scope = Stream(self.namespace, hub, consumer_group)
        query = delete(CHECKPOINTS).where(*of_scope(CHECKPOINTS, scope, partition))
        await self.database.transact(lambda connection: connection.execute(query))

    async def aclose(self):
        for store in self._stores:
            await store.aclose()


class OnSqlite:
    @pytest.fixture
    async def place(self, tmp_path):
        place = SqlPlace(f"sqlite:///{tmp_path}/tidemark.db", self.SQL)
        yield place
        await place.aclose()


class OnPostgres:
    @pytest.fixture
    async def place(self, postgres):
        place = SqlPlace(postgres, self.SQL)
        yield place
        await place.aclose()


class OnBlob:
    @pytest.fixture
    async def place(self, azurite):
        place = BlobPlace(azurite)
        place.store = getattr(place, self.BLOB)
        yield place
        await place.aclose()
