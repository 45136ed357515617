"""One cell in a process of its own: what is measured is this process, and nothing is left for the next cell.

python -m benchmarks.consumer.cell NAME WORLD_AS_JSON
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable

import msgspec

from benchmarks.consumer import ours, peers, several
from benchmarks.consumer.meter import Meter
from benchmarks.consumer.world import World

Cell = Callable[[World, Meter], Awaitable[None]]

CELLS: dict[str, Cell] = {
    "ours": ours.end_to_end,
    "ours: driver and sink": ours.without_hub,
    "ours: driver and sink, Avro": ours.without_hub_avro,
    "ours: driver and sink, traced": ours.without_hub_traced,
    "ours: driver and sink, RU limit": ours.without_hub_limited,
    "ours: sink alone": ours.sink_alone,
    **ours.UPDATES,
    "ours: receiving": ours.receiving,
    "ours: one process, without its start": several.processes(1),
    "ours: two processes, without their starts": several.processes(2),
    "(a) upsert, one by one": peers.one_by_one,
    "(a) tuned client": peers.one_by_one_tuned,
    "(b) 128 upserts at once": peers.concurrent,
    "(b) tuned client": peers.concurrent_tuned,
    "(c) batch per logical partition": peers.batches,
    "bare client, defaults": peers.receiving_by_default,
    "bare client, our prefetch": peers.receiving_as_we_do,
}


async def measure(name: str, world: World) -> Meter:
    meter = Meter()
    await CELLS[name](world, meter)
    return meter


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    found = asyncio.run(measure(sys.argv[1], msgspec.json.decode(sys.argv[2], type=World)))
    sys.stdout.buffer.write(msgspec.json.encode(found.measured()) + b"\n")
