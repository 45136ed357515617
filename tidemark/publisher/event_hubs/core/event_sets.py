"""Sets of events for a PartitionPublisher, and sequence numbers of 31 bits, which wrap to 0 (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from tidemark.publisher.model import MAX_SEQUENCE_NUMBER, PendingSet

_NUMBERS = MAX_SEQUENCE_NUMBER + 1


def next_number(number: int) -> int:
    """The sequence number after this one."""
    return (number + 1) % _NUMBERS


def last_of(first: int, count: int) -> int:
    """The number of the last of `count` events, 1 or more."""
    return (first + count - 1) % _NUMBERS


def numbers_of(first: int, count: int) -> Iterator[int]:
    """The numbers of `count` events, the first one first."""
    for offset in range(count):
        yield (first + offset) % _NUMBERS


class EventSet(Protocol):
    """Events that are sent as one."""

    @property
    def sources(self) -> Sequence[object]:
        """The objects of the caller. The same objects are the same set."""

    @property
    def bookmark(self) -> str | None: ...

    def digest(self) -> str:
        """A hash of the content."""


class NumberedSet(Struct, frozen=True):
    """A set with its numbers. Without `sources` it was loaded after a restart."""

    pending: PendingSet
    sources: Sequence[object] | None = None

    @property
    def last(self) -> int:
        return last_of(self.pending.first, self.pending.count)

    def is_(self, events: EventSet) -> bool:
        saved = self.pending
        if saved.count != len(events.sources):
            return False
        if self.sources is not None:
            return all(mine is theirs for mine, theirs in zip(self.sources, events.sources, strict=True))
        return saved.bookmark == events.bookmark and saved.digest == events.digest()
