"""The options of the sink to Delta tables, and those that the sink to Parquet files shares."""

from __future__ import annotations

from msgspec import Struct

from consumer.mapping.sources import check_sources
from consumer.options import BatchLimits
from consumer.sinks.lake.columns import parse_schema
from consumer.sinks.lake.storage import check_uri
from consumer.sinks.types import refuse
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

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        unknown = [name for name in self.partition_by if self.columns and name not in self.columns]
        refuse(
            [
                *(
                    ["create needs columns, from which the table is made"]
                    if self.create and not self.columns
                    else []
                ),
                *([f"partition_by names {', '.join(unknown)}, which is no column"] if unknown else []),
            ],
            lambda: check_uri(self.uri),
            lambda: parse_schema(self.columns),
            lambda: check_sources(self.sources),
            lambda: batches_of(self.commit_every, self.commit_rows),
        )


class ParquetOptions(Struct, frozen=True):
    """The folder that gets a file for the documents of each commit."""

    container: str
    columns: dict[str, str]
    """The columns of the files, each with its type, such as `long`, `string not null` or `decimal(10,2)`."""
    folder: str = ""
    """The folder in the container, such as `lake/flights`; '' means the container itself."""
    connection: str = "AzureWebJobsStorage"
    """The name of the setting with the connection string of the storage account, or of its identity settings."""
    sources: dict[str, str] = {}
    """As for Delta tables."""
    create: bool = False
    """Whether a missing container is created."""
    commit_every: str | float = 60.0
    """Seconds, or a duration such as 5m, that rows of a partition wait for their file."""
    commit_rows: int = 50_000
    """A file has at most so many rows."""

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        refuse(
            [] if self.columns else ["columns is empty; a Parquet file has at least one"],
            lambda: parse_schema(self.columns),
            lambda: check_sources(self.sources),
            lambda: batches_of(self.commit_every, self.commit_rows),
        )


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
