"""Calls that need the consumer's rights and change nothing: read the last event, and delete a document that does not exist.

Each opens its own clients and closes them. They raise TriedError if the service named the problem, else whatever the
adapters raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto

from azure.cosmos.exceptions import CosmosResourceNotFoundError
from azure.cosmos.partition_key import NonePartitionKeyValue

from consumer.config import ConsumerConfig
from consumer.model import PartitionState
from consumer.receiving.hub import Hub
from consumer.receiving.link import Link, LinkLostError, LinkOptions
from consumer.running.assembly import Parts
from consumer.sinks.cosmos.client import ContainerDefinition, CosmosContainer
from tidemark.foundation.azure.connections import Settings
from tidemark.foundation.azure.trials import NOTHING
from tidemark.foundation.checkup import TriedError, Trouble
from tidemark.foundation.errors import SettingsError

LISTENING = 8.0
"""Seconds for the last event of a partition to arrive; over a new connection it takes less than one."""

LOOKED_AT = 8
"""How many partitions are searched for one with events."""

REFUSING = 3.0
"""Seconds in which a link to an empty partition would be refused. No answer says that it was opened."""

_CLOSING = 2.0
_AT_WORK = "stolen"  # the service refuses a reader without an owner level while the partition has an owner
_CONDITIONS = {
    "unauthorized-access": Trouble.REFUSED,
    "not-found": Trouble.ABSENT,
    "server-busy": Trouble.BUSY,
    "resource-limit-exceeded": Trouble.BUSY,
}


class Received(Enum):
    """The outcome of reading. The SDK does not report that a consumer group is missing: it retries for ever."""

    AN_EVENT = auto()
    BY_A_CONSUMER = auto()  # one owns the partition, so others are refused
    NOTHING_THERE = auto()  # the partitions are empty, so nothing could come
    NOTHING = auto()  # although there are events


async def received(settings: Settings, config: ConsumerConfig) -> Received:
    """Reads the last event of a partition, as a consumer of its group and beside those at work."""
    hub = Hub(settings, config.hub_connection, config.hub, config.consumer_group, {})
    try:
        with _hub_errors():
            partitions = await hub.partitions()
            state = await _one_with_events(hub, partitions)
            position = "@latest" if state.empty else state.last_sequence_number
            options = LinkOptions(state.partition, position, not state.empty, None, 1, 1, shortcut=False)
            link = Link(await hub.client(), options)
            try:
                events = await link.take(REFUSING if state.empty else LISTENING)
            finally:
                await link.close(_CLOSING)
    except LinkLostError as error:
        if _AT_WORK not in error.condition:
            raise
        return Received.BY_A_CONSUMER
    finally:
        await hub.close(asyncio.get_running_loop().time() + _CLOSING)
    if events:
        return Received.AN_EVENT
    return Received.NOTHING_THERE if state.empty else Received.NOTHING


async def _one_with_events(hub: Hub, partitions: Sequence[str]) -> PartitionState:
    """The first of a few partitions that has events, else the first of them."""
    first = await hub.state(partitions[0])
    for partition in partitions[1:LOOKED_AT]:
        if not first.empty:
            break
        if not (state := await hub.state(partition)).empty:
            return state
    return first


@contextmanager
def _hub_errors() -> Iterator[None]:
    """Raises errors with a known condition of the hub as TriedError. The condition is in the cause of our errors."""
    try:
        yield
    except Exception as error:
        if isinstance(error, LinkLostError) and _AT_WORK in error.condition:
            raise
        cause: BaseException | None = error
        while cause is not None:
            condition = str(getattr(cause, "error", None) or "")
            refused = "Authentication" in type(cause).__name__ and not hasattr(cause, "response")
            trouble = next(
                (description for word, description in _CONDITIONS.items() if word in condition), None
            )
            if trouble is not None or refused:
                raise TriedError(trouble or Trouble.REFUSED, str(error)) from error
            cause = cause.__cause__
        raise


class CosmosTrial(CosmosContainer):
    """A container, tested for the right to delete documents, which in Cosmos DB comes with the right to write them."""

    found: ContainerDefinition | None = None
    """The container, once `absent` has found it."""

    async def absent(self) -> bool:
        """Whether there is no such container. Raises SettingsError, UnavailableError, AzureError."""
        try:
            try:
                definition = self.found = await self.open()
            except SettingsError as error:
                if isinstance(error.__cause__, CosmosResourceNotFoundError):
                    return True
                raise
            names = [NOTHING] * len(definition.paths)
            key = NonePartitionKeyValue if definition.system_key else names[0] if len(names) == 1 else names
            try:
                await self._open.delete_item(NOTHING, key)
            except CosmosResourceNotFoundError:
                return False
        finally:
            await self.aclose()
        raise TriedError(Trouble.OTHER, f"{self!r} had a document '{NOTHING}', which was deleted")


async def parked_count(parts: Parts, within: float) -> tuple[int, bool]:
    """How many parked events can be read in that time, and whether these are all. Raises UnreadableError, with what to do."""
    count, store = 0, parts.parked(create=False)
    try:
        async with asyncio.timeout(within):
            await store.open()
            async for _ in store.list():
                count += 1
    except TimeoutError:
        return count, False
    finally:
        await store.aclose()
    return count, True
