"""Event Hubs triggers."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import azure.functions as func
from azure.core.exceptions import AzureError, ResourceExistsError
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, PartitionContext
from azure.eventhub.exceptions import EventHubError
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.functions.eventhub import EventHubTriggerConverter
from azure.functions.meta import Datum

from devstack.function_host.indexing import Retry
from devstack.function_host.queues import waited_for
from devstack.function_host.settings import EventHubOptions

logger = logging.getLogger("devstack.function_host")

CHECKPOINTS = "azure-webjobs-eventhub"
"""The container in which the real host keeps checkpoints and ownerships, in this layout."""

_RESTART_S = 1.0


class EventHubListener:
    """Receives one hub for one function: batches of a partition one after the other, partitions side by side."""

    def __init__(
        self,
        trigger: Mapping[str, Any],
        connection: str,
        storage: str,
        options: EventHubOptions,
        retry: Retry | None,
        process: Callable[[list[func.EventHubEvent]], Awaitable[bool]],
    ) -> None:
        """`connection` and `storage` are connection strings; `process` tells whether the function succeeded."""
        self._hub = str(trigger["eventHubName"])
        self._group = str(trigger.get("consumerGroup") or "$Default")
        self._connection = connection
        self._storage = storage
        self._options = options
        self._retry = retry
        self._process = process
        self._stopping = asyncio.Event()
        self._at_work: set[asyncio.Task[None]] = set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Receive until the event is set, then return when the batches at work are done."""
        self._stopping = stopping
        try:
            while not stopping.is_set():
                try:
                    await self._receive(stopping)
                except (AzureError, EventHubError) as error:
                    logger.warning("event hub %s cannot be read: %s", self._hub, error)
                    await waited_for(stopping, _RESTART_S)
        finally:
            for task in self._at_work:
                task.cancel()
            await asyncio.gather(*self._at_work, return_exceptions=True)

    async def _receive(self, stopping: asyncio.Event) -> None:
        async with BlobCheckpointStore.from_connection_string(self._storage, CHECKPOINTS) as store:
            await _create_container(store)
            client = EventHubConsumerClient.from_connection_string(
                self._connection, self._group, eventhub_name=self._hub, checkpoint_store=store
            )
            receiving = asyncio.create_task(self._receive_with(client))
            stop = asyncio.create_task(stopping.wait())
            try:
                await asyncio.wait((receiving, stop), return_when=asyncio.FIRST_COMPLETED)
                if self._at_work:
                    await asyncio.wait(self._at_work)
                if receiving.done():
                    receiving.result()
            finally:
                stop.cancel()
                receiving.cancel()  # waiting for it would take the client's half minute between two rounds
                await asyncio.gather(receiving, stop, return_exceptions=True)
                await client.close()

    async def _receive_with(self, client: EventHubConsumerClient) -> None:
        await client.receive_batch(
            self._on_batch,
            max_batch_size=self._options.max_batch_size,
            prefetch=self._options.prefetch_count,
            starting_position="@latest" if self._options.from_end else "-1",
        )

    async def _on_batch(self, context: PartitionContext, batch: list[EventData]) -> None:
        """Settles in a task of its own: the client cancels its callbacks when it closes."""
        if batch and not self._stopping.is_set():
            task = asyncio.create_task(self._settle(context, batch))
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)
            await asyncio.shield(task)

    async def _settle(self, context: PartitionContext, batch: list[EventData]) -> None:
        """Checkpoints when the function succeeded, or its retry policy has ended without success."""
        events = trigger_events(batch, context)
        attempts = 0
        while not await self._process(events):
            attempts += 1
            if self._retry is None or 0 <= self._retry.count < attempts:
                logger.warning("a batch of partition %s failed and is given up", context.partition_id)
                break
            if await waited_for(self._stopping, self._retry.delay_s):
                return
        await context.update_checkpoint(batch[-1])


async def _create_container(store: BlobCheckpointStore) -> None:
    with contextlib.suppress(ResourceExistsError):
        await store._container_client.create_container()  # noqa: SLF001 - the store takes no other's client


def trigger_events(batch: Sequence[EventData], context: PartitionContext) -> list[func.EventHubEvent]:
    """What the worker's library makes of a batch and the metadata that the real host sends with it."""
    bodies = Datum(SimpleNamespace(bytes=[_body(event) for event in batch]), "collection_bytes")
    metadata = {name: Datum(text, "json") for name, text in trigger_metadata(batch, context).items()}
    return list(EventHubTriggerConverter.decode_multiple_events(bodies, metadata))


def trigger_metadata(batch: Sequence[EventData], context: PartitionContext) -> dict[str, str]:
    """By name, as JSON. Times have no zone; an offset that is no number is given as -1, and beside it as it is."""
    partition = {
        "FullyQualifiedNamespace": context.fully_qualified_namespace,
        "EventHubName": context.eventhub_name,
        "ConsumerGroup": context.consumer_group,
        "PartitionId": context.partition_id,
    }
    system = [_system_properties(event) for event in batch]
    return {
        "PartitionContext": json.dumps(partition),
        "TriggerPartitionContext": json.dumps(partition),
        **{
            f"{name}Array": json.dumps([properties[name] for properties in system])
            for name in ("PartitionKey", "OffsetString", "SequenceNumber", "EnqueuedTimeUtc")
        },
        "OffsetArray": json.dumps([str(properties["Offset"]) for properties in system]),
        "PropertiesArray": json.dumps([_properties(event) for event in batch]),
        "SystemPropertiesArray": json.dumps(system),
    }


def _system_properties(event: EventData) -> dict[str, Any]:
    offset = "" if event.offset is None else str(event.offset)
    enqueued = event.enqueued_time
    return {
        "SequenceNumber": event.sequence_number,
        "Offset": int(offset) if offset.isdecimal() else -1,
        "OffsetString": offset,
        "PartitionKey": event.partition_key and event.partition_key.decode(),
        "EnqueuedTimeUtc": enqueued and enqueued.replace(tzinfo=None).isoformat(),
    }


def _properties(event: EventData) -> dict[str, Any]:
    return {_text(name): _text(value) for name, value in (event.properties or {}).items()}


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _body(event: EventData) -> bytes:
    body: Any = event.body
    return body if isinstance(body, bytes) else b"".join(body)
