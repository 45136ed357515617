"""Real records for the consumer: the 336,776 flights that left New York City in 2013 (devstack/data/README.md)."""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

FLIGHTS = Path(__file__).parent / "data" / "flights.csv.xz"

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


async def send(connection_string: str, hub: str, events: Sequence[bytes]) -> None:
    """Sends events to a hub in batches, round robin over its partitions."""
    from azure.eventhub import EventData  # noqa: PLC0415 - half a second, only when needed
    from azure.eventhub.aio import EventHubProducerClient  # noqa: PLC0415

    client = EventHubProducerClient.from_connection_string(connection_string, eventhub_name=hub)
    async with client:
        batch = await client.create_batch()
        for body in events:
            try:
                batch.add(EventData(body))
            except ValueError:  # full
                await client.send_batch(batch)
                batch = await client.create_batch()
                batch.add(EventData(body))
        if len(batch):
            await client.send_batch(batch)
