"""Asks an event hub for its partitions and their states, and makes a client for each link.

Raises UnavailableError if the hub does not answer, whatever the cause.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from azure.eventhub.aio import EventHubConsumerClient

from consumer.errors import PositionError
from consumer.model import PartitionState
from consumer.receiving.link import OPTIONS_OF_CLIENT, close_client
from tidemark.foundation.azure.connections import (
    Settings,
    describe_network_error,
    event_hub_client,
    tls_context,
)
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.gathering import gather

_Result = TypeVar("_Result")

_NOT_FOUND = "not-found"
_REQUEST_TIMEOUT = 15.0  # seconds; a request over a new connection takes 0.4 s
_AT_ONCE = 16  # chosen: a hub has up to 2,000 partitions
_CLOSING = 5.0  # seconds the SDK gets to close a client


@dataclass(eq=False)
class Hub:
    """One hub for one consumer group. `close` ends all its tasks. `client_options` are passed to the SDK's constructors."""

    settings: Settings
    prefix: str
    name: str
    consumer_group: str
    client_options: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.created_at: float | None = None
        """When the hub was created, after the first call of `partitions`."""
        self._tls: ssl.SSLContext | None = None
        self._management: EventHubConsumerClient | None = None
        self._background: set[asyncio.Task[Any]] = set()
        # The question that is being answered, and the one after it, which the callers of meanwhile share.
        self._asked: asyncio.Task[dict[str, Any]] | None = None
        self._asked_next: asyncio.Task[dict[str, Any]] | None = None

    async def partitions(self) -> list[str]:
        """The ids of all partitions now.

        Raises SettingsError if there is no such hub at the first call, PositionError if the hub was created anew since,
        UnavailableError.
        """
        properties = await self._properties()
        created_at = properties["created_at"].timestamp()
        if self.created_at not in {None, created_at}:
            raise PositionError(
                f"event hub '{self.name}' was created anew while it was being received from: its checkpoints are "
                "those of another hub. Start again; CONSUMER_ON_FOREIGN_CHECKPOINT decides"
            )
        self.created_at = created_at
        return list(properties["partition_ids"])

    async def ids(self) -> list[str]:
        """As `partitions`, of whichever hub has the name now. Raises UnavailableError."""
        return list((await self._properties())["partition_ids"])

    async def state(self, partition: str) -> PartitionState:
        """Raises UnavailableError, and SettingsError as `partitions` does."""
        properties = await self._ask(lambda client: client.get_partition_properties(partition))
        return PartitionState(
            partition,
            properties["beginning_sequence_number"],
            properties["last_enqueued_sequence_number"],
            properties["last_enqueued_offset"],
            properties["last_enqueued_time_utc"].timestamp(),
            properties["is_empty"],
        )

    async def states(self, among: Collection[str] | None = None) -> dict[str, PartitionState]:
        """The states of all partitions that the hub has now, or of those `among` them. Raises as `partitions` does."""
        names = [name for name in await self.partitions() if among is None or name in among]
        return dict(zip(names, await gather(self.state, names, at_once=_AT_ONCE), strict=True))

    async def client(self) -> EventHubConsumerClient:
        """A new client; the caller closes it."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(tls_context, self.settings)  # read once for all connections
        return event_hub_client(
            self.settings,
            self.prefix,
            self.name,
            self.consumer_group,
            **{"ssl_context": self._tls, **OPTIONS_OF_CLIENT, **self.client_options},
        )

    def spawn(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Runs a task in the background, until it ends or `close` does."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, deadline: float | None = None) -> None:
        """Closes the connection for questions, and waits for background tasks until `deadline` (loop time), if given. End all
        `receive` calls before.
        """
        if self._management is not None:
            self.spawn(close_client(self._management, _CLOSING))
            self._management = None
        if not self._background:
            return
        timeout = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        _, late = await asyncio.wait(self._background, timeout=timeout)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)

    async def _properties(self) -> dict[str, Any]:
        """Callers at the same time share a question, which is asked after their calls: it takes 5 ms of CPU."""
        if self._asked_next is None or self._asked_next.done():
            self._asked_next = self.spawn(self._ask_after(self._asked))
        return await asyncio.shield(self._asked_next)

    async def _ask_after(self, asked: asyncio.Task[dict[str, Any]] | None) -> dict[str, Any]:
        if asked is not None:
            await asyncio.wait({asked})
        self._asked, self._asked_next = self._asked_next, None
        return await self._ask(lambda client: client.get_eventhub_properties())

    async def _ask(
        self, request: Callable[[EventHubConsumerClient], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        if self._management is None:
            self._management = await self.client()
        # In a task of its own: the SDK uses asyncio.wait_for, which in Python 3.11 sometimes swallows the cancellation of
        # the caller.
        asking = self.spawn(request(self._management))
        try:
            await asyncio.wait({asking}, timeout=_REQUEST_TIMEOUT)
            if not asking.done():
                raise TimeoutError(f"no answer within {_REQUEST_TIMEOUT:g} s")
            return asking.result()
        except Exception as error:  # whatever it is, the hub has not answered
            if self.created_at is None and _NOT_FOUND in (getattr(error, "error", None) or ""):
                raise SettingsError(
                    f"there is no event hub '{self.name}': {describe_network_error(error)}"
                ) from error
            why = describe_network_error(error)
            raise UnavailableError(f"event hub '{self.name}' of {self.prefix}: {why}") from error
        finally:
            asking.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved, even if nobody waits for it any more
