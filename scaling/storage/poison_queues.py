"""A look at the poison queues: what the host gave up on, without touching it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeVar

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueMessage
from azure.storage.queue.aio import QueueClient

from foundation.azure.connections import Settings, queue_client, storage_endpoint
from foundation.azure.tables import unavailable
from foundation.sanitize import without_secrets
from scaling.ports import PoisonMessage

BODY_CHARS = 1_000
PEEK_MAX = 32  # messages the service hands out per peek
POISON_SUFFIX = "-poison"  # where the Functions host moves messages it gave up on

_T = TypeVar("_T")


class _Queue:
    """A queue by name: opened on first use, errors of the service as StoreUnavailableError."""

    def __init__(self, settings: Settings, prefix: str, name: str, **options: Any) -> None:
        storage_endpoint(settings, prefix, "queue")
        self.name = name
        self._settings = settings
        self._prefix = prefix
        self._options = options
        self._client: QueueClient | None = None

    async def call(self, operation: Callable[[QueueClient], Awaitable[_T]]) -> _T:
        """Raises ResourceNotFoundError for a missing queue, StoreUnavailableError for anything else."""
        if self._client is None:
            self._client = queue_client(self._settings, self._prefix, self.name, **self._options)
        try:
            return await operation(self._client)
        except ResourceNotFoundError:
            raise
        except Exception as error:  # also what the SDK or its transport lets through
            account = self._client.account_name
            where = f"queue '{self.name}' of storage account '{account}' (connection {self._prefix})"
            code: Any = getattr(error, "error_code", None) or getattr(error, "reason", "")
            raise unavailable(where, error, code) from error

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


class QueuePoisonQueues:
    """The poison queues of the given queues; looking at a message leaves it where and as it is."""

    def __init__(self, settings: Settings, prefix: str, *, queues: Sequence[str], **options: Any) -> None:
        """`options` go to the SDK's clients. Raises ConnectionSettingsError."""
        self._queues = [_Queue(settings, prefix, name + POISON_SUFFIX, **options) for name in queues]

    async def peek(self, limit: int = 16) -> tuple[int, Sequence[PoisonMessage]]:
        """The approximate number in all, and up to `limit` messages, in turn from each queue.

        A missing queue holds none. Raises StoreUnavailableError.
        """
        total = 0
        found: list[list[PoisonMessage]] = []
        for queue in self._queues:
            count, messages = await _peek(queue, limit)
            total += count
            found.append(messages)
        in_turn = chain.from_iterable(zip_longest(*found))
        return total, [message for message in in_turn if message is not None][:limit]

    async def aclose(self) -> None:
        for queue in self._queues:
            await queue.aclose()


async def _peek(queue: _Queue, limit: int) -> tuple[int, list[PoisonMessage]]:
    try:
        properties = await queue.call(lambda client: client.get_queue_properties())
        count = properties.approximate_message_count or 0
        if not count or limit < 1:
            return count, []
        messages = await queue.call(lambda client: client.peek_messages(min(limit, PEEK_MAX)))
    except ResourceNotFoundError:
        return 0, []
    return count, [_poison(queue.name, message) for message in messages]


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
    return without_secrets(text[: 2 * BODY_CHARS])[:BODY_CHARS]  # anybody may write to a queue, and at length
