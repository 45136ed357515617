"""Reports per second through the whole function path: queue trigger, state, decision, log, state write; on Azurite.

The peer, in the same run on the same Azurite, is the least any implementation with this storage layout must do: take the
message, query the partition, write the log row, write the state row, delete the message, with the bare SDK and no
logic. The ratio says what our code costs on top. Azurite shares the machine, so the absolute numbers are a lower bound.

    python -m benchmarks.function_path --targets 1000 --metrics 5
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from azure.data.tables.aio import TableServiceClient
from azure.storage.queue import TextBase64DecodePolicy, TextBase64EncodePolicy
from azure.storage.queue.aio import QueueClient

from devstack.processes.azurite import Azurite
from devstack.stack.supervisor import ROOT
from scaling.model import Capacity, MetricSample, MetricsReport
from scaling.service.messages import encode

CONCURRENCY = 24  # batchSize 16 + newBatchThreshold 8 of host.json

TARGET = """
[targets.t{n}]
scaler = "app_service_plan"
resource_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/b/providers/Microsoft.Web/serverfarms/t{n}"
maximum = 30
"""
METRIC = """
[targets.t{n}.metrics.m{m}]
collector = "storage_queue"
connection = "AzureWebJobsStorage"
queue = "q{m}"

[[targets.t{n}.rules]]
type = "threshold"
metric = "m{m}"
scale_out_above = 500
scale_in_below = 100
"""


def configuration(targets: int, metrics: int) -> str:
    return "".join(
        TARGET.format(n=n) + "".join(METRIC.format(n=n, m=m) for m in range(metrics)) for n in range(targets)
    )


def messages(targets: int, metrics: int, at: float) -> list[str]:
    return [
        encode(
            MetricsReport(
                f"t{n}",
                at,
                tuple(MetricSample(f"m{m}", at, 200.0 + n % 100) for m in range(metrics)),
                capacity=Capacity(3, at, ceiling=30),
            )
        )
        for n in range(targets)
    ]


def queue_of(connection: str, name: str) -> QueueClient:
    return QueueClient.from_connection_string(
        connection,
        name,
        message_encode_policy=TextBase64EncodePolicy(),
        message_decode_policy=TextBase64DecodePolicy(),
    )


async def fill(connection: str, name: str, texts: list[str]) -> None:
    async with queue_of(connection, name) as queue:
        await queue.create_queue()
        for start in range(0, len(texts), 32):
            await asyncio.gather(*(queue.send_message(text) for text in texts[start : start + 32]))


async def bare_peer(connection: str, texts: list[str], metrics: int) -> tuple[float, float]:
    """Wall and CPU seconds of the least possible storage work for the same reports."""
    await fill(connection, "peer", texts)
    async with (
        TableServiceClient.from_connection_string(connection) as service,
        queue_of(connection, "peer") as queue,
    ):
        state, log = service.get_table_client("PeerState"), service.get_table_client("PeerLog")
        await state.create_table()
        await log.create_table()

        async def one(message: Any) -> None:
            key = message.id
            async for _ in state.query_entities(f"PartitionKey eq '{key}'"):
                pass
            keys = {"PartitionKey": key, "RowKey": "state"}
            await log.upsert_entity({**keys, "Line": "x" * 500, "Data": "x" * 2000, "Inputs": b"\0" * 700})
            windows = {"Windows": "x" * 50 * metrics, "Samples": b"\0" * 16 * metrics}
            await state.create_entity({**keys, "Data": "x" * 1600, **windows})
            await queue.delete_message(message)

        began, cpu = time.perf_counter(), time.process_time()
        gate = asyncio.Semaphore(CONCURRENCY)

        async def gated(message: Any) -> None:
            async with gate:
                await one(message)

        async with asyncio.TaskGroup() as group:
            async for message in queue.receive_messages(messages_per_page=32, visibility_timeout=300):
                group.create_task(gated(message))
        return time.perf_counter() - began, time.process_time() - cpu


async def function_path(connection: str, before: list[str], texts: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of the function host over the reports, from the first message to the last.

    The reports of the minute `before` are decided upon first, unmeasured: tables and targets are then known.
    """
    from devstack.function_host import FunctionHost
    from devstack.function_host.settings import load_host_json
    from function_app import app
    from scaling.service import assembly

    autoscaler = assembly.autoscaler()  # reading 1,000 targets is start-up, not throughput
    for text in before:
        await autoscaler.evaluate(text)
    await fill(connection, "metrics", texts)
    timers = dict.fromkeys(("COLLECT_SCHEDULE", "VERIFY_SCHEDULE"), "0 0 0 1 1 *")  # not during the run
    host = FunctionHost(app, settings={**os.environ, **timers}, host_json=load_host_json(ROOT))
    began, cpu = time.perf_counter(), time.process_time()
    await host.start()
    try:
        decided = min(len(texts), 1_000)  # what the host remembers; asking the queue would be measured, too
        while sum(invocation.succeeded is True for invocation in host.invocations) < decided:
            await asyncio.sleep(0.1)
        async with queue_of(connection, "metrics") as queue:
            while (await queue.get_queue_properties()).approximate_message_count:
                await asyncio.sleep(0.1)
        return time.perf_counter() - began, time.process_time() - cpu
    finally:
        await host.stop()
        await autoscaler.aclose()
        assembly.autoscaler.cache_clear()


async def measure(targets: int, metrics: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "benchmark.toml"
        path.write_text(configuration(targets, metrics), encoding="utf-8")
        async with Azurite() as azurite:
            connection = azurite.connection_string
            os.environ |= {
                "AzureWebJobsStorage": connection,
                "TIDEMARK_CONFIG": str(path),
                "COLLECT_SCHEDULE": "0 * * * * *",
            }
            sys.path.insert(0, str(ROOT))
            now = round(time.time(), 3)
            peer_wall, peer_cpu = await bare_peer(connection, messages(targets, metrics, now), metrics)
            earlier = messages(targets, metrics, now - 60.0)
            wall, cpu = await function_path(connection, earlier, messages(targets, metrics, now))
    print(f"{targets} targets x {metrics} metrics, {CONCURRENCY} messages at a time, one process:")
    print(f"  function path   {targets / wall:7.0f} reports/s   {1e3 * cpu / targets:6.2f} ms CPU per report")
    print(
        f"  bare SDK calls  {targets / peer_wall:7.0f} reports/s   {1e3 * peer_cpu / targets:6.2f} ms CPU per report"
    )
    print(f"  ratio           {wall / peer_wall:7.2f} x wall       {cpu / peer_cpu:6.2f} x CPU")
    print(f"  one minute's reports of 1,000 targets take {1000 * wall / targets:.1f} s")


def main(
    targets: Annotated[int, typer.Option(min=1)] = 1000,
    metrics: Annotated[int, typer.Option(min=1, max=90)] = 5,
) -> None:
    """Prints reports per second and the ratio to bare SDK calls."""
    asyncio.run(measure(targets, metrics))


if __name__ == "__main__":
    typer.run(main)
