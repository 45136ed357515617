"""The parked events of a partition: stored apart to be tried again, while the partition goes on.

With order by key, what comes later for a parked key is parked behind it. What is stored, when it is due and how it is tried
again is in consumer/running/writing/parking.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from consumer.model import Record, Rejection

SUFFIX = "~parked"
"""Behind the consumer group, in the stream of the store."""
BEHIND = Rejection("behind", "an earlier event of this key is parked")
"""Why a record is parked that was not tried at all."""


def name_of(record: Record) -> str:
    """The name of a record among those of its event. Several may have one key."""
    return f"{record.sink}:{record.index}" if record.sink else str(record.index)


def names_of(records: Sequence[Record]) -> tuple[tuple[str, ...], int]:
    """The names of some records of one event, and how many records it has; no names if it has one only."""
    of = records[0].of
    return tuple(sorted(name_of(record) for record in records)) if of > 1 else (), of


def has_names(records: Sequence[Record], names: Collection[str], of: int) -> bool:
    """Whether the names mean these records of an event: it had `of` of them when it was rejected, and the settings may make other
    ones of it now. 1 is unknown.
    """
    return (
        bool(names) and of in {1, len(records)} and {name_of(record) for record in records}.issuperset(names)
    )


class Parked:
    """The events that are parked or are about to be, and their keys."""

    def __init__(self) -> None:
        self._keys_of: dict[
            int | str, dict[str, str]
        ] = {}  # by sequence number, then by the name of a record
        self._stored: set[int | str] = set()
        self._loaded: set[int] = set()  # those of an earlier claim
        self.keys: dict[str, Counter[int | str]] = {}
        """By key, the parked events that have it, and how many of their records. Keys of no event are not there."""

    @property
    def count(self) -> int:
        """Events whose parked copies are stored."""
        return len(self._stored)

    def add(self, number: int | str, name: str, key: str) -> None:
        names = self._keys_of.setdefault(number, {})
        if name not in names:
            names[name] = key
            self.keys.setdefault(key, Counter())[number] += 1

    def is_behind(self, number: int, key: str) -> bool:
        """Whether an earlier event of the key is parked, or another record of this one. After a kill later ones may be parked
        already when an event is received again. Those of the hub before, which have texts as numbers, are earlier.
        """
        return any(isinstance(ahead, str) or ahead <= number for ahead in self.keys.get(key, ()))

    def note_stored(self, number: int | str, *, is_loaded: bool = False) -> None:
        if number in self._keys_of:
            self._stored.add(number)
        if is_loaded and isinstance(number, int):
            self._loaded.add(number)

    def are_ahead(self, mark: int) -> bool:
        """Whether an earlier claim parked events that come after the mark. They are not tried before it has passed them, so that
        what has to be parked before them may not wait for room.
        """
        self._loaded = {number for number in self._loaded if number > mark}
        return bool(self._loaded)

    def has_stored(self, number: int | str, name: str | None = None) -> bool:
        """Whether the event is stored, and, with a name, its record of that name."""
        return number in self._stored and (name is None or name in self._keys_of[number])

    def end(self, number: int | str) -> None:
        """The event is written or a dead letter."""
        self._stored.discard(number)
        self._loaded -= {number}
        for key in self._keys_of.pop(number, {}).values():
            numbers = self.keys[key]
            numbers[number] -= 1
            if not numbers[number]:
                del numbers[number]
            if not numbers:
                del self.keys[key]
