"""The options of the sinks to Delta tables and Parquet files."""

from __future__ import annotations

from msgspec import Struct

from consumer.options import BatchLimits
from consumer.sinks.lake.columns import parse_schema
from consumer.sinks.lake.delta import DeltaSink
from consumer.sinks.lake.storage import storage_options
from consumer.sinks.types import SinkContext, SinkType
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import SettingsError


class DeltaOptions(Struct, frozen=True):
    """The table that gets a row of each document."""

    uri: str
    """`az://container/folder`, `abfss://container@account.dfs.core.windows.net/folder`, or a local folder."""
    connection: str = "AzureWebJobsStorage"
    """The name of the setting with the connection string of the storage account, or of its identity settings."""
    columns: dict[str, str] = {}
    """The columns that are written, each with its type, such as `long`, `string not null` or `decimal(10,2)`. Without any, all
    columns of the table."""
    sources: dict[str, str] = {}
    """Where a column gets its value from if that is not the document's field of its name: `$.flight.number`, `@sequence_number`."""
    create: bool = False
    """Whether a missing table is created; needs `columns`. The container must exist."""
    partition_by: tuple[str, ...] = ()
    """The columns that a created table is partitioned by. Each of their values has a file of its own in each commit."""
    commit_every: str | float = 10.0
    """Seconds, or a duration such as 30s, that rows of a partition wait for a commit. Each commit writes a file or more."""
    commit_rows: int = 50_000
    """A commit has at most so many rows."""


COMMIT_BYTES = 64 * 1024 * 1024
"""A commit has at most so many bytes of rows. Chosen: a few of them fit beside each other into a small container."""


def batches_of(commit_every: str | float, commit_rows: int) -> BatchLimits:
    """The limits of the batches that become one commit each. Raises SettingsError."""
    try:
        seconds = parse_duration(commit_every) if isinstance(commit_every, str) else float(commit_every)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise SettingsError(
            f"commit_every is {commit_every!r}; accepted: seconds above 0, or a duration such as 30s"
        )
    if commit_rows < 1:
        raise SettingsError(f"commit_rows is {commit_rows}; accepted: a whole number from 1")
    return BatchLimits(operations=commit_rows, bytes=COMMIT_BYTES, flush_after=seconds)


def _build_delta(options: DeltaOptions, context: SinkContext) -> DeltaSink:
    if options.create and not options.columns:
        raise SettingsError(f"the sink {context.name}: create needs columns, from which the table is made")
    if unknown := [name for name in options.partition_by if options.columns and name not in options.columns]:
        raise SettingsError(
            f"the sink {context.name}: partition_by names {', '.join(unknown)}, which is no column"
        )
    return DeltaSink(
        options.uri,
        storage_options(options.uri, context.settings, options.connection),
        context.stream,
        batches=batches_of(options.commit_every, options.commit_rows),
        columns=parse_schema(options.columns) if options.columns else None,
        sources=options.sources,
        partition_by=options.partition_by,
        create=options.create,
    )


DELTA = SinkType("delta", DeltaOptions, _build_delta)
