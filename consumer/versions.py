"""Which of two changes of one document is the later one (the version guard), and what a record asks for besides an upsert. Pure.

Sequence numbers order the events of one source: a partition of one incarnation of a hub. Numbers of different sources are
not comparable. There the time decides at which Event Hubs stored the events, and the source's name where the times are equal,
so that all consumers decide alike. With a version field, the field decides.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

VERSION = "_tv"
"""The field of a document with the stamp of the event that it was written from."""
DELETED = "_deleted"
"""The field that marks a tombstone."""
MARK = "_tp_"
"""Begins the names of the fields with the last patch of each source."""
SUPERSEDED = "superseded"
"""The reason of a result that is WRITTEN although nothing was written: a later event has changed the document."""
_META = "_tm"  # consumer.mapping.documents.META

Version = int | float | str


class Stamp(Struct, frozen=True, gc=False, omit_defaults=True):
    """Identifies an event, and orders the events that change one document. Field names are short: documents contain it."""

    n: int
    """The sequence number."""
    at: float
    """When Event Hubs stored the event, epoch seconds."""
    of: str
    """The source: namespace/hub/partition, with the hub's incarnation; '' if it is not known."""
    i: str = ""
    """Which of the event's writes, as `order_in_event` gives it."""
    v: Version | None = None
    """The value of the version field, where that decides."""

    def is_same(self, other: Stamp) -> bool:
        """Whether both are of one write of one event."""
        return (self.of, self.n, self.i) == (other.of, other.n, other.i)

    def is_after(self, other: Stamp | None) -> bool:
        """Whether this change may replace the other one; every change may replace an unknown one.

        Raises IncomparableError if one version is a text and the other a number.
        """
        if other is None:
            return True
        if self.v is not None:
            return other.v is None or _is_greater(self.v, other.v)
        if self.of == other.of:
            return (self.n, self.i) > (other.n, other.i)
        return (self.at, self.of) > (other.at, other.of)


class Mark(Struct, frozen=True, gc=False):
    """What a patch leaves of its event in a document, in a field for each source."""

    n: str
    """Sequence number and order in the event, as a text that sorts."""
    at: float
    of: str


class IncomparableError(Exception):
    """One version is a text, and the other one a number."""


def _is_greater(new: Version, old: Version) -> bool:
    if isinstance(new, str) and isinstance(old, str):
        return new > old
    if isinstance(new, str) or isinstance(old, str):
        raise IncomparableError(f"the version is {new!r}, and the document's is {old!r}")
    return new > old


class Change(Struct, frozen=True, gc=False):
    """What a record asks for besides an unconditional upsert of its payload."""

    id: str
    stamp: Stamp | None = None
    """None without a guard."""
    created: bytes = b""
    """The document that a patch creates where none is, as JSON."""
    is_repeatable: bool = True
    """Whether sending it twice has the effect of sending it once. An increment without a mark is not."""


def may_follow(change: Change | None, earlier: Change | None) -> bool:
    """Whether a change may replace what an earlier record of the same document wrote."""
    if change is None or change.stamp is None:
        return True
    try:
        return change.stamp.is_after(earlier.stamp if earlier is not None else None)
    except IncomparableError:
        return False


def version_of(value: Any) -> Version | None:
    """A value that can be a version; None for any other."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number or (isinstance(value, str) and value) else None


@lru_cache(4096)  # a hub has at most 2,048 partitions
def mark_of(source: str) -> str:
    """The name of the field that has the last patch of a source."""
    return MARK + hashlib.sha256(source.encode()).hexdigest()[:12]


_ELEMENTS = (1 << 60) - 1
_ROUTES = 10  # bits


def order_in_event(index: int) -> str:
    """A text that sorts in the order of an event's writes; '' for the first one. `index` is Write.index, which has the element in
    its lower 60 bits, and above them which route into the sink it took; but each element takes all its routes before the
    next element does. It is a text because numbers in Cosmos DB are doubles, exact up to 2^53.
    """
    return f"{place_in_event(index):018x}" if index else ""


def place_in_event(index: int) -> int:
    """A number that grows in the order of an event's writes; see `order_in_event`."""
    return (index & _ELEMENTS) << _ROUTES | index >> 60


def mark_value(number: int, order: str) -> str:
    """A text that sorts as sequence number and order in the event do."""
    return f"{number:019d}.{order}"


def stored_stamp(document: Mapping[str, Any], field: tuple[str, ...] | None) -> Stamp | None:
    """The stamp of a stored document; None if nothing in it orders it. `field` is the path of the version field, if that decides.

    A document from before the guard was on has the version field, or `_tm` with the time of its event; without them nobody
    knows what it was written from, and every event is later.
    """
    stored = document.get(VERSION)
    stamp = _read_stamp(stored) if isinstance(stored, dict) else None
    if field is not None:
        version = stamp.v if stamp is not None else None
        if version is None:
            version = version_of(_find(document, field))
        if version is None:
            return None
        return (
            Stamp(stamp.n, stamp.at, stamp.of, stamp.i, version) if stamp else Stamp(-1, 0.0, "", v=version)
        )
    if stamp is None and isinstance(meta := document.get(_META), dict):
        at = version_of(meta.get("enqueued_at"))
        return None if at is None or isinstance(at, str) else Stamp(-1, float(at), "")
    return stamp


def is_patched_by(document: Mapping[str, Any], stamp: Stamp) -> bool:
    """Whether a patch of this very event is in a stored document."""
    mark = document.get(mark_of(stamp.of))
    return isinstance(mark, dict) and mark.get("n") == mark_value(stamp.n, stamp.i)


def is_patched_after(document: Mapping[str, Any], stamp: Stamp, *, by_others: bool) -> bool:
    """Whether a later event than that of the stamp has patched a stored document, by the order of Stamp.is_after. Without
    `by_others` only patches of its own source count.
    """
    number = mark_value(stamp.n, stamp.i)
    for name, mark in document.items():
        if not name.startswith(MARK) or not isinstance(mark, dict):
            continue
        if mark.get("of") == stamp.of:
            is_later = str(mark.get("n")) > number
        else:
            is_later = by_others and (float(mark.get("at", 0.0)), str(mark.get("of"))) > (stamp.at, stamp.of)
        if is_later:
            return True
    return False


def _read_stamp(stored: Mapping[str, Any]) -> Stamp | None:
    number, at, of, index = (
        stored.get("n"),
        version_of(stored.get("at")),
        stored.get("of"),
        stored.get("i", ""),
    )
    if not isinstance(number, int) or at is None or isinstance(at, str):
        return None
    if not isinstance(of, str) or not isinstance(index, str):
        return None
    return Stamp(number, float(at), of, index, version_of(stored.get("v")))


def _find(document: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document
