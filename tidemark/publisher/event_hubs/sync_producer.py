"""The producer for programs without an event loop: the same producer, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

from tidemark.publisher.blocking import blocking
from tidemark.publisher.errors import ProducerClosedError
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, PublishableEvent
from tidemark.publisher.event_hubs.producer import IdempotentProducer

_Result = TypeVar("_Result")


class SyncIdempotentProducer(AbstractContextManager["SyncIdempotentProducer"]):
    """An IdempotentProducer whose methods block. Arguments and errors are the same; several threads may use it.

    An interrupt (KeyboardInterrupt) cancels the call it hits, which then ends at a point where it is known what
    became of the events.
    """

    def __init__(
        self, fully_qualified_namespace: str, eventhub_name: str, credential: Any, **options: Any
    ) -> None:
        self._start(
            lambda: IdempotentProducer(fully_qualified_namespace, eventhub_name, credential, **options)
        )

    @classmethod
    def from_connection_string(
        cls, connection: str, eventhub_name: str | None = None, **options: Any
    ) -> Self:
        return cls.around(
            lambda: IdempotentProducer.from_connection_string(connection, eventhub_name, **options)
        )

    @classmethod
    def around(cls, create: Callable[[], IdempotentProducer]) -> Self:
        """A producer that blocks, around one that `create` makes on the loop it will live in."""
        self = cls.__new__(cls)
        self._start(create)
        return self

    def _start(self, create: Callable[[], IdempotentProducer]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="publisher", daemon=True)
        self._thread.start()
        self._stopping = threading.Lock()

        async def created() -> IdempotentProducer:
            return create()

        try:
            self.awaited = self._wait(created())
        except BaseException:
            self._stop()
            raise

    @property
    def is_idempotent(self) -> bool:
        return self.awaited.is_idempotent

    @property
    def eventhub_name(self) -> str:
        return self.awaited.eventhub_name

    @property
    def fully_qualified_namespace(self) -> str:
        return self.awaited.fully_qualified_namespace

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    get_partition_ids = blocking(IdempotentProducer.get_partition_ids)
    get_partition_publishing_properties = blocking(IdempotentProducer.get_partition_publishing_properties)
    create_batch = blocking(IdempotentProducer.create_batch)
    send_batch = blocking(IdempotentProducer.send_batch)
    send_events = blocking(IdempotentProducer.send_events)
    send_set = blocking(IdempotentProducer.send_set)
    max_message_size = blocking(IdempotentProducer.max_message_size)
    saved_state = blocking(IdempotentProducer.saved_state)
    abandon_pending = blocking(IdempotentProducer.abandon_pending)

    def encode(self, event: PublishableEvent) -> tuple[EncodedEvent, int]:
        return self.awaited.encode(event)

    def close(self, *, timeout: float = 10.0) -> None:
        with self._stopping:
            if self._loop.is_closed():
                return
            try:
                self._wait(self.awaited.close(timeout=timeout))
            finally:
                self._stop()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._loop.is_closed():
            work.close()
            raise ProducerClosedError("the producer is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt; otherwise it has ended
            raise

    def _stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
