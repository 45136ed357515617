"""What a forwarder saves with each set of events that it sends, and what it knows by that of each partition of the target. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from msgspec import Struct

from consumer.model import NOTHING_SETTLED, Checkpoint, Record
from consumer.versions import place_in_event
from tidemark.publisher import PendingSet, PublishingBatch, SavedState

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
    choice: str = ""
    """That of `choice_of` when it was sent. An older version did not save it."""

    @property
    def text(self) -> str:
        steps = (after - before for before, after in pairwise((0, *self.numbers)))
        places = (f"{number}.{index}" for number, index in (self.last, self.begin))
        return "~".join([*places, ",".join(map(str, steps)), self.choice])

    def is_settled(self, checkpoint: Checkpoint | None) -> bool:
        """Whether the checkpoint says that one of its events was written, and no operator that it is left out."""
        if checkpoint is None:
            return False
        skipped = _skipped(checkpoint)
        runs = ((NOTHING_SETTLED, checkpoint.sequence_number), *checkpoint.beyond)
        return any(
            number > skipped and any(first <= number <= last for first, last in runs)
            for number in self.numbers
        )

    def is_skipped(self, checkpoint: Checkpoint | None) -> bool:
        """Whether an operator may have left one of its events out."""
        return checkpoint is not None and any(number <= _skipped(checkpoint) for number in self.numbers)


def _skipped(checkpoint: Checkpoint) -> int:
    return max((seek.after for seek in checkpoint.origin.seeks), default=NOTHING_SETTLED)


def _is_kept(bookmark: Bookmark, saved: PendingSet, record: Record, id_: str) -> bool:
    """Whether a set has this record, whose message id is `id_`. Of several of an event it may have some: their ids say which."""
    if record.event.sequence_number not in bookmark.numbers:
        return False
    found = bytes((len(id_),)) + id_.encode()  # as AMQP has it, so that no longer id begins with it
    return record.of == 1 or any(found in tail for _, tail in saved.events or ())


def choice_of(key: str, partitions: int) -> str:
    """By what a target partition is chosen for an event: the source of the key, and how many partitions there are. As a digest."""
    return hashlib.sha256(f"{partitions} {key}".encode()).hexdigest()[:12]


def bookmark_of(records: Sequence[Record], begin: Place, choice: str) -> Bookmark:
    numbers = dict.fromkeys(record.event.sequence_number for record in records)
    return Bookmark(place_of(records[-1]), begin, tuple(numbers), choice)


def parse(text: str | None) -> Bookmark:
    """A version before had the last event alone, or no choice."""
    last, begin, steps, choice, *_ = [*(text or f"{NOTHING_SETTLED}.0").split("~"), "", "", ""]
    numbers = tuple(accumulate(map(int, steps.split(",")))) if steps else ()
    place = _parse_place(begin) if begin else (NOTHING_SETTLED, 0)
    return Bookmark(_parse_place(last), place, numbers, choice)


def _parse_place(text: str) -> Place:
    number, _, index = text.partition(".")
    return int(number), int(index)


def place_of(record: Record) -> Place:
    return record.event.sequence_number, place_in_event(record.index)


@dataclass
class Target:
    """One partition of the target hub, for one partition of the source."""

    mark: Place = (NOTHING_SETTLED, 0)
    """Up to here it has all that is for it."""
    pending: tuple[Bookmark, PendingSet] | None = None
    """Of a process before this one: the set that it was sending."""
    resent: tuple[Bookmark, PendingSet] | None = None
    """That set, when it was sent again from what was kept of it."""
    unfinished: tuple[PublishingBatch, Bookmark] | None = None
    """A set of this process without an answer. It must be sent again as it is."""

    def has(self, record: Record, id_: str) -> bool:
        """Whether it has the record. Of a set that was sent again, another key may bring records that it did not have."""
        place = place_of(record)
        if place <= self.mark and self.resent is not None and place > self.resent[0].begin:
            return place > self.resent[0].last or _is_kept(*self.resent, record, id_)
        return place <= self.mark


def resumed(saved: SavedState, choice: str) -> tuple[Target, int]:
    """How far a partition of the target is, by its saved state, and the last event that it got by another choice, which says nothing
    of the present one: it got other events then, and some below its mark went elsewhere and may never have arrived there.
    """
    confirmed = parse(saved.bookmark)
    pending = None if saved.pending is None else parse(saved.pending.bookmark)
    sets = [confirmed] if pending is None else [confirmed, pending]
    others = [bookmark for bookmark in sets if bookmark.choice not in {"", choice}]
    target = Target() if confirmed in others else Target(confirmed.last)
    if saved.pending is not None and pending is not None and pending not in others:
        target.pending = pending, saved.pending
        target.mark = max(target.mark, pending.begin)
    return target, max((bookmark.last[0] for bookmark in others), default=NOTHING_SETTLED)
