"""Messages that are to be enqueued later, and ids of those that were."""

import heapq
from dataclasses import dataclass, field
from typing import Any

from devstack.amqp.wire.errors import AmqpError
from devstack.service_bus.messages.messages import Sent, identity

MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"


@dataclass(slots=True)
class Schedule:
    """Messages that are to be enqueued later, by the number they were given."""

    _waiting: dict[int, Sent] = field(default_factory=dict)
    _due: list[tuple[float, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, number: int, sent: Sent, due: float) -> None:
        self._waiting[number] = sent
        heapq.heappush(self._due, (due, number))

    def items(self) -> list[tuple[int, Sent]]:
        """What waits, by its number."""
        return list(self._waiting.items())

    def cancel(self, numbers: list[int]) -> None:
        """Raises AmqpError, with nothing cancelled, if one of them does not wait any more."""
        for number in numbers:
            if number not in self._waiting:
                raise AmqpError(MESSAGE_NOT_FOUND, f"no scheduled message has the number {number}")
        for number in numbers:
            del self._waiting[number]

    def pop_due(self, now: float) -> list[Sent]:
        due = []
        while self._due and self._due[0][0] <= now:
            _, number = heapq.heappop(self._due)
            if number in self._waiting:
                due.append(self._waiting.pop(number))
        return due


class RecentIds:
    """The message ids of the last so many seconds."""

    def __init__(self) -> None:
        self._seen: dict[Any, float] = {}  # in the order of their times

    def has(self, sent: Sent, now: float, window: float | None) -> bool:
        """Whether the message has an id that was seen in the window before; it is from now on. None detects nothing."""
        message_id = None if window is None else identity(sent.bare).message_id
        if window is None or message_id is None:
            return False
        while self._seen:
            oldest = next(iter(self._seen))
            if self._seen[oldest] > now - window:
                break
            del self._seen[oldest]
        if message_id in self._seen:
            return True
        self._seen[message_id] = now
        return False
