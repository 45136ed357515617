"""The buffer of one partition: which events form a set, and how long they wait for others (pure)."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from tidemark.publisher.errors import PublishSettingsError

_Event = TypeVar("_Event")


class SetLimits(Struct, frozen=True):
    """A set has at most `max_bytes` and `max_events`; an event waits at most `max_wait` seconds for others."""

    max_bytes: int
    max_events: int
    max_wait: float

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise PublishSettingsError(f"max_bytes is {self.max_bytes}, accepted: 1 or more")


class BufferLimits(Struct, frozen=True):
    """An event waits at most `max_wait` seconds for its set of at most `max_events` (None: as many as fit).

    `enqueue` waits while all partitions together have `max_buffered_events` or `max_buffered_bytes`. 1 s is the default of the
    .NET client, whose 1,500 events per partition are about one full set of the bytes here.
    """

    max_wait: float = 1.0
    max_events: int | None = None
    max_buffered_events: int = 20_000
    max_buffered_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.max_wait < 0:
            raise PublishSettingsError(f"max_wait is {self.max_wait}, accepted: seconds from 0 on")
        for name in ("max_events", "max_buffered_events", "max_buffered_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PublishSettingsError(f"{name} is {value}, accepted: 1 or more")


class _Waiting(NamedTuple, Generic[_Event]):
    event: _Event
    size: int
    since: float


class PartitionBuffer(Generic[_Event]):
    """Events in the order of arrival. The first ones form the next set.

    `first_set` is how many events the first set must have, to equal a set that was sent before a restart; None: any number.
    """

    def __init__(self, limits: SetLimits, *, first_set: int | None = None) -> None:
        self.limits = limits
        self._waiting: deque[_Waiting[_Event]] = deque()
        self._required_count = first_set
        self._count = 0  # events of the next set
        self._bytes = 0
        self._is_full = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_exact(self) -> bool:
        """Whether the next set must equal one that was sent before a restart."""
        return self._required_count is not None

    @property
    def is_short(self) -> bool:
        """Whether such a set still lacks events."""
        return self.is_exact and not self._is_full

    def expect_no_more(self) -> None:
        """Let the next set have fewer events than required."""
        self._required_count = None

    def add(self, event: _Event, size: int, now: float) -> None:
        """Append an event of `size` bytes, at most those of a set."""
        self._waiting.append(_Waiting(event, size, now))
        self._grow()

    def is_ready(self, now: float, *, hurry: bool = False) -> bool:
        """Whether to send the next set: it is full, has waited long enough, or `hurry` is set."""
        at = self.ready_at()
        return at is not None and (self._is_full or hurry or now >= at)

    def ready_at(self) -> float | None:
        """When the next set has waited long enough; None if it waits for events."""
        if not self._count or self.is_short:
            return None
        return self._waiting[0].since + self.limits.max_wait

    def take(self) -> tuple[list[_Event], int]:
        """Remove the next set; returns its events and their size."""
        taken = [self._waiting.popleft().event for _ in range(self._count)]
        size = self._bytes
        self._count, self._bytes, self._is_full, self._required_count = 0, 0, False, None
        self._grow()
        return taken, size

    def drain(self) -> list[_Event]:
        """Remove all events."""
        left = [waiting.event for waiting in self._waiting]
        self._waiting.clear()
        self._count, self._bytes, self._is_full = 0, 0, False
        return left

    def _grow(self) -> None:
        max_count = self.limits.max_events if self._required_count is None else self._required_count
        while not self._is_full and self._count < len(self._waiting):
            size = self._waiting[self._count].size
            if self._count and self._bytes + size > self.limits.max_bytes:
                self._is_full = True
                return
            self._count += 1
            self._bytes += size
            self._is_full = self._count >= max_count or self._bytes >= self.limits.max_bytes
