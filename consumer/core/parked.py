"""The parked events of a partition: stored apart to be tried again, while the partition goes on.

With order by key, what comes later for a parked key is parked behind it. What is stored, when it is due and how it is tried
again is in consumer/running/writing/parking.py.
"""

from __future__ import annotations

from collections import Counter

from consumer.model import Rejection

BEHIND = Rejection("behind", "an earlier event of this key is parked")
"""Why a record is parked that was not tried at all."""


class Parked:
    """The events that are parked or are about to be, and their keys."""

    def __init__(self) -> None:
        self._keys_of: dict[int | str, set[str]] = {}  # by sequence number
        self._stored: set[int | str] = set()
        self.keys = Counter[str]()
        """By key, how many parked events have it. Keys of no event are not there."""

    @property
    def count(self) -> int:
        """Events whose parked copies are stored."""
        return len(self._stored)

    def add(self, number: int | str, key: str) -> None:
        keys = self._keys_of.setdefault(number, set())
        if key not in keys:
            keys.add(key)
            self.keys[key] += 1

    def note_stored(self, number: int | str) -> None:
        if number in self._keys_of:
            self._stored.add(number)

    def has_stored(self, number: int | str, key: str | None = None) -> bool:
        """Whether the event is stored, and, with a key, its record of that key."""
        return number in self._stored and (key is None or key in self._keys_of[number])

    def end(self, number: int | str) -> None:
        """The event is written or a dead letter."""
        self._stored.discard(number)
        for key in self._keys_of.pop(number, ()):
            self.keys[key] -= 1
            if not self.keys[key]:
                del self.keys[key]
