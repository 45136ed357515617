"""A live event hub as a stream. An offset is {"created": when the hub was, "positions": the next event by partition}."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from consumer.model import PartitionState
from spark_jobs.errors import InputError
from spark_jobs.sources.event_hubs.positions import (
    EARLIEST,
    Positions,
    begin_of,
    bounded,
    end_of,
    ranges,
    resolved,
)
from spark_jobs.sources.event_hubs.settings import HubSettings
from spark_jobs.sources.event_hubs.task import batches_of

Offset = dict[str, Any]


class EventHubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Partitions that are added later are read from their first event."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings
        self._ceiling: Positions | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's interface
        created, states = self._settings.look()
        start = resolved(self._settings.start, states, EARLIEST, "startingPosition")
        return {"created": created, "positions": start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's interface
        limit = self._settings.max_events
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's interface
        _, states = self._settings.look()
        self._ceiling = {partition: end_of(state) for partition, state in states.items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's interface
        states = self._look(start)
        before = self._before(start, states)
        latest = {partition: end_of(state) for partition, state in states.items()}
        if self._ceiling is not None:
            latest = {partition: min(latest[partition], end) for partition, end in self._ceiling.items()}
            before = {partition: position for partition, position in before.items() if partition in latest}
        bound = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = bounded(before, latest, bound)
        return {"created": start["created"], "positions": {**start["positions"], **end}}

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's interface
        created, states = self._settings.look()
        return {"created": created, "positions": {name: end_of(state) for name, state in states.items()}}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        states = self._look(start)
        wanted = ranges(self._before(start, states), end["positions"])
        return self._settings.checked(wanted, states)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(self._settings, partition)

    def _look(self, start: Offset) -> dict[str, PartitionState]:
        """Raises InputError where the hub is not the one that the checkpoint is about."""
        created, states = self._settings.look()
        if created != start["created"]:
            raise InputError(
                f"event hub '{self._settings.hub}' was created anew since the stream's checkpoint was written: its"
                " positions are those of another hub. Begin with a new checkpoint"
            )
        for partition, position in start["positions"].items():
            if partition in states and end_of(states[partition]) < position:
                raise InputError(
                    f"event hub '{self._settings.hub}', partition {partition}: the stream has come to event"
                    f" {position}, the hub only to {end_of(states[partition])}. Begin with a new checkpoint"
                )
        return states

    @staticmethod
    def _before(start: Offset, states: Mapping[str, PartitionState]) -> Positions:
        return {name: start["positions"].get(name, begin_of(state)) for name, state in states.items()}
