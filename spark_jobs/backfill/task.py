"""The function that Spark runs on the executors: rows of one partition in, its counts out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext

from consumer.model import Event, split_place
from spark_jobs.backfill.budget.progress import NUMBERS
from spark_jobs.backfill.replay import Replaying, replay
from spark_jobs.schemas import row_schema
from spark_jobs.sources.columns.event_columns import STEP_BACK
from spark_jobs.task_errors import fails_without_secrets

RESULT = row_schema(
    ", ".join(
        ["partition text", *(f"{name} {'double' if name.endswith('_units') else 'long'}" for name in NUMBERS)]
    )
)
"""What the attempt that finished a partition did: see `Counts`."""

_NO_PROPERTIES: dict[str, Any] = {}
_TWO_HUBS = (
    ": the capture files hold events of two hubs of this name, one of which was deleted. Give --from and --to, so that the job takes"
    " those of one hub"
)


@fails_without_secrets
def replay_partition(batches: Iterator[pa.RecordBatch], replaying: Replaying) -> Iterator[pa.RecordBatch]:
    """For `DataFrame.mapInArrow`, on REPLAYED frames with one hub partition per task; gives RESULT."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    context = TaskContext.get()
    attempt = f"{context.stageId()}.{context.taskAttemptId()}" if context is not None else "0"
    partition = first.column("partition")[0].as_py()
    counts = asyncio.run(replay(replaying, partition, attempt, _chunks(partition, first, batches)))
    row = {"partition": partition} | {name: getattr(counts, name) for name in NUMBERS}
    yield pa.RecordBatch.from_pylist([row])


async def _chunks(
    partition: str, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
) -> AsyncIterator[list[Event]]:
    """The next batch is read on a thread: Spark's side may take its time, and the loop must not."""
    loop = asyncio.get_running_loop()
    batch: pa.RecordBatch | None = first
    last: Event | None = None
    ahead: Event | None = None
    with ThreadPoolExecutor(1) as reader:
        while batch is not None:
            events = events_of(batch)
            others = {event.place for event in events} - {partition}
            if others:  # their numbers would pass for settled ones of this partition
                raise RuntimeError(f"events of the partitions {partition} and {others} came to one task")
            for event in events:
                if last is not None and event.sequence_number == last.sequence_number:
                    _refuse_another(last, event)
                last = event
                if ahead is None or event.enqueued_at > ahead.enqueued_at:
                    ahead = event
                _refuse_step_back(ahead, event)
            yield events
            batch = await loop.run_in_executor(reader, next, rest, None)


def _refuse_another(one: Event, other: Event) -> None:
    """Raises RuntimeError for two events of one number, of which the second would pass for a copy. Of the same event the files of
    other formats have the time in whole seconds.
    """
    if one.offset != other.offset and abs(other.enqueued_at - one.enqueued_at) > 1.0:
        times = sorted(map(_at, (one, other)))
        raise RuntimeError(
            f"partition {one.place}: two events have the number {one.sequence_number}, enqueued at {times[0]} and {times[1]}{_TWO_HUBS}"
        )


def _refuse_step_back(ahead: Event, event: Event) -> None:
    """Raises RuntimeError where times go back and numbers go on."""
    if event.enqueued_at < ahead.enqueued_at - STEP_BACK / 1e6:
        raise RuntimeError(
            f"partition {event.place}: event {event.sequence_number} came at {_at(event)}, and {ahead.sequence_number}, before it, at"
            f" {_at(ahead)}{_TWO_HUBS}"
        )


def _at(event: Event) -> str:
    return datetime.fromtimestamp(event.enqueued_at, UTC).isoformat()


def events_of(batch: pa.RecordBatch) -> list[Event]:
    """REPLAYED rows as the consumer would have received them. A capture has no body where the message had none."""
    columns = [batch.column(name).to_pylist() for name in batch.schema.names]
    rows = (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))
    return [
        Event(
            split_place(row["partition"])[0],
            row["sequence_number"],
            row["offset"] or "",
            row["enqueued_us"] / 1_000_000,
            row["body"] or b"",
            row["partition_key"],
            dict(row["properties"]) if row["properties"] else _NO_PROPERTIES,
            "the capture file has no body for it" if row["body"] is None else None,
            split_place(row["partition"])[1],
        )
        for row in rows
    ]
