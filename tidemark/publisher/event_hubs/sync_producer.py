"""The producer for programs without an event loop: the same producer, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from asyncio.events import (
    _get_running_loop,  # documented for event loops; get_running_loop raises without one
)
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

from tidemark.publisher.blocking import blocking
from tidemark.publisher.errors import ProducerClosedError
from tidemark.publisher.event_hubs.batch import PublishingBatch
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, PublishableEvent
from tidemark.publisher.event_hubs.producer import IdempotentProducer

_Result = TypeVar("_Result")

_IDLE = 0.5
"""Seconds between two turns of the loop while nobody calls: connections answer what the service asks meanwhile. Chosen: far
below the idle timeout of a connection, which is minutes.
"""
_MOMENT = 0.005  # seconds of such a turn; chosen: several rounds of the loop


class SharedLoop:
    """Runs coroutines of any thread on one loop. The first caller runs the loop; others hand their calls to it.

    When the first call ends before the others, a thread of this class goes on with the loop. `closing` is held by who closes it.
    """

    def __init__(self) -> None:
        self.closing = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._turn = threading.Lock()  # held by the thread that runs the loop
        self._count_lock = threading.Lock()
        self._handed_over = 0  # calls that wait for another thread to run the loop
        self._changed = asyncio.Event()  # on the loop: a call that was handed over has ended
        self._wake = threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._go_on, name="publisher", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of the coroutine. An interrupt cancels it, and is raised once it has ended."""
        is_within_loop = _get_running_loop() is not None
        if is_within_loop or not self._turn.acquire(blocking=False):
            return self._hand_over(work)
        try:
            task = self._loop.create_task(work)
            with _cancel_on_interrupt(self._loop, task) as interrupts:
                try:
                    return self._loop.run_until_complete(task)
                except asyncio.CancelledError:
                    if interrupts:
                        raise KeyboardInterrupt from None
                    raise
                except BaseException:
                    self._leave(task)
                    raise
        finally:
            self._turn.release()
            if self._handed_over:
                self._wake.set()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task that an exception of a signal handler has left, and let it end on the other thread."""
        if not task.done():
            with self._count_lock:
                self._handed_over += 1
            task.add_done_callback(self._forget)
            task.cancel()

    def _hand_over(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        with self._count_lock:
            self._handed_over += 1
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(self._forget)
        self._wake.set()
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt; otherwise it has ended
            raise

    def _forget(self, _: object) -> None:
        with self._count_lock:
            self._handed_over -= 1
        self._loop.call_soon_threadsafe(self._changed.set)

    def _go_on(self) -> None:
        """Run the loop while calls were handed over, and for a moment when it was idle for long."""
        while not self._is_ending:
            self._wake.wait(_IDLE)  # a call that is handed over sets it
            self._wake.clear()
            with self._turn:
                if not self._is_ending:
                    self._loop.run_until_complete(self._until_done())
        with self._turn:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _until_done(self) -> None:
        await asyncio.sleep(_MOMENT)
        while self._handed_over:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        self._is_ending = True
        self._wake.set()
        self._thread.join()


@contextlib.contextmanager
def _cancel_on_interrupt(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Iterator[list[int]]:
    """Let SIGINT cancel the task, as asyncio.Runner does, instead of ending it in the middle of a step. Yields the signals."""
    interrupts: list[int] = []
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield interrupts
        return

    def cancel(number: int, _: object) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(number)
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes the selector

    signal.signal(signal.SIGINT, cancel)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
    resend_pending = blocking(IdempotentProducer.resend_pending)
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
