"""Delta tables in folders of this machine, by the package deltalake: where Spark has no Delta Lake."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import dataset

from tidemark.analysis.errors import InputError, JobError

# Of the features a table may ask a reader for, those that change nothing for one who reads the files of the log.
_PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


def replace(folder: Path, rows: Path, partition_by: Sequence[str], only: Collection[str] | None) -> None:
    """Commits the rows of the Parquet files in `rows` as the table, in place of all rows or, with `only`, of those with
    these values of the first column of `partition_by`. Batch by batch: the rows need not fit this process's memory.
    """
    where = None
    if only is not None and DeltaTable.is_deltatable(str(folder)):
        where = f"{partition_by[0]} IN ({', '.join(repr(each) for each in sorted(only))})"
    write_deltalake(
        folder,
        dataset.dataset(rows, format="parquet").scanner().to_reader(),
        mode="overwrite",
        partition_by=list(partition_by) or None,
        schema_mode=None if where else "overwrite",
        predicate=where,
    )


def make(folder: Path, rows: Path) -> None:
    """Commits the rows of the Parquet files in `rows` as a new table; where there is one, it stays as it is."""
    try:
        write_deltalake(folder, dataset.dataset(rows, format="parquet").scanner().to_reader(), mode="ignore")
    except DeltaError:
        if not DeltaTable.is_deltatable(str(folder)):  # nobody else made it meanwhile
            raise


def merge(folder: Path, rows: Path, keys: Sequence[str]) -> None:
    """Commits the rows of the Parquet files in `rows` into the table: those whose keys it has replace its own where they
    differ, others are added; where none is new there is no commit. Raises JobError where they do not fit the table.
    """
    data = dataset.dataset(rows, format="parquet")
    names = data.schema.names
    values = {name: f's."{name}"' for name in names}
    differ = " OR ".join(f'(t."{name}" IS DISTINCT FROM s."{name}")' for name in names)
    try:
        (
            DeltaTable(folder)
            .merge(
                data.scanner().to_reader(),
                " AND ".join(f'(t."{key}" IS NOT DISTINCT FROM s."{key}")' for key in keys),
                source_alias="s",
                target_alias="t",
            )
            .when_matched_update(values, predicate=differ)
            .when_not_matched_insert(values)
            .execute()
        )
    except DeltaError as error:
        raise JobError(f"the rows cannot be merged into {folder}: {error}") from error


def newest(folder: Path) -> int:
    """The newest version."""
    return int(DeltaTable(folder).version())


def live(folder: Path, version: int | None) -> tuple[pa.Schema, list[str]]:
    """The columns and the files of a version (the newest); Spark finds a partition's column in the names of their folders.

    Raises InputError where there is no table, JobError for what files alone do not tell.
    """
    try:
        table = DeltaTable(folder, version=version)
    except TableNotFoundError as error:
        raise InputError(f"{folder} holds no finished delta table") from error
    protocol, settings = table.protocol(), table.metadata().configuration
    unknown = set(protocol.reader_features or ()) - _PLAIN_FEATURES
    if settings.get("delta.columnMapping.mode", "none") != "none":
        unknown.add("columnMapping")
    if unknown:
        raise JobError(
            f"{folder} uses features of Delta Lake that need its jar in Spark (--packages io.delta:...): "
            f"{', '.join(sorted(unknown))}"
        )
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    # From the log, since a partition's column is in no file: its type, too, would be a guess.
    return pa.schema(table.schema().to_arrow()), [
        f"{folder}/{unquote(path)}" for path in paths
    ]  # the log quotes
