"""What became of every record, read from the local servers themselves; the consumers are not asked.

The hub's log says what there was to write, the container and the dead letters what has been written. Everything is
looked at as it comes: each look costs as much as there is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
from azure.storage.blob.aio import BlobServiceClient
from msgspec import Struct

from devstack.amqp.wire.messages import batched
from devstack.cosmos.store.container import Container, Partition
from devstack.event_hubs.storage.hubs import Hub

Position = tuple[str, int]
"""Partition and sequence number."""

LETTERS, CHECKPOINTS = "dead-letters", "eventhub-checkpoints"


class Sent(Struct):
    """The records of a hub: flights by id, and what is none."""

    flights: dict[str, Position] = {}
    poison: dict[Position, bytes] = {}
    events: dict[str, int] = {}
    """How many there are, by partition."""

    @property
    def total(self) -> int:
        return sum(self.events.values())

    def follow(self, hub: Hub) -> None:
        """Takes in what was appended since."""
        for partition in hub.partitions:
            for position, body in bodies(hub, partition.id, self.events.get(partition.id, 0)):
                self.events[partition.id] = position[1] + 1
                name = flight_id(body)
                if name is None:
                    self.poison[position] = body
                else:
                    self.flights[name] = position


class Written:
    """The documents of a container, counted by the Event Hubs partition their flight came from."""

    def __init__(self) -> None:
        self.by_partition: dict[str, int] = {}
        self._seen: dict[Any, int] = {}

    @property
    def total(self) -> int:
        return sum(self.by_partition.values())

    def follow(self, container: Container, sent: Sent) -> None:
        """Takes in the documents that are new. Nothing may have been deleted."""
        for partition in container.partitions():
            for name in self._new(partition):
                origin = sent.flights.get(name)
                if origin is not None:
                    self.by_partition[origin[0]] = self.by_partition.get(origin[0], 0) + 1

    def _new(self, partition: Partition) -> list[str]:
        seen = self._seen.get(partition.key, 0)
        self._seen[partition.key] = len(partition.documents)
        return list(islice(partition.documents, seen, None))


class Blobs:
    """What the consumers keep in Blob Storage: dead letters, and who has which partition."""

    def __init__(self, connection_string: str, letters: str = LETTERS) -> None:
        self._letters = letters
        self._service = BlobServiceClient.from_connection_string(connection_string)

    async def aclose(self) -> None:
        await self._service.close()

    async def letters(self) -> dict[Position, str]:
        """The names of the dead letters, by position."""
        names = {}
        async for blob in self._list(self._letters):
            folder, _, number = blob.name.removesuffix(".json").rpartition("/")
            names[folder.rpartition("/")[2], int(number)] = blob.name
        return names

    async def letter(self, name: str) -> dict[str, Any]:
        """One dead letter as stored."""
        stream = await self._service.get_blob_client(self._letters, name).download_blob()
        document: dict[str, Any] = msgspec.json.decode(await stream.readall())
        return document

    async def owners(self) -> dict[str, str]:
        """Who has, or had, the lease of each partition; '' for one that was released."""
        return {
            blob.name.rpartition("/")[2]: (blob.metadata or {}).get("ownerid") or ""
            async for blob in self._list(CHECKPOINTS)
            if "/ownership/" in blob.name
        }

    def _list(self, container: str) -> Any:
        return _present(self._service.get_container_client(container))


async def _present(container: Any) -> Any:
    """The blobs of a container with their metadata; none while nobody has made it."""
    if await container.exists():
        async for blob in container.list_blobs(include=["metadata"]):
            yield blob


def bodies(hub: Hub, partition: str, first: int = 0) -> Iterator[tuple[Position, bytes]]:
    """The events of a partition with their bodies, from a sequence number on."""
    for stored in hub.partition(partition).log.stored(first):
        yield (partition, stored.sequence_number), b"".join(batched(stored.message))


class _Flight(Struct):
    id: str


_flight = msgspec.json.Decoder(_Flight)


def flight_id(body: bytes) -> str | None:
    """None for a body that is no flight."""
    try:
        return _flight.decode(body).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
