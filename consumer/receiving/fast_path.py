"""A short cut through the Event Hubs SDK for received events: three hooks into its private parts, on single objects only.

The SDK (5.15) makes two tasks per network frame, decodes everything in it, and builds three objects around it: 100 us per
event of 1 KB. With the hooks, whole frames are taken from the stream's buffer, their messages are kept as bytes, and
consumer.receiving.amqp_event reads them: a third of the time. Anything unusual (an incomplete frame, a message of several
frames, an unusual event) is left to the SDK.

Nothing depends on it. consumer.receiving.link imports this module only if the SDK's version is supported, and works without
it if that or anything here fails. A hook changes nothing before it has understood what it read: when one fails, the SDK
handles the same data itself, no hook is used any more, and the owner of the link is called.

It also stops the SDK from remembering the tag of every event for as long as a link lasts (100 bytes each), and from reading
on while the link holds as many events or bytes as it may: the SDK itself reads up to a whole batch more, whatever the size.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_frame, decode_payload
from azure.eventhub.aio import EventHubConsumerClient

from consumer.model import Event
from consumer.receiving.amqp_event import last_enqueued, read_event
from consumer.receiving.events import last_enqueued as last_enqueued_of
from consumer.receiving.events import to_event

_FRAME_HEADER = 8  # bytes: size (4), data offset in words of 4, type, channel (2)
_AMQP = 0  # type of frame
_SETTLED, _MORE, _PAYLOAD = 4, 5, 11  # fields of a transfer

_T = TypeVar("_T")


class Shortcut:
    """Makes a client return our events instead of the SDK's, until a private part is not as expected."""

    def __init__(
        self,
        client: EventHubConsumerClient,
        partition: str,
        on_broken: Callable[[Exception], object],
        most: int = sys.maxsize,
        handed_over: Callable[[], int] = lambda: 0,
        most_bytes: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`most` events, or `most_bytes`, are held before the SDK reads on; `handed_over` counts events that have left its
        buffer and are not processed yet. `on_broken` is called once, with the reason, when the hooks stop working.

        Raises AttributeError if the SDK's private parts are not as expected; `client` is unchanged then.
        """
        self._partition = partition
        self._on_broken = on_broken
        self._broken = False
        self._consumer: Any = None
        self._most = most
        self._room = asyncio.Event()
        self._handed_over = handed_over
        self._most_bytes = most_bytes
        self._sizes = deque[int]()  # of the messages held, in the order of their arrival
        self._held_bytes = 0  # with the part of the next message that has arrived
        self._begun_bytes = 0
        self._newest: Any = None
        self._create: Callable[..., Any] = client._create_consumer  # hook 1
        client._create_consumer = self._create_consumer  # type: ignore[method-assign]

    def last_enqueued(self) -> int | None:
        """As the newest event that was handed out reports it."""
        newest = self._newest
        if isinstance(newest, bytes):
            return last_enqueued(newest)
        return None if newest is None else last_enqueued_of((newest,))

    def widen(self, prefetch: int) -> bool:
        """Sets how many events the link asks for from its next round on; False if that is not possible."""

        def set_prefetch() -> bool:
            self._consumer._handler._link_credit = self._consumer._prefetch = self._most = prefetch
            return True

        return self.attempt(set_prefetch) is True

    def note_done(self, count: int) -> None:
        """Notes that `count` of the events that were handed over are processed."""
        for _ in range(min(count, len(self._sizes))):
            self._held_bytes -= self._sizes.popleft()
        self._room.set()

    def let_go(self) -> None:
        """Reads on without limits, because the link is closing and the service's answers are needed."""
        self._most, self._most_bytes = sys.maxsize, lambda: math.inf
        self._room.set()

    def note_frame(self, size: int, *, is_last: bool) -> None:
        """Notes that `size` bytes of a message arrived."""
        """So many bytes of a message came."""
        self._held_bytes += size
        self._begun_bytes += size
        if is_last:
            self._sizes.append(self._begun_bytes)
            self._begun_bytes = 0

    def _held(self) -> int:
        return len(self._consumer._message_buffer) + self._handed_over()

    def _is_full(self) -> bool:
        return self._held() >= self._most or self.is_full_of_bytes()

    def is_full_of_bytes(self) -> bool:
        if self._held_bytes < self._most_bytes():
            return False
        if not self._held():  # messages that the SDK dropped are not held
            self._sizes.clear()
            self._held_bytes = self._begun_bytes
        return bool(self._sizes)

    def attempt(self, step: Callable[..., _T], *arguments: Any) -> _T | None:
        """The result of a step; None if it, or an earlier one, failed."""
        if not self._broken:
            try:
                return step(*arguments)
            except Exception as error:  # reported; the SDK does the same itself
                self._fail(error)
        return None

    def _fail(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            self._on_broken(error)

    def _create_consumer(self, *args: Any, **options: Any) -> Any:
        consumer = self._create(*args, **options)
        self.attempt(self._hook_consumer, consumer)
        return consumer

    def _hook_consumer(self, consumer: Any) -> None:
        """Hook 2: makes events when they are taken from the buffer, and hooks the link when it is open."""
        buffer, open_link, _ = consumer._message_buffer, consumer._open, consumer._next_message_in_buffer

        def next_event() -> Event:
            try:
                event = self._event(buffer[0])
            except Exception as error:
                # It stays in the buffer. This link ends here, and the next one begins after the event before.
                self._fail(error)
                raise
            buffer.popleft()
            consumer._last_received_event = event  # the SDK reconnects after its offset
            return event

        async def open_and_hook() -> None:
            was_open = consumer.running
            await open_link()
            if not was_open:
                self.attempt(_hook_link, consumer, self)
                self.attempt(_hook_transport, consumer, self)
            while self.attempt(self._is_full):  # the SDK opens the link before each read
                self._room.clear()
                await self._room.wait()

        self._consumer = consumer
        consumer._next_message_in_buffer = next_event
        consumer._open = open_and_hook

    def _event(self, message: Any) -> Event:
        """From bytes, or from the SDK's message if the SDK decoded it."""
        if isinstance(message, memoryview):
            data = bytes(message)
            event = read_event(self._partition, data)
            if event is not None:
                self._newest = data
                return event
            message = decode_payload(memoryview(data))
        self._newest = EventData._from_message(message)
        return to_event(self._partition, self._newest)


def _hook_link(consumer: Any, shortcut: Shortcut) -> None:
    """Hook 3a: puts a settled message of one frame into the buffer undecoded."""
    handler = consumer._handler
    link, keep = handler._link, consumer._message_buffer.append
    incoming: Callable[[Any], Awaitable[None]] = link._incoming_transfer

    def take(frame: Any) -> bool:
        """Whether it was such a message, which is in the buffer now."""
        if not frame[_SETTLED] or frame[_MORE] or link._received_payload:
            return False
        number, payload = frame[1], frame[_PAYLOAD]
        count, credit = link.delivery_count + 1, link.current_link_credit - 1
        link.received_delivery_id, link.delivery_count, link.current_link_credit = number, count, credit
        handler._last_activity_timestamp = time.time()
        keep(payload)
        return True

    def count(frame: Any) -> None:
        shortcut.note_frame(len(frame[_PAYLOAD] or b""), is_last=not frame[_MORE])

    def forget_tag(frame: Any) -> None:
        if frame[_SETTLED]:
            link._received_delivery_tags.clear()

    async def incoming_transfer(frame: Any) -> None:
        shortcut.attempt(count, frame)
        if not shortcut.attempt(take, frame):
            await incoming(frame)
            shortcut.attempt(forget_tag, frame)

    link._incoming_transfer = incoming_transfer


def _hook_transport(consumer: Any, shortcut: Shortcut) -> None:
    """Hook 3b: takes a frame that has arrived completely without waiting, hence without a task and a timer.

    Not while another task receives: the SDK's keep-alive does so beside its receiver, every 30 s. A frame that the SDK has
    read reaches its reader a few turns of the loop later, and a frame taken meanwhile would overtake it.
    """
    transport = consumer._handler._connection._transport
    stream: asyncio.StreamReader = transport.reader
    buffered: bytearray = stream._buffer  # type: ignore[attr-defined]
    resume: Callable[[], None] = stream._maybe_resume_transport  # type: ignore[attr-defined]
    receive: Callable[..., Awaitable[Any]] = transport.receive_frame

    waiting = 0

    def take() -> tuple[int, Any] | None:
        if waiting:
            return None
        size = int.from_bytes(buffered[:4])
        is_whole = _FRAME_HEADER < size <= len(buffered) and buffered[5] == _AMQP
        begun = transport._read_buffer  # the part of a frame that was read before a timeout
        if not is_whole or begun.tell() < begun.getbuffer().nbytes or transport.socket_lock.locked():
            return None
        frame = memoryview(bytes(buffered[:size]))
        taken = int.from_bytes(frame[6:8]), decode_frame(frame[4 * frame[4] :])
        del buffered[:size]
        shortcut.attempt(resume)
        return taken

    async def receive_frame(timeout: float | None = None, **options: Any) -> Any:
        nonlocal waiting
        if shortcut.attempt(shortcut.is_full_of_bytes):
            return None, None  # as if nothing had arrived: the SDK opens the link next, and waits there
        if taken := shortcut.attempt(take):
            return taken
        waiting += 1
        try:
            return await receive(timeout=timeout, **options)
        finally:
            waiting -= 1

    transport.receive_frame = receive_frame
