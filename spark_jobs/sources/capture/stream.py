"""Capture files as a stream; its offsets are those of `offsets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from spark_jobs.sources.capture.layout import CaptureLayout
from spark_jobs.sources.capture.offsets import Offset, check, files_between, latest_offset
from spark_jobs.sources.capture.settings import CaptureSettings
from spark_jobs.sources.capture.task import batches_of


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self._layout = CaptureLayout(settings.layout)
        self._ceiling: frozenset[str] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's interface
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's interface
        limit = self._settings.max_files
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's interface
        self._ceiling = frozenset(file.name for file in self._settings.files())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's interface
        check(start)
        return latest_offset(
            start,
            self._settings.files(),
            limit=limit.max_files if isinstance(limit, ReadMaxFiles) else None,
            ceiling=self._ceiling,
            layout=self._layout,
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self._settings.tasks(files_between(start, end, self._settings.files(), layout=self._layout))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(self._settings, partition)
