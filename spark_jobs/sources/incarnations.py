"""Which events are of a hub that was created anew: their keys carry when (consumer.model.Origin), so their partitions do here.

Events of two hubs of one name have the same numbers; capture files keep both. A checkpoint says since when its partition is
of the present hub. Capture files have whole seconds: an event of the second in which a hub was created is of that hub, for a hub is
not deleted and made anew within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from consumer.config import ConsumerConfig
from consumer.leasing.start_position import identity_of
from consumer.model import Checkpoint
from consumer.running.assembly import Parts
from tidemark.analysis.errors import InputError, job_errors

_PATIENCE = 60.0  # seconds for all checkpoints

_CLOCKS = 5.0  # seconds between the service's clocks, that of a hub's creation and those of its events

Newer = Mapping[str, int]
"""By partition: when the hub of its newer events was created, milliseconds since 1970."""


def newer_hubs(checkpoints: Mapping[str, Checkpoint | str]) -> Newer:
    """Of the partitions whose hub needs it in keys."""
    return {
        partition: checkpoint.origin.hub
        for partition, checkpoint in checkpoints.items()
        if isinstance(checkpoint, Checkpoint) and checkpoint.origin.incarnation
    }


def load_checkpoints(config: ConsumerConfig, settings: Mapping[str, str]) -> Mapping[str, Checkpoint | str]:
    """All checkpoints of the consumer, by partition; in place of one that cannot be read, why. Raises JobError for a store
    that does not answer.
    """

    async def load() -> Mapping[str, Checkpoint | str]:
        store = Parts(config, settings).checkpoints()
        async with aclosing(store):
            return await store.load_all(deadline=asyncio.get_running_loop().time() + _PATIENCE)

    with job_errors():
        return asyncio.run(load())


def place_in(partition: str, newer: Newer) -> str:
    """A partition of the present hub, as keys have it."""
    return f"{partition}@{newer[partition]}" if partition in newer else partition


def refuse_former(
    earliest: Mapping[str, datetime | None], checkpoints: Mapping[str, Checkpoint | str]
) -> None:
    """Raises InputError for events, by partition the `earliest` one, of a hub before the one of the checkpoints, where keys of both are
    plain: then nothing says whose a document or a position is.
    """
    for partition, checkpoint in sorted(checkpoints.items()):
        at = earliest.get(partition)
        if at is None or not isinstance(checkpoint, Checkpoint) or checkpoint.origin.incarnation:
            continue
        created = checkpoint.origin.hub
        if created and at.timestamp() + _CLOCKS < created / 1000:
            raise InputError(
                f"partition {partition}: events from {at.isoformat()} on came before the hub of the checkpoints was created, at"
                f" {utc_text(created)}. They are of a hub of the same name that was deleted, and keys of both are alike: what is"
                f" written of it cannot be known; accepted: --from {utc_text(created)}"
            )


def refuse_other_hub(created_at: float, checkpoints: Mapping[str, Checkpoint | str]) -> None:
    """Raises InputError where a hub is read that is not the one of the checkpoints, by the service's time of its creation; 0: unknown."""
    present = identity_of(created_at)
    for partition, checkpoint in sorted(checkpoints.items()):
        hub = checkpoint.origin.hub if isinstance(checkpoint, Checkpoint) else 0
        if present and hub not in {0, present}:
            raise InputError(
                f"the checkpoint of partition {partition} is of another hub of this name: that hub was created at {utc_text(hub)},"
                f" the one that is read at {utc_text(present)}. What is written of its events cannot be known before the consumer has"
                " begun in it (CONSUMER_ON_FOREIGN_CHECKPOINT, 'tidemark checkpoints set')"
            )


def utc_text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def with_places(events: DataFrame, newer: Newer) -> DataFrame:
    """EVENTS with their partitions as keys have them."""
    place = F.col("partition")
    for partition, created in sorted(newer.items()):
        is_newer = (F.col("partition") == partition) & (F.unix_seconds("enqueued_at") >= created // 1000)
        place = F.when(is_newer, F.lit(place_in(partition, newer))).otherwise(place)
    return events.withColumn("partition", place) if newer else events


def placed(batch: pa.RecordBatch, newer: Newer) -> pa.RecordBatch:
    """As `with_places`, for a batch."""
    if not newer:
        return batch
    at, place = batch["enqueued_at"], batch["partition"].cast(pa.string())
    for partition, created in sorted(newer.items()):
        since = pa.scalar(datetime.fromtimestamp(created // 1000, UTC), at.type)
        is_newer = pc.and_(pc.equal(place, partition), pc.greater_equal(at, since))
        place = pc.if_else(is_newer, place_in(partition, newer), place)
    columns = {name: place if name == "partition" else batch[name] for name in batch.schema.names}
    return pa.record_batch(columns)
