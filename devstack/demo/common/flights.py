"""Real records for the consumer: the 336,776 flights that left New York City in 2013 (devstack/data/README.md)."""

from __future__ import annotations

import asyncio
import csv
import lzma
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec
from azure.eventhub import EventData

from tidemark.publisher import IdempotentProducer

FLIGHTS = Path(__file__).parents[2] / "data" / "flights.csv.xz"

_NUMBERS = {"sched_dep_time", "dep_delay", "arr_delay", "flight", "air_time", "distance"}


def flights(count: int | None = None, *, first: int = 0) -> Iterator[dict[str, Any]]:
    """Flights in the order of the file from `first` on, at most `count`. Their `id`s are the numbers of their lines.

    Missing values, those of cancelled flights, are None.
    """
    with lzma.open(FLIGHTS, "rt", encoding="utf-8", newline="") as lines:
        stop = None if count is None else first + count
        for number, row in enumerate(islice(csv.DictReader(lines), first, stop), first):
            yield _flight(number, row)


def _flight(number: int, row: dict[str, str]) -> dict[str, Any]:
    month, day = int(row.pop("month")), int(row.pop("day"))
    values = {name: _value(name, text) for name, text in row.items()}
    return {"id": f"flight-{number}", "date": f"2013-{month:02d}-{day:02d}", **values}


def _value(name: str, text: str) -> str | int | None:
    if not text:
        return None
    return int(float(text)) if name in _NUMBERS else text


def bodies(count: int | None = None, *, first: int = 0) -> Iterator[bytes]:
    """The flights as the JSON bodies of events."""
    return map(msgspec.json.encode, flights(count, first=first))


def with_poison(events: Sequence[bytes], count: int) -> list[bytes]:
    """The events, and spread evenly among them `count` that are no JSON, as some device sends some day."""
    mixed = list(events)
    for number in range(count):
        at = (2 * number + 1) * len(events) // (2 * count)  # in the middle of its share
        mixed.insert(at + number, f"flight {number}: no position received".encode())
    return mixed


async def send(
    connection_string: str,
    hub: str,
    events: Iterable[bytes],
    *,
    at_once: int = 5_000,
    rate: float | None = None,
    unless: Callable[[], bool] = lambda: False,
) -> None:
    """Sends events to a hub in batches of up to `at_once`, in turn to its partitions, and none of them twice.

    No faster than `rate` events per second, if one is given, and no further once `unless` says so. Raises PublishError for what cannot be sent.
    """
    remaining, sent, began = iter(events), 0, time.monotonic()
    async with IdempotentProducer.from_connection_string(connection_string, hub) as producer:
        partitions = cycle(await producer.get_partition_ids())
        while not unless() and (part := list(islice(remaining, at_once))):
            await _send(producer, partitions, part)
            sent += len(part)
            if rate is not None:
                await asyncio.sleep(max(0.0, began + sent / rate - time.monotonic()))


async def _send(producer: IdempotentProducer, partitions: Iterator[str], events: Sequence[bytes]) -> None:
    batch = await producer.create_batch(partition_id=next(partitions))
    for event in map(EventData, events):
        if not batch.try_add(event):  # full
            await producer.send_batch(batch)
            batch = await producer.create_batch(partition_id=next(partitions))
            batch.add(event)
    await producer.send_batch(batch)
