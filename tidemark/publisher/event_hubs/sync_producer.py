"""The producer for programs without an event loop: the same producer, on a loop in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

from tidemark.publisher.blocking import blocking
from tidemark.publisher.errors import ProducerClosedError
from tidemark.publisher.event_hubs.batch import PublishingBatch
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, PublishableEvent
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.event_hubs.shared_loop import SharedLoop

_Result = TypeVar("_Result")


class SyncIdempotentProducer(AbstractContextManager["SyncIdempotentProducer"]):
    """An IdempotentProducer whose methods block. Arguments and errors are the same; several threads may use it.

    An interrupt (KeyboardInterrupt) cancels the call it hits, which then ends at a point where it is known what
    became of the events.

    The caller's thread runs the event loop itself: to hand a call to another thread costs more than to send a small batch. A
    thread of the producer runs the loop while several calls are under way, and now and then while there is none, so that idle
    connections are kept.
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
        self._runner = SharedLoop()

        async def created() -> IdempotentProducer:
            return create()

        try:
            self.awaited = self._wait(created())
        except BaseException:
            self._runner.close()
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
        return self._runner.is_closed

    get_partition_ids = blocking(IdempotentProducer.get_partition_ids)
    get_partition_publishing_properties = blocking(IdempotentProducer.get_partition_publishing_properties)
    _create_batch = blocking(IdempotentProducer.create_batch)
    send_batch = blocking(IdempotentProducer.send_batch)
    send_events = blocking(IdempotentProducer.send_events)
    send_set = blocking(IdempotentProducer.send_set)
    max_message_size = blocking(IdempotentProducer.max_message_size)
    saved_state = blocking(IdempotentProducer.saved_state)
    abandon_pending = blocking(IdempotentProducer.abandon_pending)

    def create_batch(
        self,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        max_size_in_bytes: int | None = None,
    ) -> PublishingBatch:
        """As IdempotentProducer.create_batch."""
        if partition_key is None:
            batch = self.create_batch_at_once(partition_id, max_size_in_bytes)
            if batch is not None:
                return batch
        return self._create_batch(
            partition_id=partition_id, partition_key=partition_key, max_size_in_bytes=max_size_in_bytes
        )

    def create_batch_at_once(
        self, partition_id: str | None, max_size_in_bytes: int | None = None
    ) -> PublishingBatch | None:
        """As IdempotentProducer.create_batch_at_once."""
        return self.awaited.create_batch_at_once(partition_id, max_size_in_bytes)

    def encode(self, event: PublishableEvent) -> tuple[EncodedEvent, int]:
        return self.awaited.encode(event)

    def close(self, *, timeout: float = 10.0) -> None:
        with self._runner.closing:
            if self._runner.is_closed:
                return
            try:
                self._wait(self.awaited.close(timeout=timeout))
            finally:
                self._runner.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._runner.is_closed:
            work.close()
            raise ProducerClosedError("the producer is closed")
        return self._runner.run(work)
