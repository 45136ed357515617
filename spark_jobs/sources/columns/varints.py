"""Avro's numbers and maps, for many records at a time: each step is one operation over an array of positions. Pure.

Reading eight bytes at each of many positions is one gather through a view of the data with a stride of one byte. What
is read at a position that no record has is garbage, but never out of bounds: positions are kept within the data, behind
which PADDING zeros stand. A record that would not end within the data, or has a size below zero, ends behind the data's
end instead. The caller proves that its positions were right.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

PADDING = 32
_BEHIND = 8
"""Bytes behind the end of the data where all lies that is out of bounds: two words from there are padding."""

LONG, DOUBLE, STRING, BYTES, NULL, UNKNOWN = range(6)
KINDS = {"long": LONG, "int": LONG, "double": DOUBLE, "string": STRING, "bytes": BYTES, "null": NULL}

_FIXED_SIZES = np.array([0, 8, 0, 0, 0, -1])

_MOST_ENTRIES = 256
"""Entries of one map. Garbage may announce any number; true events have a few."""

_U = np.uint64
_CONTINUES, _EACH = _U(0x8080808080808080), _U(0x0101010101010101)


class UnprovenError(Exception):
    """The data is not laid out as was assumed. It may still be right: it has to be read record by record."""


class Entries(NamedTuple):
    """The entries of the maps of many records, in the records' order. `record` is the record's index.

    A value of kind STRING or BYTES is `size` bytes at `start`, a DOUBLE 8 bytes at `start`, a LONG `number`.
    """

    record: Ints
    key_start: Ints
    key_size: Ints
    kind: Ints
    start: Ints
    size: Ints
    number: Ints


class Reader:
    """Reads at arrays of positions in `data`, which has PADDING zeros behind its `size` bytes."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data) - PADDING
        self.bytes = np.frombuffer(data, np.uint8)
        self.behind = self.size + _BEHIND
        self._words: Any = np.ndarray((self.size + PADDING - 7,), "<u8", data, strides=(1,))

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

    def maps(self, positions: Ints, kinds: Ints) -> tuple[Ints, Entries | None]:
        """The positions behind the maps that begin at `positions`, and their entries; None where all are empty.

        `kinds` is the kind of each branch of the values' union, and UNKNOWN at last. Raises UnprovenError for more
        entries than believed.
        """
        if not self.bytes[positions].any():
            return np.minimum(positions + 1, self.behind), None
        ends = positions.copy()
        left = np.zeros(len(positions), np.int64)
        open_ = np.arange(len(positions))
        rounds: list[tuple[Ints, ...]] = []
        for _ in range(2 * _MOST_ENTRIES):
            open_ = self._blocks(open_, ends, left)
            if not len(open_):
                return ends, _in_order(rounds)
            rounds.append(self._entry(open_, ends, kinds))
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

    def _entry(self, open_: Ints, ends: Ints, kinds: Ints) -> tuple[Ints, ...]:
        """The next entry of each open map, as the fields of Entries; moves `ends` behind it."""
        key_size, key_start = self.longs(ends[open_])
        branch, at = self.longs(self.after(key_start, key_size))
        kind = kinds[np.clip(branch, -1, len(kinds) - 1)]
        number, behind = self.longs(at)
        sized = (kind == STRING) | (kind == BYTES)
        start = np.where(sized, behind, at)
        size = np.where(sized, number, _FIXED_SIZES[kind])
        ends[open_] = np.where(kind == LONG, behind, self.after(start, size))
        return open_, key_start, key_size, kind, start, size, number


def _packed(word: Words) -> Words:
    """The low seven bits of each byte, side by side."""
    word = word & _U(0x7F7F7F7F7F7F7F7F)
    word = (word & _U(0x007F007F007F007F)) | ((word & _U(0x7F007F007F007F00)) >> _U(1))
    word = (word & _U(0x00003FFF00003FFF)) | ((word & _U(0x3FFF00003FFF0000)) >> _U(2))
    return (word & _U(0x000000000FFFFFFF)) | ((word & _U(0x0FFFFFFF00000000)) >> _U(4))


def _in_order(rounds: list[tuple[Ints, ...]]) -> Entries | None:
    if not rounds:
        return None
    fields = [np.concatenate(field) for field in zip(*rounds, strict=True)]
    order = np.argsort(fields[0], kind="stable")
    return Entries(*(field[order] for field in fields))
