"""The producer for programs without an event loop: the same producer, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from publisher.errors import ProducerClosedError
from publisher.event_hubs.batch import PublishingBatch, SentSet
from publisher.event_hubs.ports.links import EncodedEvent, PublishableEvent
from publisher.event_hubs.producer import IdempotentProducer
from publisher.model import PartitionPublishingProperties, SavedState

_Result = TypeVar("_Result")


class SyncIdempotentProducer:
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
            self._producer = self._wait(created())
        except BaseException:
            self._stop()
            raise

    @property
    def is_idempotent(self) -> bool:
        return self._producer.is_idempotent

    @property
    def eventhub_name(self) -> str:
        return self._producer.eventhub_name

    @property
    def fully_qualified_namespace(self) -> str:
        return self._producer.fully_qualified_namespace

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def get_partition_ids(self) -> list[str]:
        return self._wait(self._producer.get_partition_ids())

    def get_partition_publishing_properties(self, partition_id: str) -> PartitionPublishingProperties:
        return self._wait(self._producer.get_partition_publishing_properties(partition_id))

    def create_batch(
        self,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        max_size_in_bytes: int | None = None,
    ) -> PublishingBatch:
        return self._wait(
            self._producer.create_batch(
                partition_id=partition_id, partition_key=partition_key, max_size_in_bytes=max_size_in_bytes
            )
        )

    def send_batch(
        self, batch: PublishingBatch, *, bookmark: str | None = None, timeout: float | None = None
    ) -> None:
        self._wait(self._producer.send_batch(batch, bookmark=bookmark, timeout=timeout))

    def send_events(
        self,
        events: Sequence[PublishableEvent],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        bookmark: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._wait(
            self._producer.send_events(
                events,
                partition_id=partition_id,
                partition_key=partition_key,
                bookmark=bookmark,
                timeout=timeout,
            )
        )

    def send_set(self, partition_id: str, events: SentSet, *, timeout: float | None = None) -> None:
        self._wait(self._producer.send_set(partition_id, events, timeout=timeout))

    def encode(self, event: PublishableEvent) -> tuple[EncodedEvent, int]:
        return self._producer.encode(event)

    def max_message_size(self, partition_id: str) -> int:
        return self._wait(self._producer.max_message_size(partition_id))

    def saved_state(self, partition_id: str) -> SavedState:
        return self._wait(self._producer.saved_state(partition_id))

    def abandon_pending(self, partition_id: str) -> None:
        self._wait(self._producer.abandon_pending(partition_id))

    def close(self, *, timeout: float = 10.0) -> None:
        with self._stopping:
            if self._loop.is_closed():
                return
            try:
                self._wait(self._producer.close(timeout=timeout))
            finally:
                self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
