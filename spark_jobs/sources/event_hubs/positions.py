"""Which events of a hub a batch takes: positions by partition, and what retention took away. Pure.

A position is the sequence number of the next event to read. A batch takes the events from its start up to, and without,
its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from consumer.model import PartitionState
from tidemark.analysis.errors import InputError

Positions = dict[str, int]

EARLIEST, LATEST = "earliest", "latest"
OTHERS = "*"


class Range(NamedTuple):
    """Events `first` to `last`, both included."""

    partition: str
    first: int
    last: int


def begin_of(state: PartitionState) -> int:
    """The first event that is there; of an empty partition, the next to come."""
    return end_of(state) if state.empty else state.begin_sequence_number


def end_of(state: PartitionState) -> int:
    return state.last_sequence_number + 1


def parse_position(text: str, option: str) -> dict[str, str | int]:
    """An option's value: "earliest", "latest", or JSON of both or of sequence numbers by partition, where "*" stands for
    the others: {"0": 1200, "*": "earliest"}. Raises InputError.
    """
    if text in {EARLIEST, LATEST}:
        return {OTHERS: text}
    try:
        position = json.loads(text)
    except ValueError:
        position = None
    if not isinstance(position, dict) or not all(_is_position(value) for value in position.values()):
        raise InputError(
            f"{option} is '{text[:100]}'; accepted are earliest, latest, or JSON of sequence numbers by partition such"
            ' as {"0": 1200, "*": "earliest"}'
        )
    return position


def _is_position(value: object) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return is_number or value in {EARLIEST, LATEST}


def resolved(
    wanted: Mapping[str, str | int], states: Mapping[str, PartitionState], default: str, option: str
) -> Positions:
    """The positions of all partitions. Raises InputError for partitions that the hub does not have."""
    unknown = sorted(set(wanted) - set(states) - {OTHERS})
    if unknown:
        raise InputError(
            f"{option} names partition {', '.join(unknown)}; the hub has {', '.join(sorted(states, key=order))}"
        )
    positions: Positions = {}
    for partition, state in states.items():
        value = wanted.get(partition, wanted.get(OTHERS, default))
        named = {EARLIEST: begin_of(state), LATEST: end_of(state)}
        positions[partition] = value if isinstance(value, int) else named[value]
    return positions


def ranges(start: Positions, end: Positions) -> list[Range]:
    """What there is to read, of partitions that are in both."""
    return [
        Range(partition, start[partition], until - 1)
        for partition, until in sorted(end.items(), key=lambda item: order(item[0]))
        if start[partition] < until
    ]


def lost(wanted: Range, state: PartitionState) -> str | None:
    """What of a range is not in the hub any more, as a sentence; None if all of it may be there."""
    if end_of(state) <= wanted.last:
        return (
            f"partition {wanted.partition}: event {wanted.last} was there, but the hub's last event is"
            f" {state.last_sequence_number}: the event hub was created anew"
        )
    first = begin_of(state)
    if first > wanted.first:
        return gone(wanted.partition, wanted.first, min(first - 1, wanted.last))
    return None


def gone(partition: str, first: int, last: int) -> str:
    return f"partition {partition}: events {first} to {last} were removed by retention before they were read"


def order(partition: str) -> tuple[int, str]:
    """By number, as people count partitions."""
    return (int(partition) if partition.isdecimal() else 0), partition
