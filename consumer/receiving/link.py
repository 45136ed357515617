"""One link to a partition: one run of the SDK's `receive_batch`, on a client of its own, until it fails or is closed.

The SDK's callback only stores a batch and waits until it is taken; events are processed elsewhere. So the SDK may cancel the
callback at any moment, and a link that does not end in time delays nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from azure.core.settings import settings
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.exceptions import ConnectionLostError
from msgspec import Struct

from consumer.model import Event
from consumer.receiving.events import last_enqueued, to_event
from tidemark.foundation.azure.connections import describe_network_error

if TYPE_CHECKING:
    from consumer.receiving.fast_path import Shortcut

SHORTCUT_SDK = "5.15."
"""The versions of the SDK whose private parts consumer/receiving/fast_path.py knows."""

_NEVER = 86_400.0  # seconds between two rounds of the SDK's own balancing, which is not used
OPTIONS_OF_CLIENT: Mapping[str, Any] = {"retry_total": 0, "load_balancing_interval": _NEVER}
"""Constructor arguments of a client for a link: failures are raised at once, and retried by the caller."""


class LinkLostError(Exception):
    """A link has ended. `condition` is the service's error condition, such as "link:stolen"; '' if it sent none."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(describe_network_error(cause))
        self.condition = str(getattr(cause, "error", None) or "")


class LinkOptions(Struct, frozen=True):
    """`position` is the SDK's: a sequence number, an offset, or a time as a datetime."""

    partition: str
    position: int | str | datetime
    inclusive: bool
    epoch: int | None  # None reads beside other readers, without an owner
    prefetch: int
    batch: int
    shortcut: bool = True
    """Whether to bypass the SDK's decoding; see consumer/receiving/fast_path.py."""
    most_bytes: Callable[[], float] = lambda: math.inf
    """How many bytes may be held; respected only when the SDK's decoding is bypassed."""
    partitions: Callable[[], Coroutine[Any, Any, list[str]]] | None = None
    """Asked before the link is opened, in place of a question that the SDK would ask over another connection."""
    on_broken: Callable[[Exception], object] = lambda _error: None
    """Called with the reason when the SDK's decoding cannot be bypassed, or no longer."""


class Link:
    """Begins with its construction. `take` returns what it receives; `close` it in any case."""

    def __init__(self, client: EventHubConsumerClient, options: LinkOptions) -> None:
        self.prefetch = options.prefetch
        self.last_enqueued: int | None = None
        """The sequence number of the partition's newest event, as the last batch taken reports it."""
        self._partition = options.partition
        # Events of the batch that waits for room, and of the batch taken last.
        self._waiting = self._taken = 0
        self._shortcut = _shortcut(client, options, self._handed_over)
        self._client: EventHubConsumerClient | None = client
        self.is_closed = False
        self._batch: Sequence[EventData] | Sequence[Event] | None = None
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._inner: set[asyncio.Task[Any]] = set()  # the SDK's tasks that may outlive its own stop
        self._task = asyncio.create_task(self._run(options))

    async def take(self, timeout: float) -> Sequence[Event]:
        """The next batch; nothing if none comes within `timeout` seconds. The batch before counts as processed.

        Raises LinkLostError.
        """
        if self._shortcut is not None:
            self._shortcut.note_done(self._taken)
        self._taken = 0
        if not self._news.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._news.wait()
        batch, self._batch = self._batch, None
        if batch is not None:
            self._taken = len(batch)
            self._room.set()
            if self._failure is None:
                self._news.clear()
            return self._events(batch)
        if self._failure is not None:
            raise LinkLostError(self._failure) from self._failure
        return ()

    def _handed_over(self) -> int:
        return self._taken + self._waiting + len(self._batch or ())

    def widen(self, prefetch: int) -> bool:
        """Sets how many events are asked for from now on; False if that takes a new link."""
        if self._shortcut is None or not self._shortcut.widen(prefetch):
            return False
        self.prefetch = prefetch
        return True

    def _events(self, batch: Any) -> Sequence[Event]:
        if self._shortcut is not None and isinstance(batch[0], Event):
            self.last_enqueued = self._shortcut.last_enqueued()
            return list(batch)
        self.last_enqueued = last_enqueued(batch)
        return [to_event(self._partition, data) for data in batch]

    async def close(self, grace: float) -> None:
        """Ends the link within about twice `grace` seconds, by force if needed, and drops what was buffered."""
        self.is_closed = True
        if self._shortcut is not None:
            self._shortcut.let_go()
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=grace)
        for task in (leftover := {task for task in (self._task, *self._inner) if not task.done()}):
            task.cancel()
        if leftover:
            await asyncio.wait(leftover, timeout=grace / 2)
        client, self._client, self._batch, self._shortcut = self._client, None, None, None
        if client is not None:
            await close_client(client, grace / 2)

    async def _run(self, options: LinkOptions) -> None:
        client = self._client
        if client is None:
            return
        if options.partitions is not None:
            client.get_partition_ids = options.partitions  # type: ignore[method-assign]
        try:
            await client.receive_batch(
                self._on_batch,
                partition_id=options.partition,
                owner_level=options.epoch,
                prefetch=options.prefetch,
                max_batch_size=options.batch,
                track_last_enqueued_event_properties=True,
                starting_position=options.position,
                starting_position_inclusive=options.inclusive,
                on_partition_initialize=self._on_initialize,
                on_error=self._on_error,
                on_partition_close=self._on_close,
            )
        except Exception as error:  # whatever it is, it ends the link, and `take` raises it
            self._fail(error)

    async def _on_initialize(self, _context: object) -> None:
        self._own()

    async def _on_batch(self, _context: object, batch: Any) -> None:
        self._own()
        self._waiting = len(batch)
        await self._room.wait()
        self._waiting = 0
        self._room.clear()
        self._batch = batch
        self._news.set()

    async def _on_error(self, _context: object, error: Exception) -> None:
        self._fail(error)

    async def _on_close(self, _context: object, reason: object) -> None:
        self._fail(ConnectionLostError(f"the link was closed: {reason}"))

    def _own(self) -> None:
        task = asyncio.current_task()
        if task is not None and task not in self._inner:
            self._inner.add(task)
            task.add_done_callback(self._inner.discard)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._news.set()


async def close_client(client: EventHubConsumerClient, within: float) -> None:
    with contextlib.suppress(Exception):  # it is abandoned anyway
        async with asyncio.timeout(within):
            await client.close()


class ShortcutError(Exception):
    """Why the SDK's decoding is not bypassed."""


@cache
def _installed() -> str:
    return version("azure-eventhub")  # reads and parses a file, 2 ms for each link


def _shortcut(
    client: EventHubConsumerClient, options: LinkOptions, handed_over: Callable[[], int] = lambda: 0
) -> Shortcut | None:
    if not options.shortcut:
        return None
    try:
        installed = _installed()
        if not installed.startswith(SHORTCUT_SDK):
            raise ShortcutError(
                f"azure-eventhub {installed} is installed, its inside is known of {SHORTCUT_SDK}*"
            )
        if settings.tracing_enabled():
            raise ShortcutError("the SDK's tracing is on, which wants to see its own events")
        from consumer.receiving.fast_path import Shortcut  # noqa: PLC0415 - imports private names of the SDK

        shown = options.partition, options.on_broken, options.prefetch
        return Shortcut(client, *shown, handed_over, options.most_bytes)
    except Exception as error:  # whatever is not as expected, the SDK's own decoding works
        options.on_broken(error)
        return None
