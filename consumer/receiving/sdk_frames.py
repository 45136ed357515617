"""The two places of the SDK that the fast path takes frames between: the buffer of a connection, and the counters of a link.

Both are private parts of the SDK (5.15) and of asyncio's streams; see consumer.receiving.fast_path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from consumer.receiving.layouts import TransferLayout, Transfers

_FRAME_HEADER = 8  # bytes: size (4), data offset in words of 4, type, channel (2)
_LARGEST_FRAME = 1 << 20  # bytes; the SDK asks for frames of at most 1 MB
_AMQP = 0  # type of frame
_HANDLE = 0  # field of a transfer
_TRANSFER = 20


class FrameBuffer:
    """The frames in the buffer of a connection's stream. What is found stays there until it is dropped."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._stream: Any = transport.reader
        self._buffered: bytearray = self._stream._buffer
        self.resume: Callable[[], None] = self._stream._maybe_resume_transport
        self.layout: TransferLayout | None = None
        """The layout of the last transfer that was read by itself."""

    def are_next(self) -> bool:
        """Whether the buffer begins with a frame, and nobody else reads."""
        begun = self._transport._read_buffer  # the part of a frame that was read before a timeout
        return begun.tell() >= begun.getbuffer().nbytes and not self._transport.socket_lock.locked()

    async def are_none_within(self, timeout: float | None) -> bool:
        """Waits for a whole frame: True if none comes in time. False also if the SDK should read, for example at the end of the
        stream. The SDK's own waiting makes a task for each time.
        """
        if not self.are_next():
            return False
        try:
            async with asyncio.timeout(timeout), self._transport.socket_lock:
                while self._is_incomplete():
                    await self._stream._wait_for_data("receive_frame")
        except TimeoutError:
            return True
        except Exception:  # the SDK's reading raises it, too, and handles it
            return False
        return False

    def _is_incomplete(self) -> bool:
        """Whether more bytes of the next frame can come."""
        if self._stream._eof or self._stream.exception() is not None:
            return False
        return len(self._buffered) < _FRAME_HEADER or len(self._buffered) < self._size <= _LARGEST_FRAME

    @property
    def _size(self) -> int:
        return int.from_bytes(self._buffered[:4])

    def find_alike(self, most: int, most_bytes: float) -> Transfers | None:
        """The messages of the next frames that have the layout of the one before, `most` of them and about `most_bytes` at most.
        None if there are none.
        """
        if self.layout is None or most <= 0 or len(self._buffered) < _FRAME_HEADER:
            return None
        transfers = self.layout.take(bytes(self._buffered), most, most_bytes)
        return transfers if transfers.messages else None

    def find_whole(self) -> bytes | None:
        """The next frame, if it has arrived completely."""
        buffered, size = self._buffered, self._size
        is_whole = _FRAME_HEADER < size <= len(buffered) and buffered[5] == _AMQP
        return bytes(buffered[:size]) if is_whole else None

    def drop(self, size: int) -> None:
        """Removes the first bytes."""
        del self._buffered[:size]


class LinkCounters:
    """What the SDK counts of the transfers of a link and of its session."""

    def __init__(self, consumer: Any) -> None:
        handler = consumer._handler
        self._handler, self._connection = handler, handler._connection
        self._link, self._session = handler._link, handler._session
        self._keep = consumer._message_buffer.extend

    def is_of(self, channel: int, frame: tuple[int, Any]) -> bool:
        """Whether it is a transfer on this link."""
        kind, fields = frame
        session = self._session
        if kind != _TRANSFER or self._connection._incoming_endpoints.get(channel) is not session:
            return False
        return session._input_handles.get(fields[_HANDLE]) is self._link

    def has_credit(self) -> bool:
        return bool(self._link.current_link_credit > 0)

    def most(self) -> int:
        """How many messages may be taken at once. The last one before the session's window ends is left to the SDK, which
        then opens the window again; so are those behind the first frames of a message.
        """
        if self._link._received_payload:
            return 0
        return min(int(self._link.current_link_credit), int(self._session.incoming_window) - 1)

    def keep(self, taken: Transfers) -> None:
        """Puts messages into the SDK's buffer, and counts them as the SDK does."""
        count, link, session = len(taken.messages), self._link, self._session
        delivered, credit = link.delivery_count + count, link.current_link_credit - count
        incoming, window = session.next_incoming_id + count, session.incoming_window - count
        outgoing, now = session.remote_outgoing_window - count, time.time()
        link.received_delivery_id, link.delivery_count, link.current_link_credit = (
            taken.last,
            delivered,
            credit,
        )
        session.next_incoming_id, session.incoming_window = incoming, window
        session.remote_outgoing_window = outgoing
        self._connection._last_frame_received_time = self._handler._last_activity_timestamp = now
        self._keep(taken.messages)
