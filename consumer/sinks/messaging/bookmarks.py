"""What a forwarder saves with each set of events that it sends: how far the target is then, and which events the set has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

from consumer.model import NOTHING_SETTLED, Checkpoint, Record
from consumer.versions import place_in_event

Place = tuple[int, int]
"""An event's sequence number, and which of its documents it is: the order of a source."""


class Bookmark(Struct, frozen=True):
    """What is saved with a set."""

    last: Place
    """Its last event."""
    begin: Place = (NOTHING_SETTLED, 0)
    """The mark when it was sent: all up to here is there, also where the set before it was never confirmed."""
    numbers: tuple[int, ...] = ()
    """The sequence numbers of its events. An older version did not save them."""

    @property
    def text(self) -> str:
        steps = (after - before for before, after in pairwise((0, *self.numbers)))
        return "~".join(
            [*(f"{number}.{index}" for number, index in (self.last, self.begin)), ",".join(map(str, steps))]
        )

    def is_settled(self, checkpoint: Checkpoint | None) -> bool:
        """Whether the checkpoint says that one of its events was written, and no operator that it is left out."""
        if checkpoint is None:
            return False
        skipped = max((seek.after for seek in checkpoint.origin.seeks), default=NOTHING_SETTLED)
        runs = ((NOTHING_SETTLED, checkpoint.sequence_number), *checkpoint.beyond)
        return any(
            number > skipped and any(first <= number <= last for first, last in runs)
            for number in self.numbers
        )


def bookmark_of(records: Sequence[Record], begin: Place) -> Bookmark:
    numbers = dict.fromkeys(record.event.sequence_number for record in records)
    return Bookmark(place_of(records[-1]), begin, tuple(numbers))


def parse(text: str | None) -> Bookmark:
    """A version before had the last event alone."""
    last, _, more = (text or f"{NOTHING_SETTLED}.0").partition("~")
    begin, _, steps = more.partition("~")
    numbers = tuple(accumulate(map(int, steps.split(",")))) if steps else ()
    return Bookmark(_parse_place(last), _parse_place(begin) if begin else (NOTHING_SETTLED, 0), numbers)


def _parse_place(text: str) -> Place:
    number, _, index = text.partition(".")
    return int(number), int(index)


def place_of(record: Record) -> Place:
    return record.event.sequence_number, place_in_event(record.index)
