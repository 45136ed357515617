"""Sequence numbers and times of captured events, in the layout that Event Hubs Capture writes. Pure.

A reconciliation by position needs no more of an event, and fastavro takes half as much again for the whole job (20 million
events without properties: 230 CPU seconds, and 122 more). Records have no index, so each begins where the one before ends. But
every record has its time as text, "11/21/2026 8:02:14 AM", in which so much is fixed that all places that look like one are found
at once. From each the record's end follows, over its maps and its body, for all records together. When every record ends exactly
where the next begins, and the last where its block ends, then by induction the places were right, and nothing was guessed. Where
that does not hold, or the file's schema is another, `avro_events` reads the records one by one.

Each step is one operation over an array of positions. Reading eight bytes at each of them is one gather through a view of
the data with a stride of one byte. What is read at a position that no record has is garbage, but never out of bounds: positions
are kept within the data, behind which _PADDING zeros stand. A record that would not end within the data, or has a size below
zero, ends behind the data's end instead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spark_jobs.sources.columns.avro_container import Block
from spark_jobs.sources.columns.event_columns import EVENT_COLUMNS, Origin, constant, instant

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

COLUMNS = frozenset({"hub", "partition", "sequence_number", "enqueued_at", "file"})
"""Of EVENTS, what this module reads: two columns of the records, and what all of a file have in common."""

_FIELDS = ["SequenceNumber", "Offset", "EnqueuedTimeUtc", "SystemProperties", "Properties", "Body"]
_SIZES = (19, 20, 21, 22)  # of the time's text: "1/1/2026 1:00:00 AM" to "12/31/2026 12:00:00 PM"
_U = np.uint64
_SHAPE_MASK, _SHAPE = _U(0x00FF0000FF0000FF), _U(0x002000003A00003A)  # the eight bytes before M: ":??:?? ?"

_PADDING = 32
_BEHIND = 8
"""Bytes behind the end of the data where all lies that is out of bounds: two words from there are padding."""

_LONG, _DOUBLE, _SIZED, _NULL, _UNKNOWN = range(5)
_KINDS = {"long": _LONG, "int": _LONG, "double": _DOUBLE, "string": _SIZED, "bytes": _SIZED, "null": _NULL}
_FIXED_SIZES = np.array([0, 8, 0, 0, -1])

_MOST_ENTRIES = 256
"""Entries of one map. Garbage may announce any number; true events have a few."""

_CONTINUES, _EACH = _U(0x8080808080808080), _U(0x0101010101010101)


class UnprovenError(Exception):
    """The data is not laid out as was assumed. It may still be right: it has to be read record by record."""


class Layout(NamedTuple):
    """Which branches the unions of a capture file have: the kinds by index, _UNKNOWN at last."""

    system: Ints
    properties: Ints
    body: Ints


def layout_of(schema: Any) -> Layout | None:
    """The layout of a schema that is the one Event Hubs writes; None for any other."""
    if not isinstance(schema, dict) or [field.get("name") for field in schema.get("fields", ())] != _FIELDS:
        return None
    types = [field["type"] for field in schema["fields"]]
    if types[:3] != ["long", "string", "string"]:
        return None
    system, properties, body = (_map_kinds(types[3]), _map_kinds(types[4]), _kinds(types[5]))
    if system is None or properties is None or body is None or not {*types[5]} <= {"null", "bytes"}:
        return None
    return Layout(system, properties, body)


def _map_kinds(kind: Any) -> Ints | None:
    is_map = isinstance(kind, dict) and kind.get("type") == "map"
    return _kinds(kind.get("values")) if is_map else None


def _kinds(union: Any) -> Ints | None:
    if not isinstance(union, list) or not all(
        isinstance(branch, str) and branch in _KINDS for branch in union
    ):
        return None
    return np.array([*(_KINDS[branch] for branch in union), _UNKNOWN], np.int64)


def positions_of(
    group: Sequence[Block], layout: Layout, origin: Origin, columns: Collection[str]
) -> pa.RecordBatch:
    """The events of blocks that follow each other, as `columns` of COLUMNS. Raises UnprovenError."""
    data = b"".join((*(block.payload for block in group), bytes(_PADDING)))
    reader = _Reader(data)
    numbers, starts, ends = _find_records(
        reader, layout, [(block.records, len(block.payload)) for block in group]
    )
    count = len(numbers)
    make = {
        "hub": lambda: constant(origin.hub, count),
        "partition": lambda: constant(origin.partition, count),
        "sequence_number": lambda: pa.array(numbers),
        "enqueued_at": lambda: _instants(reader, data, starts + 1, ends - starts - 1),
        "file": lambda: constant(origin.file or "", count),
    }
    chosen = [column for column in EVENT_COLUMNS if column in columns]
    return pa.RecordBatch.from_arrays([make[column]() for column in chosen], names=chosen)


# -- where the records are


def _find_records(
    reader: _Reader, layout: Layout, sizes: Sequence[tuple[int, int]]
) -> tuple[Ints, Ints, Ints]:
    """The sequence numbers of blocks given as (records, bytes), where the sizes of their times stand, and where these end; all
    proven. Raises UnprovenError.
    """
    count = sum(records for records, _ in sizes)
    starts, ends = _times(reader)
    if len(starts) > count:  # bodies with times in them
        true = _chained(reader, layout, starts, ends, count)
        starts, ends = starts[true], ends[true]
    if len(starts) != count:
        raise UnprovenError(f"{len(starts)} times of {count} records")
    record_ends = _record_ends(reader, layout, ends)
    numbers, times = _heads(reader, np.concatenate(([0], record_ends[:-1])))
    if not np.array_equal(times, starts):
        raise UnprovenError("a record does not begin where the one before ends")
    counted = np.cumsum([records for records, _ in sizes]) - 1
    if not np.array_equal(record_ends[counted], np.cumsum([size for _, size in sizes])):
        raise UnprovenError("a block does not end with its last record")
    return numbers, starts, ends


def _times(reader: _Reader) -> tuple[Ints, Ints]:
    """Where the sizes of all texts stand that look like a time, and where the texts end; in order."""
    last = np.flatnonzero(reader.bytes[: reader.size] == ord("M"))
    last = last[last >= _SIZES[0]]
    last = last[(reader.words(last - 8) & _SHAPE_MASK) == _SHAPE]
    start = np.full(len(last), -1)
    for size in _SIZES:
        at = last - size
        start = np.where((at >= 0) & (reader.bytes[at] == 2 * size), at, start)
    real = start >= 0
    return start[real], last[real] + 1


def _record_ends(reader: _Reader, layout: Layout, time_ends: Ints) -> Ints:
    """Where the records of these times end: behind two maps and a body."""
    at = reader.behind_maps(reader.behind_maps(time_ends, layout.system), layout.properties)
    branch, at = reader.longs(at)
    return reader.behind_values(at, layout.body[np.clip(branch, -1, len(layout.body) - 1)])


def _heads(reader: _Reader, begins: Ints) -> tuple[Ints, Ints]:
    """The sequence numbers of the records that begin there, and where the sizes of their times should stand."""
    numbers, at = reader.longs(begins)
    size, offset = reader.longs(at)
    return numbers, reader.after(offset, size)


def _chained(reader: _Reader, layout: Layout, starts: Ints, ends: Ints, count: int) -> list[int]:
    """Which of the times, of which there are too many, follow each other as records; nothing is proven by it."""
    due = _heads(reader, np.concatenate(([0], _record_ends(reader, layout, ends))))[1]
    index = np.minimum(np.searchsorted(starts, due), len(starts) - 1)
    # As an index into the begins of records; 0 is the end.
    following = np.where(starts[index] == due, index + 1, 0).tolist()
    true: list[int] = []
    at = 0
    while len(true) < count and (at := following[at]):
        true.append(at - 1)
    return true


def _instants(reader: _Reader, data: bytes, start: Ints, size: Ints) -> pa.Array:
    """The times, parsed once for each run of equal texts: a text is exact to the second."""
    keep = (_U(1) << (_U(8) * (size.astype(np.uint64) - _U(16)))) - _U(1)  # of the third word
    texts = np.stack((reader.words(start), reader.words(start + 8), reader.words(start + 16) & keep))
    changes = (texts[:, 1:] != texts[:, :-1]).any(axis=0)
    firsts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    values = [
        instant(data[at : at + length].decode("ascii", "replace"))
        for at, length in zip(start[firsts].tolist(), size[firsts].tolist(), strict=True)
    ]
    runs = np.diff(np.append(firsts, len(start)))
    return pa.array(np.repeat(np.array(values, np.int64), runs)).cast(pa.timestamp("us", "UTC"))


# -- Avro's numbers and maps, at many positions at once


class _Reader:
    """Reads at arrays of positions in `data`, which has _PADDING zeros behind its `size` bytes."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data) - _PADDING
        self.bytes = np.frombuffer(data, np.uint8)
        self.behind = self.size + _BEHIND
        self._words: Any = np.ndarray((self.size + _PADDING - 7,), "<u8", data, strides=(1,))

    def words(self, positions: Ints) -> Words:
        """Eight bytes each, the first in the lowest bits."""
        return cast("Words", self._words[positions])

    def after(self, positions: Ints, sizes: Ints) -> Ints:
        """The positions behind `sizes` bytes; behind all data where that is not within it."""
        # As unsigned numbers, sizes below zero are beyond any data. Two sizes may not overflow together.
        bounded = np.minimum(sizes.view(np.uint64), _U(self.behind)).view(np.int64)
        behind: Ints = np.minimum(positions + bounded, self.behind)
        return behind

    def longs(self, positions: Ints) -> tuple[Ints, Ints]:
        """The numbers at the positions, and behind them. Positions are within the data, and stay so."""
        byte = self.bytes[positions]
        if (byte < 0x80).all():  # sizes of names and branches of unions are hardly ever longer
            small = byte.astype(np.int64)
            return (small >> 1) ^ -(small & 1), np.minimum(positions + 1, self.behind)
        word = self.words(positions)
        ends = ~word & _CONTINUES
        below = (ends & (~ends + _U(1))) - _U(1)  # all bits below the first byte that does not continue
        size = (((below & _EACH) * _EACH) >> _U(56)).astype(np.int64)
        value = _packed(word & below)
        wide = np.flatnonzero(ends == 0)
        if len(wide):
            value, size = self._widened(positions, value, size, wide)
        number = (value >> _U(1)).view(np.int64) ^ -(value & _U(1)).view(np.int64)
        return number, self.after(positions, size)

    def _widened(self, positions: Ints, value: Words, size: Ints, wide: Ints) -> tuple[Words, Ints]:
        """Numbers of nine or ten bytes: times in nanoseconds, for example."""
        word = self.words(np.minimum(positions[wide] + 8, self.behind))
        more = (word & _U(0x80)) >> _U(7)
        value[wide] |= ((word & _U(0x7F)) << _U(56)) | (((word >> _U(8)) & more) << _U(63))
        too_long = (more == 1) & ((word & _U(0xFE00)) != 0)
        size[wide] = np.where(too_long, -1, 9 + more.astype(np.int64))
        return value, size

    def behind_values(self, positions: Ints, kinds: Ints) -> Ints:
        """The positions behind values of these kinds."""
        number, behind = self.longs(positions)
        sized = kinds == _SIZED
        fixed = self.after(np.where(sized, behind, positions), np.where(sized, number, _FIXED_SIZES[kinds]))
        return np.where(kinds == _LONG, behind, fixed)

    def behind_maps(self, positions: Ints, kinds: Ints) -> Ints:
        """The positions behind the maps that begin at `positions`.

        `kinds` is the kind of each branch of the values' union, and _UNKNOWN at last. Raises UnprovenError for more
        entries than believed.
        """
        if not self.bytes[positions].any():
            return np.minimum(positions + 1, self.behind)
        ends = positions.copy()
        left = np.zeros(len(positions), np.int64)
        open_ = np.arange(len(positions))
        for _ in range(2 * _MOST_ENTRIES):
            open_ = self._blocks(open_, ends, left)
            if not len(open_):
                return ends
            size, at = self.longs(ends[open_])
            branch, at = self.longs(self.after(at, size))  # behind the key
            ends[open_] = self.behind_values(at, kinds[np.clip(branch, -1, len(kinds) - 1)])
            left[open_] -= 1
        raise UnprovenError(f"a map of more than {_MOST_ENTRIES} entries")

    def _blocks(self, open_: Ints, ends: Ints, left: Ints) -> Ints:
        """Begins the next block of each map that is done with one; the maps that go on."""
        due = open_[left[open_] == 0]
        if len(due):
            count, ends[due] = self.longs(ends[due])
            sized = due[count < 0]
            if len(sized):  # a negative count is followed by the block's size in bytes
                ends[sized] = self.longs(ends[sized])[1]
            ends[due[(count > _MOST_ENTRIES) | (count < -_MOST_ENTRIES)]] = self.behind
            left[due] = np.abs(count)
            ended = due[(count == 0) | (ends[due] >= self.size)]
            left[ended] = -1
            open_ = open_[left[open_] > 0]
        return open_


def _packed(word: Words) -> Words:
    """The low seven bits of each byte, side by side."""
    word = word & _U(0x7F7F7F7F7F7F7F7F)
    word = (word & _U(0x007F007F007F007F)) | ((word & _U(0x7F007F007F007F00)) >> _U(1))
    word = (word & _U(0x00003FFF00003FFF)) | ((word & _U(0x3FFF00003FFF0000)) >> _U(2))
    return (word & _U(0x000000000FFFFFFF)) | ((word & _U(0x0FFFFFFF00000000)) >> _U(4))
