"""Batches, which an application fills, and sets of events, which a producer sends."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from azure.eventhub import EventData

from tidemark.foundation.wording import count_text
from tidemark.publisher.errors import AlreadyPublishedError, MessageTooLargeError, PublishError
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, PublishableEvent
from tidemark.publisher.model import PendingSet, numbers_of

Encode = Callable[[PublishableEvent], tuple[EncodedEvent, int]]
"""The event, and the bytes that it adds to a batch."""

_ATTRIBUTE = "published_sequence_number"


def published_sequence_number(event: PublishableEvent) -> int | None:
    """The number with which `send_events` published the event; None before. The event also gets it as an attribute of this
    name.
    """
    number: int | None = getattr(event, _ATTRIBUTE, None)
    return number


def mark_published(events: Sequence[PublishableEvent], first: int | None) -> None:
    """Set the numbers of published events, from `first` on; None: without numbers."""
    if first is not None:
        for event, number in zip(events, numbers_of(first, len(events)), strict=True):
            setattr(event, _ATTRIBUTE, number)


@dataclass(slots=True, eq=False)
class SentSet:
    """Encoded events that are sent together, and the position of the application's input after them.

    Once it is published it has the number of its first event, and each event has its own.
    """

    sources: tuple[PublishableEvent, ...]
    encoded: Sequence[EncodedEvent]
    bookmark: str | None
    is_published: bool = False
    first: int | None = None
    keep_events: bool = False

    def mark(self, first: int | None) -> None:
        """Record that the set was published."""
        self.is_published, self.first = True, first
        mark_published(self.sources, first)

    def digest(self) -> str:
        """Hash of the encoded events without their numbers, and without a trace context that is another one after a restart."""
        hash_ = hashlib.blake2b(digest_size=16)
        for event in self.encoded:
            head, tail = event.untraced or event[:2]
            hash_.update(f"{len(head)},{len(tail)};".encode())
            hash_.update(head)
            hash_.update(tail)
        return hash_.hexdigest()

    def kept(self) -> tuple[tuple[bytes, bytes], ...] | None:
        """What a saved state has of the events, if they are to be kept: that of the digest, so that both stay the same set."""
        return tuple(event.untraced or event[:2] for event in self.encoded) if self.keep_events else None


class _Stage(enum.Enum):
    OPEN = "open"
    SENDING = "being sent"
    PUBLISHED = "published"


class PublishingBatch:
    """Events for one partition, as many as fit into one message. Create it with a producer's `create_batch`.

    Events get their numbers when the batch is sent, so batches may be sent in any order. Each is measured with room
    for the highest number. A batch is locked while it is being sent, and after it was published.
    """

    def __init__(self, partition_id: str, max_size_in_bytes: int, encode: Encode) -> None:
        self.partition_id = partition_id
        self.max_size_in_bytes = max_size_in_bytes
        self.size_in_bytes = 0
        self._encode = encode
        self._events: list[PublishableEvent] = []
        self._encoded: list[EncodedEvent] = []
        self._stage = _Stage.OPEN
        self._first: int | None = None

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return (
            f"PublishingBatch(partition_id={self.partition_id!r}, {count_text(len(self), 'event')}, {self.size_in_bytes} of "
            f"{self.max_size_in_bytes} bytes, {self._stage.value})"
        )

    @property
    def contexts(self) -> Iterator[Mapping[str, str]]:
        """The trace contexts that the producer put into the events."""
        return (event.context for event in self._encoded if event.context is not None)

    @property
    def starting_published_sequence_number(self) -> int | None:
        """The number of the first event, once the batch is published; the others follow it."""
        return self._first

    def try_add(self, event: PublishableEvent) -> bool:
        """Add the event if it fits; returns whether it did.

        Raises AlreadyPublishedError, PublishError for a batch that is being sent, and MessageTooLargeError for an event that
        is larger than the whole batch.
        """
        if self._stage is _Stage.PUBLISHED:
            raise AlreadyPublishedError(f"{self!r}: no events can be added any more")
        if self._stage is _Stage.SENDING:
            raise PublishError(f"{self!r}: no events can be added now")
        encoded, size = self._encode(event)
        if size > self.max_size_in_bytes:
            raise MessageTooLargeError(
                f"an event takes {size} bytes of a batch, which has room for {self.max_size_in_bytes}"
            )
        if self.size_in_bytes + size > self.max_size_in_bytes:
            return False
        self._events.append(event)
        self._encoded.append(encoded)
        self.size_in_bytes += size
        return True

    def add(self, event: PublishableEvent) -> None:
        """Like `try_add`, but raises ValueError if the event does not fit, as batches of the SDK do."""
        if not self.try_add(event):
            raise ValueError(f"{self!r} is full")

    def begin(self, bookmark: str | None, *, keep_events: bool = False) -> SentSet:
        """Lock the batch and return its events. For the producer."""
        if self._stage is _Stage.PUBLISHED:
            raise AlreadyPublishedError(
                f"{self!r} was published with the numbers from {self._first} on; put the events into a new batch to "
                "send them once more"
            )
        self._stage = _Stage.SENDING
        return SentSet(tuple(self._events), tuple(self._encoded), bookmark, keep_events=keep_events)

    def digest(self) -> str:
        """That of the content, by which a saved state knows a set."""
        return SentSet((), self._encoded, None).digest()

    def end(self, first: int | None) -> None:
        """Record that the batch was published. For the producer."""
        self._stage, self._first = _Stage.PUBLISHED, first

    def withdraw(self) -> None:
        """Unlock the batch after a failure. For the producer."""
        self._stage = _Stage.OPEN


def kept_set(pending: PendingSet) -> SentSet | None:
    """The pending set of a saved state as it was sent; None if its events were not kept."""
    if pending.events is None:
        return None
    encoded = [EncodedEvent(head, tail, EventData(b"")) for head, tail in pending.events]
    return SentSet(tuple(event.source for event in encoded), encoded, pending.bookmark, keep_events=True)


def set_of(
    events: Sequence[PublishableEvent], *, encode: Encode, max_size: int, bookmark: str | None
) -> SentSet:
    """Events as one set. Raises AlreadyPublishedError and MessageTooLargeError before any is sent."""
    encoded_events = []
    for position, event in enumerate(events):
        number = published_sequence_number(event)
        if number is not None:
            raise AlreadyPublishedError(
                f"event {position} of {len(events)} was published before, with the number {number}"
            )
        encoded_events.append(encode(event))
    size = sum(size for _, size in encoded_events)
    if size > max_size:
        raise MessageTooLargeError(
            f"the {count_text(len(events), 'event takes', 'events take')} {size} bytes, a message has room for {max_size};"
            " use create_batch"
        )
    return SentSet(tuple(events), [encoded for encoded, _ in encoded_events], bookmark)


class Published(NamedTuple):
    """A set that was published, with the number of its first event."""

    partition_id: str
    events: tuple[PublishableEvent, ...]
    starting_sequence_number: int | None


class FailedEvent(NamedTuple):
    """An event that was not published; `error.outcome` says whether it may be stored nevertheless."""

    event: PublishableEvent
    error: PublishError


class Unpublished(NamedTuple):
    """Events that were not published, each with its error."""

    partition_id: str
    failures: tuple[FailedEvent, ...]
