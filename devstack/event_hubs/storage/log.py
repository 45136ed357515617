"""One partition: an append-only log with numbers, offsets, times and an end that retention moves (pure).

Sequence numbers count events from 0. Offsets count bytes, so that nobody takes one for the
other, and are strings to everybody outside: numbers written out or, as hubs with geo-replication
have them, something that is no number. Nothing here touches a file but through `Segments`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from devstack.amqp.wire.errors import AmqpError
from devstack.event_hubs.storage.events import SentEvent
from devstack.event_hubs.storage.segments import BEGIN, EVENT, LAST, NEXT, NOTE, Note, Record, Segments

ARGUMENT_ERROR = "com.microsoft:argument-error"
BEFORE_FIRST = "-1"  # the offset before the first event
LATEST = "@latest"
_OPAQUE = "1:"  # what makes an offset one that cannot be taken for a number
_TRIM_AT_LEAST = 1024  # events that are dropped in one go: a list gives its front away slowly

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long (seconds) and how many events a partition keeps; None is without limit."""

    seconds: float | None = None
    events: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and self.seconds <= 0:
            raise ValueError(f"retention of {self.seconds} seconds, accepted: more than 0, or None")
        if self.events is not None and self.events < 1:
            raise ValueError(f"retention of {self.events} events, accepted: 1 or more, or None")


class Start(NamedTuple):
    """Where a consumer begins. `kind` is "offset", "sequence-number" or "enqueued-time" (ms)."""

    kind: str = "offset"
    value: str = BEFORE_FIRST
    inclusive: bool = False


class Stored(NamedTuple):
    """An event as the log has it. `message` is what consumers get, annotations included."""

    sequence_number: int
    offset: str
    enqueued_ms: int
    message: bytes


