"""An event hub as it is asked: its partitions and their states, and a client for each link.

Raises UnavailableError when it does not answer, whatever the cause.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from azure.eventhub.aio import EventHubConsumerClient

from consumer.errors import PositionError
from consumer.model import PartitionState
from consumer.receiving.link import OPTIONS_OF_CLIENT, close_client
from tidemark.foundation.azure.connections import Settings, event_hub_client, network_story, tls_context
from tidemark.foundation.errors import SettingsError, UnavailableError

_Result = TypeVar("_Result")

_NOT_FOUND = "not-found"
_REQUEST_TIMEOUT = 15.0  # seconds; a request over a new connection takes 0.4 s
_CLOSING = 5.0  # seconds the SDK gets to close a client


@dataclass(eq=False)
class Hub:
    """One hub for one consumer group. Every task is owned: `close` ends them all. `client_options` go to the SDK's
    constructors.
    """

    settings: Settings
    prefix: str
    name: str
    consumer_group: str
    client_options: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.created_at: float | None = None
        """When the hub was created, once `partitions` was asked."""
        self._tls: ssl.SSLContext | None = None
        self._management: EventHubConsumerClient | None = None
        self._background: set[asyncio.Task[Any]] = set()

    async def partitions(self) -> list[str]:
        """The ids of all partitions now.

        Raises SettingsError when there is no such hub at the first time, PositionError when the hub is no longer the
        one it was, UnavailableError.
        """
        properties = await self._ask(lambda client: client.get_eventhub_properties())
        created_at = properties["created_at"].timestamp()
        if self.created_at not in {None, created_at}:
            raise PositionError(
                f"event hub '{self.name}' was created anew while it was being received from: its checkpoints are "
                "those of another hub. Start again; CONSUMER_ON_FOREIGN_CHECKPOINT decides"
            )
        self.created_at = created_at
        return list(properties["partition_ids"])

    async def state(self, partition: str) -> PartitionState:
        """Raises UnavailableError, and SettingsError as `partitions` does."""
        found = await self._ask(lambda client: client.get_partition_properties(partition))
        return PartitionState(
            partition,
            found["beginning_sequence_number"],
            found["last_enqueued_sequence_number"],
            found["last_enqueued_offset"],
            found["last_enqueued_time_utc"].timestamp(),
            found["is_empty"],
        )

    async def client(self) -> EventHubConsumerClient:
        """A client of its own; whoever asks for it closes it."""
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
        """Runs in the background, until its end or that of `close`."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, deadline: float | None = None) -> None:
        """Closes the connection that is asked over and waits for what runs in the background, by `deadline` (loop
        time) if given. End all `receive` calls before.
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

    async def _ask(
        self, request: Callable[[EventHubConsumerClient], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        if self._management is None:
            self._management = await self.client()
        # In a task of its own: the SDK awaits by asyncio.wait_for, which in Python 3.11 now and then swallows the
        # cancellation that would end whoever asks.
        asking = self.spawn(request(self._management))
        try:
            await asyncio.wait({asking}, timeout=_REQUEST_TIMEOUT)
            if not asking.done():
                raise TimeoutError(f"no answer within {_REQUEST_TIMEOUT:g} s")
            return asking.result()
        except Exception as error:  # whatever it was, the hub has not answered
            if self.created_at is None and _NOT_FOUND in (getattr(error, "error", None) or ""):
                raise SettingsError(f"there is no event hub '{self.name}': {network_story(error)}") from error
            raise UnavailableError(f"event hub '{self.name}': {network_story(error)}") from error
        finally:
            asking.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also when nobody waits for it any more
