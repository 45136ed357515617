"""The outcome of every message of one call: sent, unknown, refused or not sent.

Pure. Indices count the messages of the caller's iterable from 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from tidemark.foundation.wording import count_text


@dataclass(slots=True)
class Indices:
    """A set of indices that grows mostly at its end, kept as ranges: a billion sent in order are one range."""

    _edges: list[int] = field(default_factory=list)  # start of a range, its end, start of the next, ...
    _count: int = 0

    @classmethod
    def of(cls, ranges: Iterable[range]) -> Indices:
        """From ranges that `ranges()` gave: ascending, neither overlapping nor touching. Raises ValueError for others."""
        indices = cls()
        for range_ in ranges:
            if not range_ or range_.step != 1 or (indices._edges and range_.start <= indices._edges[-1]):
                raise ValueError(f"{range_} does not follow what is before it")
            indices._edges += range_.start, range_.stop
            indices._count += len(range_)
        return indices

    def add(self, index: int) -> None:
        """Raises ValueError for an index that is there already."""
        at = bisect_right(self._edges, index)
        if at % 2:  # within a range
            raise ValueError(f"index {index} is there already")
        joins_left = at > 0 and self._edges[at - 1] == index
        joins_right = at < len(self._edges) and self._edges[at] == index + 1
        left, right = [] if joins_left else [index], [] if joins_right else [index + 1]
        self._edges[at - joins_left : at + joins_right] = left + right
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (index for range_ in self.ranges() for index in range_)

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and bisect_right(self._edges, index) % 2 == 1

    def __repr__(self) -> str:
        return f"Indices({', '.join(f'{span.start}-{span.stop - 1}' for span in self.ranges())})"

    def copy(self) -> Indices:
        return Indices.of(self.ranges())

    def ranges(self) -> list[range]:
        return [range(start, end) for start, end in zip(self._edges[::2], self._edges[1::2], strict=True)]


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that no batch can carry, or that is no message; `size` and `limit` in bytes, None if unknown."""

    index: int
    message_id: str | None
    size: int | None
    limit: int | None
    reason: str
    message: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """A body that goes to a blob: its name, its bytes, their SHA-256 in hexadecimal."""

    blob: str
    body: bytes = field(repr=False)
    sha256: str


class Outgoing(Struct, frozen=True):
    """A measured message. In bytes: `size` alone, `cost` within a batch or request, `envelope` for the first message.

    `key` is its session id, else its partition key. `encoded` is what goes over the wire, `message` what the caller
    gave. A struct, because one is made for every message: a frozen dataclass takes nine times as long.
    """

    index: int
    message_id: str
    session_id: str | None
    partition_key: str | None
    message: Any
    encoded: bytes | bytearray
    cost: int
    envelope: int
    claim: Claim | None = None
    context: Mapping[Any, Any] = {}
    """The trace context that it carries, for its span; empty without tracing."""

    def __repr__(self) -> str:
        return f"Outgoing({self.index}, {self.message_id!r}, {self.size} bytes)"

    @property
    def key(self) -> str | None:
        return self.session_id or self.partition_key

    @property
    def size(self) -> int:
        return len(self.encoded)


@dataclass(frozen=True, slots=True)
class SendReport:
    """The outcome of one call, or of one call and its resumptions.

    `sent` was accepted by the service. `unknown` may have been: the connection or the answer was lost after the
    transfer. `unsent` was taken from the iterable and certainly not sent. `refused` can never be sent. What the
    iterable still holds was not looked at; `exhausted` says that there is nothing. `reason` is why the call ended
    early, empty if it did not. `payload` is in bytes, of the messages sent; `sequence_numbers` are those of scheduled
    messages by index. `id_prefix`, `session_id` and `schedule_at` are the call's, and a resumption's.
    """

    sent: Indices
    unknown: tuple[Outgoing, ...] = ()
    unsent: tuple[Outgoing, ...] = ()
    refused: tuple[Refused, ...] = ()
    exhausted: bool = True
    reason: str = ""
    batches: int = 0
    payload: int = 0
    claims: int = 0
    retries: int = 0
    size_refusals: int = 0
    next_index: int = 0
    id_prefix: str = ""
    session_id: str | None = None
    schedule_at: datetime | None = None
    sequence_numbers: dict[int, int] = field(default_factory=dict)
    rest: Any = field(default=None, repr=False)  # the source, for `resume` to read on from

    @property
    def complete(self) -> bool:
        """Whether every message of the iterable was sent, for certain."""
        return self.exhausted and not (self.unknown or self.unsent or self.refused)

    def summary(self) -> str:
        """One line for a log or an error."""
        parts = [f"{len(self.sent)} sent in {count_text(self.batches, 'batch', 'batches')}"]
        for items, fate in ((self.unknown, "unknown"), (self.unsent, "not sent")):
            if items:
                first = f"index {items[0].index}, message id {items[0].message_id}"
                parts.append(f"{len(items)} {fate} (first: {first})")
        if self.refused:
            parts.append(f"{len(self.refused)} refused (first: index {self.refused[0].index})")
        if not self.exhausted:
            parts.append(f"the iterable not read from index {self.next_index} on")
        return ", ".join(parts)


class PlainMessage(Struct, frozen=True):
    """A body with its ids; the SDK's `ServiceBusMessage` takes 75 microseconds to build, this one does not.

    Without a `message_id` the sender gives one, and without a `session_id` that of the call.
    """

    body: bytes
    message_id: str | None = None
    session_id: str | None = None
    content_type: str | None = None


def plain_of(message: Any) -> PlainMessage | None:
    """A body that comes without a message around it, or as a plain one; a dict or list as JSON. None for others."""
    if isinstance(message, PlainMessage):
        return message
    if isinstance(message, bytes):
        return PlainMessage(message)
    if isinstance(message, str):
        return PlainMessage(message.encode())
    if isinstance(message, Mapping | list):
        return PlainMessage(msgspec.json.encode(message), content_type="application/json")
    if isinstance(message, bytearray | memoryview):
        return PlainMessage(bytes(message))
    return None
