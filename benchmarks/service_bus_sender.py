"""The big-batch sender against the SDK's own loop, in the same run, to the same local Service Bus in another process.

The peer is what the SDK's documentation shows: create_message_batch, add_message until MessageSizeExceededError, send,
begin the next one. Its batch does not count the ids it repeats on the envelope, so that it gets 256 bytes less than
the limit: without that reserve some of its batches are refused. Both send one batch at a time and wait for its answer.
CPU is that of the client process; rates depend on the machine, the ratio hardly does. Rounds alternate.

    python -m benchmarks.service_bus_sender --messages 20000 --rounds 3
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError
from rich.console import Console
from rich.progress import track
from rich.table import Table

from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tidemark.publisher import Limits, SyncBigBatchSender
from tidemark.publisher.service_bus.sdk.message_sizes import Encoder

QUEUE = "orders"
LIMIT = 256 * 1024
RESERVE = 256  # bytes, see above

Send = Callable[[Sequence[object]], int]
"""Sends messages and returns the number of batches."""


class Run(NamedTuple):
    batches: int
    cpu: float  # microseconds per message
    wall: float  # the same


def serve(pipe: Connection, folder: str) -> None:
    """The other process: a queue that forgets what it gets, until the pipe says so."""

    async def run() -> None:
        async with ServiceBusServer(ca_dir=Path(folder)) as server:
            queue = server.create_queue(QUEUE, QueueSettings(limits=STANDARD, default_ttl=0.05))
            pipe.send(server.connection_string)
            while not pipe.poll():
                await asyncio.sleep(0.05)
                queue.advance()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


def naive(sender: ServiceBusSender) -> Send:
    def send(messages: Sequence[object]) -> int:
        batches = 0
        batch = sender.create_message_batch(max_size_in_bytes=LIMIT - RESERVE)
        for given in messages:
            message = given if isinstance(given, ServiceBusMessage) else ServiceBusMessage(given)  # type: ignore[arg-type]  # bytes
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                sender.send_messages(batch)
                batches += 1
                batch = sender.create_message_batch(max_size_in_bytes=LIMIT - RESERVE)
                batch.add_message(message)
        sender.send_messages(batch)
        return batches + 1

    return send


def ours(sender: SyncBigBatchSender) -> Send:
    return lambda messages: sender.send(iter(messages)).batches


def measured(send: Send, messages: Sequence[object]) -> Run:
    cpu, wall = time.process_time(), time.perf_counter()
    batches = send(messages)
    scale = 1e6 / len(messages)
    return Run(batches, (time.process_time() - cpu) * scale, (time.perf_counter() - wall) * scale)


def lower_bound(messages: Sequence[object]) -> int:
    encoder = Encoder(id_prefix="0" * 16)
    limits = Limits(LIMIT, LIMIT)
    total = sum(encoder.measure(message, index, limits).cost for index, message in enumerate(messages))
    return -(-total // LIMIT)


def workloads(count: int) -> dict[str, list[object]]:
    rng = random.Random(5)
    return {
        "bodies of 1 KB": [rng.randbytes(1000) for _ in range(count)],
        "ServiceBusMessages of 1 KB": [ServiceBusMessage(rng.randbytes(1000)) for _ in range(count)],
        "bodies of 100 bytes": [rng.randbytes(100) for _ in range(count)],
        "bodies of 100 bytes to 100 KB": [
            rng.randbytes(int(10 ** rng.uniform(2, 5))) for _ in range(max(1, count // 20))
        ],
    }


def main(
    messages: Annotated[int, typer.Option(min=100)] = 20_000,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Prints a table."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with TemporaryDirectory() as folder:
        server = context.Process(target=serve, args=(there, folder), daemon=True)
        server.start()
        try:
            table = compare(here.recv(), workloads(messages), rounds)
        finally:
            here.send("stop")
            server.join(10)
    Console().print(table)


def compare(connection: str, work: dict[str, list[object]], rounds: int) -> Table:
    table = Table(title="SDK's own loop / big-batch sender; CPU of the client, median of the rounds")
    for name in ("messages", "batches at least", "batches", "CPU us/message", "CPU ratio", "messages/s"):
        table.add_column(name, justify="left" if name == "messages" else "right")
    with (
        ServiceBusClient.from_connection_string(connection, keep_alive=0) as client,
        client.get_queue_sender(QUEUE) as sender,
        SyncBigBatchSender.from_connection_string(
            connection, queue_name=QUEUE, client_options={"keep_alive": 0}
        ) as big,
    ):
        big.send([b"warm"])
        sends = (naive(sender), ours(big))
        runs: dict[str, list[tuple[Run, Run]]] = {name: [] for name in work}
        for name in track([name for _ in range(rounds) for name in work], "sending"):
            runs[name].append((measured(sends[0], work[name]), measured(sends[1], work[name])))
    for name, pairs in runs.items():
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        cpu = [statistics.median(run.cpu for run in side) for side in (first, second)]
        rate = [1e6 / statistics.median(run.wall for run in side) for side in (first, second)]
        table.add_row(
            f"{len(work[name]):,} {name}",
            str(lower_bound(work[name])),
            f"{first[0].batches} / {second[0].batches}",
            f"{cpu[0]:.1f} / {cpu[1]:.1f}",
            f"{cpu[0] / cpu[1]:.1f}",
            f"{rate[0]:,.0f} / {rate[1]:,.0f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
