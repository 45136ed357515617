"""Containers of an Azurite, one place per test."""

import uuid

from azure.storage.blob.aio import ContainerClient

from consumer.model import Stream
from consumer.stores.blob.checkpoints import BlobCheckpointStore
from consumer.stores.blob.dead_letters import BlobDeadLetterStore
from consumer.stores.blob.leases import BlobLeaseStore
from tidemark.foundation.azure.connections import blob_container

NAMESPACE = "Orders.servicebus.windows.net"


class BlobPlace:
    """A container that does not exist yet, and the stores on it."""

    def __init__(self, connection_string):
        self.connection_string = connection_string
        self.name = f"checkpoints-{uuid.uuid4().hex}"
        self._open = []

    def container(self, **options) -> ContainerClient:
        container = blob_container({"Storage": self.connection_string}, "Storage", self.name, **options)
        self._open.append(container)
        return container

    def stream(self, hub, consumer_group):
        return Stream(NAMESPACE, hub, consumer_group)

    def checkpoints(self, hub, consumer_group, **options):
        return BlobCheckpointStore(self.container(), self.stream(hub, consumer_group), **options)

    def leases(self, hub, consumer_group):
        return BlobLeaseStore(self.container(), self.stream(hub, consumer_group))

    def dead_letters(self, hub, consumer_group):
        return BlobDeadLetterStore(self.container(), self.stream(hub, consumer_group))

    async def delete(self, hub, consumer_group, partition):
        """Somebody deletes what is stored of the partition."""
        name = self.stream(hub, consumer_group).blob("checkpoint", partition)
        await self.container().get_blob_client(name).delete_blob()

    async def spoil(self, hub, consumer_group, partition):
        blob = self.container().get_blob_client(
            self.stream(hub, consumer_group).blob("checkpoint", partition)
        )
        metadata = (await blob.get_blob_properties()).metadata
        await blob.set_blob_metadata({**metadata, "sequencenumber": "seven"})

    async def aclose(self):
        for container in self._open:
            await container.close()
