"""Events per second of the idempotent producer against the bare SDK, which may double events, in batches of several sizes.

Both create a batch with room for all, add events of 1 KB one by one and send it, over one link to each of the partitions of the
local Event Hubs, which is a process of its own: one partition, then several at the same time. They take many short turns, so that
what else the machine does hits both.
CPU is of the client's process, user and system; links are open before it is measured.

    python -m benchmarks.publisher --rounds 25
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient

from tidemark.publisher import FileStateStore, IdempotentProducer, SyncIdempotentProducer

HUB = "bench"
BODY = b"x" * 1024
EVENTS = {1: 60, 10: 400, 100: 1_200, 700: 2_100}
"""How many events a turn sends, by the size of the batch."""

PARTITIONS = 16
"""At the same time, for the group commit of the state file. The default of a hub of the standard tier that somebody scales is
between 4 and 32.
"""


class Turn(NamedTuple):
    wall: float
    cpu: float


async def plain(client: EventHubProducerClient, size: int, count: int, partition: str = "0") -> None:
    for _ in range(count // size):
        batch = await client.create_batch(partition_id=partition)
        for _ in range(size):
            batch.add(EventData(BODY))
        await client.send_batch(batch)


async def ours(producer: IdempotentProducer, size: int, count: int, partition: str = "0") -> None:
    for _ in range(count // size):
        batch = await producer.create_batch(partition_id=partition)
        for _ in range(size):
            batch.add(EventData(BODY))
        await producer.send_batch(batch)


async def blocking(producer: SyncIdempotentProducer, size: int, count: int) -> None:
    def work() -> None:  # in a thread without an event loop, as programs use it
        for _ in range(count // size):
            batch = producer.create_batch(partition_id="0")
            for _ in range(size):
                batch.add(EventData(BODY))
            producer.send_batch(batch)

    await asyncio.to_thread(work)


def at_once(send: Callable[..., Awaitable[None]]) -> Callable[[Any, int, int], Awaitable[None]]:
    """The same events over all partitions at the same time."""

    async def send_all(client: Any, size: int, count: int) -> None:
        per_partition = max(size, count // PARTITIONS)
        await asyncio.gather(
            *(send(client, size, per_partition, str(number)) for number in range(PARTITIONS))
        )

    return send_all


async def turn(
    send: Callable[[Any, int, int], Awaitable[None]], client: Any, size: int, count: int = 0
) -> Turn:
    count = count or EVENTS[size]
    wall, cpu = time.perf_counter(), time.process_time()
    await send(client, size, count)
    return Turn((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count)


async def measure(connection: str, folder: Path, rounds: int) -> None:
    cells: dict[str, tuple[Any, Any]] = {
        "plain SDK (peer)": (
            plain,
            EventHubProducerClient.from_connection_string(connection, eventhub_name=HUB),
        ),
        "idempotent": (ours, IdempotentProducer.from_connection_string(connection, HUB)),
        "idempotent, state in a file": (
            ours,
            IdempotentProducer.from_connection_string(
                connection, HUB, state_store=FileStateStore(folder / "state.json")
            ),
        ),
        "idempotent, blocking": (blocking, SyncIdempotentProducer.from_connection_string(connection, HUB)),
    }
    print(f"load of the machine: {' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    print(f"{'events per batch':>16}  {'':28}{'us CPU':>9}{'us wall':>10}{'CPU ratio':>11}{'wall ratio':>12}")
    for send, client in cells.values():
        await send(client, 1, 1)
    for size in EVENTS:
        turns: dict[str, list[Turn]] = {name: [] for name in cells}
        for _ in range(rounds):
            for name, (send, client) in cells.items():
                turns[name].append(await turn(send, client, size))
        report(size, turns)
    print(f"{PARTITIONS} partitions at the same time:")
    together = {
        name: (at_once(send), client) for name, (send, client) in cells.items() if send is not blocking
    }
    for send, client in together.values():
        await send(client, 1, PARTITIONS)
    turns = {name: [] for name in together}
    for _ in range(rounds):
        for name, (send, client) in together.items():
            turns[name].append(await turn(send, client, 1, 20 * PARTITIONS))
    report(1, turns)
    for _, client in cells.values():
        closed = client.close()
        if closed is not None:
            await closed


def report(size: int, turns: dict[str, list[Turn]]) -> None:
    """Medians; the ratios are throughputs: above 100 % is faster than the peer."""
    peer = median(turns["plain SDK (peer)"])
    for name, turns_of_peer in turns.items():
        mine = median(turns_of_peer)
        print(
            f"{size:>16}  {name:28}{mine.cpu * 1e6:>9.1f}{mine.wall * 1e6:>10.1f}{peer.cpu / mine.cpu:>11.0%}"
            f"{peer.wall / mine.wall:>12.0%}"
        )


def median(turns: list[Turn]) -> Turn:
    return Turn(statistics.median(one.wall for one in turns), statistics.median(one.cpu for one in turns))


def report_sync(folder: Path, count: int = 200) -> None:
    """What the state in a file cannot avoid for each set of a partition that is alone: a write with its sync."""
    with (folder / "sync").open("wb+", buffering=0) as file:
        file.write(bytes(count * 512))
        os.fsync(file.fileno())
        walls, cpu = list[float](), time.process_time()
        for number in range(count):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 500, number * 512)
            os.fdatasync(file.fileno())
            walls.append(time.perf_counter() - began)
    spent = (time.process_time() - cpu) / count * 1e6
    print(
        f"a write of 500 bytes with its sync: {spent:.0f} us CPU, {statistics.median(walls) * 1e6:.0f} us wall"
    )


async def run(rounds: int) -> None:
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "devstack.event_hubs", "--port", "0", "--hub", f"{HUB}:{PARTITIONS}"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        ready = (await server.stdout.readline()).decode().split()
        with TemporaryDirectory() as folder:
            report_sync(Path(folder))
            await measure(ready[1], Path(folder), rounds)
            report_sync(Path(folder))
    finally:
        server.terminate()
        await server.wait()


def main(rounds: Annotated[int, typer.Option(min=1)] = 25) -> None:
    asyncio.run(run(rounds))


if __name__ == "__main__":
    typer.run(main)
