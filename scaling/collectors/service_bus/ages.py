"""The search for the oldest message that can be received, by peeks. Pure.

A peek returns messages in the order of their sequence numbers. It shows messages that nobody can receive as well (scheduled,
deferred, expired), and shows a message that is being processed like one that waits. A partitioned entity numbers the messages of
each partition by themselves, and the top 16 bits of a number are its partition: so each partition is searched by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

PARTITIONS = 16
"""Of a partitioned entity in the Standard tier; Premium has fewer (from memory), and a peek of one that is not there is empty."""

PARTITION_BITS = 48
"""Bits of a sequence number below its partition (message-sequencing, Microsoft's documentation)."""

PAGE = 32
"""Messages in a peek at most. A peek moves whole messages. Chosen: the same as a storage queue's."""

PAGES = 8
"""Peeks of one partition in one search at most."""

ACTIVE, DEFERRED, SCHEDULED = "active", "deferred", "scheduled"


class UnclearError(Exception):
    """What was peeked does not tell the age. The text says why."""


class Peeked(Struct, frozen=True):
    """What a peek returns of one message. Times are the broker's, in seconds since the epoch."""

    number: int
    state: str
    enqueued_at: float | None
    expires_at: float | None = None


class Search:
    """Looks for the oldest active message of one partition, the `ahead` oldest ones left out.

    `asks` is the next peek to make, as the number to begin with and the most messages; None at the end. Then `enqueued_at` is when
    that message came, None where there is none.
    """

    def __init__(self, *, now: float, ahead: int = 0, partition: int | None = None) -> None:
        """`partition` is None for an entity that is not partitioned. `now` decides what has expired."""
        self._partition = partition
        self._now = now
        self._ahead = ahead
        self._peeks = self._looked_at = 0
        self._newest: float | None = None  # when the last active message came that was seen
        self.asks: tuple[int, int] | None = (((partition or 0) << PARTITION_BITS) + 1, min(ahead + 1, PAGE))
        self.enqueued_at: float | None = None

    def take(self, page: Sequence[Peeked]) -> None:
        """Takes the answer to `asks`. An answer with fewer messages than asked for is not the end, but an empty one is.

        Raises UnclearError.
        """
        if self.asks is None:
            raise UnclearError("nothing was asked")
        first, _ = self.asks
        self.asks, are_all_active = None, True
        for message in page:
            if message.number < first:
                raise UnclearError(f"a peek from number {first} on returned number {message.number}")
            if self._is_of_another(message):
                return
            first = message.number + 1
            if self._is_active(message):
                self._newest = message.enqueued_at
                if not self._ahead:
                    self.enqueued_at = self._newest
                    return
                self._ahead -= 1
            else:
                are_all_active = False
        if page:
            self._go_on(first, len(page), self._ahead + 1 if are_all_active else PAGE)

    def _go_on(self, first: int, looked_at: int, wanted: int) -> None:
        self._peeks += 1
        self._looked_at += looked_at
        if self._peeks < PAGES:
            self.asks = first, min(wanted, PAGE)
        elif self._newest is None:
            raise UnclearError(
                f"the first {self._looked_at} messages are scheduled, deferred or expired, and no more are looked at"
            )
        else:
            self.enqueued_at = self._newest  # older than the message looked for: never too young an age

    def _is_of_another(self, message: Peeked) -> bool:
        partition = message.number >> PARTITION_BITS
        if self._partition is None and partition:
            raise UnclearError(
                f"number {message.number} is of partition {partition}, but it has no partitions"
            )
        return self._partition is not None and partition != self._partition

    def _is_active(self, message: Peeked) -> bool:
        if message.state in {DEFERRED, SCHEDULED}:
            return False
        if message.expires_at is not None and message.expires_at <= self._now:
            return False  # the service removes it when it finds the time
        if message.state != ACTIVE:
            raise UnclearError(
                f"message {message.number} is in state {message.state[:40]}, which is not known"
            )
        if message.enqueued_at is None:
            raise UnclearError(f"message {message.number} does not say when it came")
        return True


def oldest(searches: Collection[Search]) -> float | None:
    """When the oldest message of all partitions came; None where there is none."""
    return min((search.enqueued_at for search in searches if search.enqueued_at is not None), default=None)
