"""What a task does: the events of its range, batch by batch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition

from spark_jobs.sources.event_hubs.reading import RangeReader
from spark_jobs.sources.event_hubs.settings import HubRange, HubSettings


def batches_of(settings: HubSettings, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The batches of a task."""
    if not isinstance(partition, HubRange):  # Spark's stand-in where there is nothing to read
        return
    reader = RangeReader(settings, partition.wanted)
    loop: Any = asyncio.new_event_loop()
    try:
        while (batch := loop.run_until_complete(reader.next_batch())) is not None:
            yield batch
    finally:
        with contextlib.suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait_for(reader.close(), 10.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
