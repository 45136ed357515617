"""Reads the poison queues, where the host puts messages it gave up on, and leaves the messages there."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError

from scaling.ports import PoisonMessage
from tidemark.foundation.azure.connections import (
    ConnectionSettingsError,
    Settings,
    error_code,
    queue_client,
    storage_endpoint,
)
from tidemark.foundation.azure.opening import LazyClient
from tidemark.foundation.azure.tables import unavailable
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.sanitize import without_secrets

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage
    from azure.storage.queue.aio import QueueClient

BODY_CHARS = 1_000
PEEK_MAX = 32  # messages the service hands out per peek
POISON_SUFFIX = "-poison"  # where the Functions host moves messages it gave up on


class QueuePoisonQueues:
    """The poison queues of the given queues.

    The first read opens the clients, because most functions never read them, and the SDK takes its time to load.
    """

    def __init__(self, settings: Settings, prefix: str, *, queues: Sequence[str], **options: Any) -> None:
        """`options` go to the SDK's clients. Raises ConnectionSettingsError."""
        storage_endpoint(settings, prefix, "queue")
        names = [name + POISON_SUFFIX for name in queues]
        self._prefix = prefix
        self._clients: LazyClient[list[QueueClient]] = LazyClient(
            lambda: [queue_client(settings, prefix, name, **options) for name in names], _close_all
        )

    async def peek(self, limit: int = 16) -> tuple[int, Sequence[PoisonMessage]]:
        """The approximate number in all, and up to `limit` messages, in turn from each queue.

        A missing queue holds none. Raises StoreUnavailableError.
        """
        total = 0
        by_queue: list[list[PoisonMessage]] = []
        try:
            queues = await self._clients.get()
        except ConnectionSettingsError as error:  # what only the SDK finds wrong with them
            raise StoreUnavailableError(str(error)) from error
        for queue in queues:
            count, messages = await self._peek(queue, limit)
            total += count
            by_queue.append(messages)
        in_turn = chain.from_iterable(zip_longest(*by_queue))
        return total, [message for message in in_turn if message is not None][:limit]

    async def _peek(self, queue: QueueClient, limit: int) -> tuple[int, list[PoisonMessage]]:
        try:
            properties = await queue.get_queue_properties()
            count = properties.approximate_message_count or 0
            if not count or limit < 1:
                return count, []
            messages = await queue.peek_messages(min(limit, PEEK_MAX))
        except ResourceNotFoundError:
            return 0, []
        except Exception as error:  # also what the SDK or its transport lets through
            where = f"queue '{queue.queue_name}' of storage account '{queue.account_name}' (connection {self._prefix})"
            raise unavailable(where, error, error_code(error)) from error
        return count, [_poison(queue.queue_name, message) for message in messages]

    async def put(self, queue: str, body: str) -> None:
        """As the host leaves a message there. Makes the queue where it is missing. Raises StoreUnavailableError."""
        name = queue + POISON_SUFFIX
        try:
            client = next(known for known in await self._clients.get() if known.queue_name == name)
            try:
                await client.send_message(body)
            except ResourceNotFoundError:
                with suppress(ResourceExistsError):
                    await client.create_queue()
                await client.send_message(body)
        except Exception as error:  # as above; also for a queue that is not among these
            raise unavailable(
                f"queue '{name}' (connection {self._prefix})", error, error_code(error)
            ) from error

    async def aclose(self) -> None:
        await self._clients.aclose()


async def _close_all(queues: Sequence[QueueClient]) -> None:
    for queue in queues:
        await queue.close()


def _poison(queue: str, message: QueueMessage) -> PoisonMessage:
    inserted = message.inserted_on
    return PoisonMessage(
        queue, message.id, inserted.timestamp() if inserted else None, shown(str(message.content))
    )


def shown(content: str) -> str:
    """A message's body for people: decoded where it is base64 of UTF-8 text, cut after BODY_CHARS."""
    try:
        text = base64.b64decode(content, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        text = content
    # Short plain words can happen to be base64; what they decode to is rarely printable.
    if not all(character.isprintable() or character in "\r\n\t" for character in text):
        text = content
    return without_secrets(text)[:BODY_CHARS]  # anybody may write to a queue, and at length