class PartitionLog:
    """`clock` in seconds since 1970; enqueued times never go back even if it does.

    `opaque_offsets` are no numbers. With `segments`, what was appended before is there again, and numbers go on where they were.
    """

    def __init__(
        self,
        clock: Clock,
        retention: Retention | None = None,
        segments: Segments | None = None,
        *,
        opaque_offsets: bool = False,
    ) -> None:
        self.retention = retention or Retention()
        self.last_sequence_number = -1  # of the newest event there ever was
        self.last_enqueued_ms = 0  # of the same
        self._offset_prefix = _OPAQUE if opaque_offsets else ""
        self._last_offset = -1
        self._next = self._next_offset = 0
        self._begin = 0
        self._clock = clock
        self._segments = segments
        self._numbers: list[int] = []
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._messages: list[bytes] = []
        self._notes: dict[int, bytes] = {}
        for record in segments.load() if segments is not None else ():
            self._restore(record)
        self.advance()

    @property
    def begin_sequence_number(self) -> int:
        """Of the oldest event that is kept; if none is, the number that the next one gets."""
        index = bisect_left(self._numbers, self._begin)
        return self._numbers[index] if index < len(self._numbers) else self._next

    @property
    def last_offset(self) -> str:
        """Of the newest event there ever was; "-1" if there was none."""
        return self._offset_text(self._last_offset) if self._last_offset >= 0 else BEFORE_FIRST

    @property
    def notes(self) -> Mapping[int, bytes]:
        """What is noted, by key."""
        return self._notes

    def __len__(self) -> int:
        return len(self._numbers) - bisect_left(self._numbers, self._begin)

    def append(
        self, events: Sequence[SentEvent], enqueued_ms: int | None = None, note: Note | None = None
    ) -> int:
        """Number and keep events, and with them a note; returns the sequence number of the first."""
        now = int(self._clock() * 1000) if enqueued_ms is None else enqueued_ms
        now = max(now, self.last_enqueued_ms)
        first, offset = self._next, self._next_offset
        records = []
        for number, event in enumerate(events, first):
            message = event.stamped(number, self._offset_text(offset), now)
            records.append(Record(EVENT, number, offset, now, message))
            offset += len(message)
        if note is not None:
            records.append(note.record())
        self._write(records)
        for record in records:
            self._restore(record)
        if self.retention.events is not None:
            self._expire_to_count(self.retention.events)
        return first

    def write_note(self, note: Note) -> None:
        record = note.record()
        self._write([record])
        self._restore(record)

    def skip(self, count: int) -> None:
        """Leave out the next `count` sequence numbers, as the service may do when it fails over."""
        self._next += count
        self._write([Record(NEXT, self._next, self._next_offset)])

    def expire(self, before_sequence: int) -> None:
        """Drop the events below a sequence number."""
        self._expire(before_sequence)
        self._write([Record(BEGIN, self._begin)])

    def advance(self) -> None:
        """Drop what retention no longer keeps."""
        if self.retention.events is not None:
            self._expire_to_count(self.retention.events)
        if self.retention.seconds is not None:
            oldest = int((self._clock() - self.retention.seconds) * 1000)
            self._expire(self._number_at(bisect_left(self._times, oldest)))

    def find(self, start: Start) -> int:
        """The sequence number to read from.

        Raises AmqpError for a position beyond the last event, and for one that makes no sense.
        """
        if start.kind == "offset" and start.value == BEFORE_FIRST:
            return self._begin
        if start.kind == "offset" and start.value == LATEST:
            return self.last_sequence_number if start.inclusive and self._numbers else self._next
        column, last, name = {
            "offset": (self._offsets, self._last_offset, "offset"),
            "sequence-number": (self._numbers, self.last_sequence_number, "sequence number"),
            "enqueued-time": (self._times, None, "enqueued time"),
        }[start.kind]
        value = _number(start.value, self._offset_prefix if start.kind == "offset" else "")
        if value is None or (last is not None and value > last):
            text = f"The supplied {name} '{start.value}' is invalid."
            shown = self.last_offset if start.kind == "offset" else last
            raise AmqpError(ARGUMENT_ERROR, f"{text} The last {name} in the system is '{shown}'")
        return self._number_at((bisect_left if start.inclusive else bisect_right)(column, value))

    def read(self, from_sequence: int, limit: int, limit_bytes: int) -> tuple[list[bytes], int]:
        """Messages from a sequence number on, and the number to read on from.

        At most `limit` of them, and no further one once `limit_bytes` are reached.
        """
        index = bisect_left(self._numbers, max(from_sequence, self._begin))
        end = min(index + limit, len(self._numbers))
        if index < end:
            end = bisect_left(self._offsets, self._offsets[index] + limit_bytes, index + 1, end)
        messages = self._messages[index:end]
        return messages, self._numbers[index + len(messages) - 1] + 1 if messages else from_sequence

    def stored(self, from_sequence: int = 0, limit: int | None = None) -> Iterator[Stored]:
        """What is kept from a sequence number on, with its place."""
        start = bisect_left(self._numbers, max(from_sequence, self._begin))
        end = len(self._numbers) if limit is None else start + limit
        for index in range(start, min(end, len(self._numbers))):
            yield Stored(
                self._numbers[index],
                self._offset_text(self._offsets[index]),
                self._times[index],
                self._messages[index],
            )

    def close(self) -> None:
        """Release the files; appending opens them again."""
        if self._segments is not None:
            self._segments.close()

    def _restore(self, record: Record) -> None:
        kind, number, offset, time_ms, message = record
        if kind == EVENT:
            self._numbers.append(number)
            self._offsets.append(offset)
            self._times.append(time_ms)
            self._messages.append(message)
            self._next, self._next_offset = number + 1, offset + len(message)
        if kind in (EVENT, LAST):
            self.last_sequence_number, self._last_offset, self.last_enqueued_ms = number, offset, time_ms
        elif kind == NEXT:
            self._next, self._next_offset = number, offset
        elif kind == NOTE:
            self._notes.pop(number, None)
            if message:
                self._notes[number] = message
        else:
            self._begin = max(self._begin, number)

    def _write(self, records: list[Record]) -> None:
        if self._segments is None or not records:
            return
        if self._segments.full:
            self._segments.roll(
                [
                    Record(NEXT, self._next, self._next_offset),
                    Record(LAST, self.last_sequence_number, self._last_offset, self.last_enqueued_ms),
                    Record(BEGIN, self._begin),
                    *(Note(*item).record() for item in self._notes.items()),
                ]
            )
        self._segments.append(records)

    def _offset_text(self, offset: int) -> str:
        return f"{self._offset_prefix}{offset}"

    def _number_at(self, index: int) -> int:
        return self._numbers[index] if index < len(self._numbers) else self._next

    def _expire_to_count(self, count: int) -> None:
        if len(self._numbers) > count:
            self._expire(self._numbers[-count])

    def _expire(self, before_sequence: int) -> None:
        self._begin = min(max(before_sequence, self._begin), self._next)
        gone = bisect_left(self._numbers, self._begin)
        if gone < max(_TRIM_AT_LEAST, len(self._numbers) // 4) and gone < len(self._numbers):
            return
        for column in (self._numbers, self._offsets, self._times, self._messages):
            del column[:gone]
        if self._segments is not None:
            self._segments.drop_before(self._begin)


def _number(text: str, prefix: str) -> int | None:
    """What is written behind the prefix, if that is a number."""
    if not text.startswith(prefix):
        return None
    digits = text.removeprefix(prefix)
    return int(digits) if digits.removeprefix("-").isdecimal() else None
