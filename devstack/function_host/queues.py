"""Queue triggers and queue outputs on a storage account."""

import asyncio
import base64
import binascii
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import azure.functions as func
from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.functions.queue import QueueMessage
from azure.storage.queue.aio import QueueClient

from devstack.function_host.queue_requests import QueueRequests, Taken
from devstack.function_host.settings import QueueOptions, connection_string
from tidemark.foundation.azure.storage_requests import StorageWire

logger = logging.getLogger("devstack.function_host")

POISON_SUFFIX = "-poison"

_RETRIES = 2

_DEFAULT_LEASE_S = 600.0  # the real host's, for every message
_MINIMUM_POLLING_INTERVAL_S = 0.1  # the real host's


class StorageQueues:
    """The queues of all connections the app's bindings name. Knows the encoding on the wire. Close it at the end."""

    def __init__(self, settings: Mapping[str, str], options: QueueOptions) -> None:
        self._settings = settings
        self._options = options
        self._wire = StorageWire({})
        self._queues: dict[tuple[str, str], QueueRequests] = {}

    def client(self, connection: str, queue_name: str, *, where: str) -> QueueRequests:
        """A client for a queue; contents are as on the wire. Raises HostError for an unknown connection."""
        text = connection_string(connection, self._settings, where=where)
        if (text, queue_name) not in self._queues:
            sdk = QueueClient.from_connection_string(
                text, queue_name
            )  # reads the connection string, sends nothing
            self._queues[text, queue_name] = QueueRequests(sdk, self._wire, _RETRIES)
        return self._queues[text, queue_name]

    async def send(self, binding: Mapping[str, Any], bodies: Sequence[str | bytes]) -> None:
        """Send to the queue of an output binding, in order; make the queue if there is none."""
        client = self.client(binding["connection"], binding["queueName"], where=f"output {binding['name']}")
        for body in bodies:
            await send_raw(client, self.encode(body))

    def encode(self, body: str | bytes) -> str:
        data = body.encode() if isinstance(body, str) else body
        return base64.b64encode(data).decode() if self._options.base64 else data.decode()

    def decode(self, content: str) -> bytes:
        """The body of a message as on the wire. Raises ValueError."""
        if not self._options.base64:
            return content.encode()
        try:
            return base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64, which host.json messageEncoding asks for: {error}") from error

    async def aclose(self) -> None:
        await self._wire.aclose()


async def send_raw(client: QueueRequests, content: str) -> None:
    """Send content as it is to go over the wire; make the queue if there is none."""
    try:
        await client.put(content)
    except ResourceNotFoundError:
        with contextlib.suppress(ResourceExistsError):  # somebody else was faster
            await client.create()
        await client.put(content)


class QueueListener:
    """Receives from one queue and runs one function on each message."""

    def __init__(
        self,
        queues: StorageQueues,
        client: QueueRequests,
        poison: QueueRequests | None,
        options: QueueOptions,
        process: Callable[[func.QueueMessage], Awaitable[bool]],
    ) -> None:
        """`process` tells whether the function succeeded; `poison` is None for a queue that is a poison queue."""
        self._queues = queues
        self._client = client
        self._poison = poison
        self._options = options
        self._process = process
        self._lease_s = options.visibility_timeout_s or _DEFAULT_LEASE_S

    async def run(self, stopping: asyncio.Event) -> None:
        """Receive until the event is set, then return when the messages at work are done."""
        at_work: set[asyncio.Task[None]] = set()
        pause_s = 0.0
        async with asyncio.TaskGroup() as group:
            while not await waited_for(stopping, pause_s):
                while len(at_work) > self._options.new_batch_threshold:
                    await asyncio.wait(at_work, return_when=asyncio.FIRST_COMPLETED)
                    at_work = {task for task in at_work if not task.done()}
                messages = [] if stopping.is_set() else await self._receive()
                at_work |= {group.create_task(self._handle(message)) for message in messages}
                pause_s = 0.0 if messages else self._longer(pause_s)

    def _longer(self, pause_s: float) -> float:
        return min(max(2 * pause_s, _MINIMUM_POLLING_INTERVAL_S), self._options.max_polling_interval_s)

    async def _receive(self) -> list[Taken]:
        try:
            return await self._client.take(self._options.batch_size, hidden_s=_whole_seconds(self._lease_s))
        except ResourceNotFoundError:
            logger.debug("queue %s does not exist yet", self._client.name)
        except AzureError as error:
            logger.warning("queue %s cannot be read: %s", self._client.name, error)
        return []

    async def _handle(self, message: Taken) -> None:
        """Process one message and settle it; an error in settling leaves it to come again."""
        try:
            if await self._succeeded(message):
                await self._client.delete(message)
            else:
                await self._settle_failed(message)
        except AzureError as error:
            logger.warning("message %s of queue %s was not settled: %s", message.id, self._client.name, error)

    async def _succeeded(self, message: Taken) -> bool:
        if self._attempts(message) > self._options.max_dequeue_count:
            return False  # earlier attempts ended with their process, before they could settle it
        try:
            body = self._queues.decode(message.content)
        except ValueError as error:
            logger.warning("message %s of queue %s: %s", message.id, self._client.name, error)
            message.dequeue_count = self._options.max_dequeue_count  # trying again will not help
            return False
        async with self._renewed(message):
            return await self._process(_trigger_message(message, body))

    async def _settle_failed(self, message: Taken) -> None:
        if self._poison is None:
            return  # stays where it is, hidden until its lease ends: no hot loop
        if self._attempts(message) < self._options.max_dequeue_count:
            hidden = _whole_seconds(self._options.visibility_timeout_s)
            await self._client.hide(message, hidden)
            return
        logger.warning("message %s moves to %s", message.id, self._poison.name)
        await send_raw(self._poison, message.content)
        await self._client.delete(message)

    @contextlib.asynccontextmanager
    async def _renewed(self, message: Taken) -> AsyncIterator[None]:
        """Keep the message hidden, renewing its lease at half time."""
        done = asyncio.Event()
        task = asyncio.create_task(self._renew(message, done))
        try:
            yield
        finally:
            # Not cancelled: a renewal cut off on the wire would leave us with a pop receipt that is no longer valid.
            done.set()
            await task

    async def _renew(self, message: Taken, done: asyncio.Event) -> None:
        while not await waited_for(done, self._lease_s / 2):
            try:
                await self._client.hide(message, _whole_seconds(self._lease_s))
            except AzureError as error:
                logger.warning("the lease of message %s was not renewed: %s", message.id, error)

    @staticmethod
    def _attempts(message: Taken) -> int:
        return message.dequeue_count or 1


async def waited_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event at most that long (not at all for 0); tell whether it is set."""
    if seconds > 0 and not event.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


def _trigger_message(message: Taken, body: bytes) -> func.QueueMessage:
    return QueueMessage(  # type: ignore[no-untyped-call]  # the SDK leaves it untyped
        id=message.id,
        body=body,
        dequeue_count=message.dequeue_count,
        expiration_time=message.expires_on,
        insertion_time=message.inserted_on,
        time_next_visible=message.next_visible_on,
        pop_receipt=message.pop_receipt,
    )


def _whole_seconds(seconds: float) -> int:
    return math.ceil(seconds)  # the service takes no fractions
