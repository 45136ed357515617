"""What the Python data sources have in common: a name, a schema, tasks, and a function that reads one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.task_errors import failing_without_secrets, fails_without_secrets

_Item = TypeVar("_Item")


def stepped(items: AsyncGenerator[_Item]) -> Iterator[_Item]:
    """What a task gets asynchronously, one by one, in a loop of its own; closed at the end, also where it is left early."""
    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    item = runner.run(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            runner.run(items.aclose())


class Source(DataSource):
    """A source of one schema. Subclasses make its reader."""

    NAME: ClassVar[str]
    SCHEMA: ClassVar[StructType]

    @classmethod
    def name(cls) -> str:
        return cls.NAME

    def schema(self) -> StructType:
        return self.SCHEMA


@dataclass(frozen=True)
class TaskReader(DataSourceReader):
    """A task is what can be pickled, but not None: that is Spark's stand-in where there is nothing to read."""

    tasks: Callable[[], Sequence[Any]]
    read_task: Callable[[Any], Iterator[pa.RecordBatch]]

    def partitions(self) -> Sequence[InputPartition]:
        with failing_without_secrets():
            return [InputPartition(task) for task in self.tasks()]

    @fails_without_secrets
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            yield from self.read_task(partition.value)
