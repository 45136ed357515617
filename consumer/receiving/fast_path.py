"""A short cut through the Event Hubs SDK for received events: three hooks into its private parts, on single objects only.

The SDK (5.15) makes two tasks per network frame, decodes everything in it, and builds three objects around it: 100 us per
event of 1 KB. With the hooks, all whole frames in the stream's buffer are taken at once, their messages are kept as bytes, and
consumer.receiving.layouts reads them: a tenth of the time. A frame that looks different from the ones before is taken by itself.
Anything unusual (a message of several frames, a frame of more than 1 MB, an unusual event) is left to the SDK.

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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_frame, decode_payload
from azure.eventhub.aio import EventHubConsumerClient

from consumer.model import Event
from consumer.receiving.amqp_event import last_enqueued
from consumer.receiving.events import last_enqueued as last_enqueued_of
from consumer.receiving.events import to_event
from consumer.receiving.layouts import EventReader, TransferLayout
from consumer.receiving.sdk_frames import FrameBuffer, LinkCounters

_SETTLED, _MORE, _PAYLOAD = 4, 5, 11  # fields of a transfer
_TAKEN = 1, b"EMPTY"
"""What the SDK's connection gets for frames that were taken: an empty frame, after which it reads on."""
_NOTHING = None, None
"""What it gets when nothing arrived: it ends its round, grants credit, and opens the link again, where it waits for room."""

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
        self._reader = EventReader(partition)
        self._on_broken = on_broken
        self.is_broken = False
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

    def note_messages(self, messages: Sequence[bytes], size: int) -> None:
        """Notes that whole messages of `size` bytes together arrived."""
        self._held_bytes += size
        self._sizes.extend(map(len, messages))

    def bytes_left(self) -> float:
        """How many bytes more may be held."""
        return self._most_bytes() - self._held_bytes

    def note_frame(self, size: int, *, is_last: bool) -> None:
        """Notes that `size` bytes of a message arrived."""
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
        if not self.is_broken:
            try:
                return step(*arguments)
            except Exception as error:  # reported; the SDK does the same itself
                self._fail(error)
        return None

    def _fail(self, error: Exception) -> None:
        if not self.is_broken:
            self.is_broken = True
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
        if isinstance(message, bytes | memoryview):
            data = bytes(message)
            event = self._reader.read(data)
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
    """Hook 3b: takes frames that have arrived completely without waiting, hence without a task and a timer.

    One task receives at a time: the SDK's keep-alive does so beside its receiver, every 30 s. A frame that the SDK has read reaches
    its reader a few turns of the loop later, more of them at a timeout, and a frame taken meanwhile would overtake it.
    """
    transport = consumer._handler._connection._transport
    frames, link = FrameBuffer(transport), LinkCounters(consumer)
    receive: Callable[..., Awaitable[Any]] = transport.receive_frame
    turn = asyncio.Lock()

    def take() -> tuple[Any, Any] | None:
        if not frames.are_next():
            return None
        taken = _take_alike(frames, link, shortcut) or _take_one(frames, link)
        shortcut.attempt(frames.resume)
        return taken

    async def read(timeout: float | None, options: Any) -> Any:
        if not shortcut.is_broken and await frames.are_none_within(timeout):
            return _NOTHING
        return shortcut.attempt(take) or await receive(timeout=timeout, **options)

    async def receive_frame(timeout: float | None = None, **options: Any) -> Any:
        if shortcut.attempt(shortcut.is_full_of_bytes):
            return _NOTHING
        if not turn.locked() and (taken := shortcut.attempt(take)):
            return taken
        try:
            async with asyncio.timeout(timeout if turn.locked() else None):
                await turn.acquire()
        except TimeoutError:
            return _NOTHING
        try:
            return await read(timeout, options)
        finally:
            turn.release()

    transport.receive_frame = receive_frame


def _take_alike(frames: FrameBuffer, link: LinkCounters, shortcut: Shortcut) -> tuple[Any, Any] | None:
    taken = frames.find_alike(link.most(), shortcut.bytes_left())
    if taken is None:
        return None
    link.keep(taken)
    shortcut.note_messages(taken.messages, taken.size)
    frames.drop(taken.end)
    return (0, _TAKEN) if link.has_credit() else _NOTHING


def _take_one(frames: FrameBuffer, link: LinkCounters) -> tuple[Any, Any] | None:
    frame = frames.find_whole()
    if frame is None:
        return None
    channel, decoded = int.from_bytes(frame[6:8]), decode_frame(memoryview(frame)[4 * frame[4] :])
    frames.layout = TransferLayout.of(frame) if link.is_of(channel, decoded) else None
    frames.drop(len(frame))
    return channel, decoded
