"""Sequence numbers of 31 bits (pure): after the highest comes 0."""

from __future__ import annotations

from collections.abc import Iterator

from publisher.model import MAX_SEQUENCE_NUMBER

_NUMBERS = MAX_SEQUENCE_NUMBER + 1


def following(number: int) -> int:
    """The sequence number after this one."""
    return (number + 1) % _NUMBERS


def last_of(first: int, count: int) -> int:
    """The number of the last of `count` events, 1 or more."""
    return (first + count - 1) % _NUMBERS


def numbers_of(first: int, count: int) -> Iterator[int]:
    """The numbers of `count` events, the first one first."""
    for offset in range(count):
        yield (first + offset) % _NUMBERS
