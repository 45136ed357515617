"""Delta tables by the package deltalake, where Spark has no Delta Lake: what is committed are files that are written already.

A table is named by its URL: a folder of this machine, or az://container/path, which deltalake opens with the identity that
fsspec has. pyarrow's datasets are not used to read: their threads may abort Python when it ends (pyarrow 26, deltalake 1.6.6).
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyarrow import dataset, parquet

from spark_jobs.tables.file_systems import deltas_store, file_system
from spark_jobs.tables.runs import (
    APPLICATION,
    COLUMNS,
    COMMITS_SEARCHED,
    DAY,
    KEPT_RUNS,
    RUNS,
    Run,
    changes_rows,
)
from tidemark.analysis.errors import InputError, JobError

_COLOURS = re.compile(r"\x1b\[\d*m|↳")
UNFINISHED_HOURS = 24
"""Hours for which files are kept that no version names: a run that is writing has some. Chosen: far longer than runs take."""
# Of the features a table may ask a reader for, those that change nothing for one who reads the files of the log.
_PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


class NewFile(NamedTuple):
    """A Parquet file that is to be part of a table: its path below the table's, and the day that all its rows are of."""

    path: str
    size: int
    rows: int
    day: str | None = None


def has_table(url: str) -> bool:
    """Raises JobError if that cannot be found out."""
    store, options = deltas_store(url)
    with _one_line(f"{url} cannot be looked at"):
        return DeltaTable.is_deltatable(store, options)


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Errors of deltalake and its stores, which are several lines in colours, as a JobError of one line."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise JobError(f"{what}: {' '.join(_COLOURS.sub('', str(error)).split())}") from error


def _opened(url: str, version: int | None = None) -> DeltaTable:
    """Raises InputError where there is no table, JobError where it cannot be opened."""
    store, options = deltas_store(url)
    with _one_line(f"{url} cannot be opened as a Delta table"):
        try:
            return DeltaTable(store, version=version, storage_options=options)
        except TableNotFoundError as error:
            raise InputError(f"{url} holds no finished delta table") from error


def commit(
    url: str,
    files: Sequence[NewFile],
    schema: str,
    key: str,
    *,
    by_day: bool = False,
    days: Collection[str] | None = None,
) -> int:
    """Makes the files the table, in place of all others or of those of the `days`; returns the version. `schema` is JSON as
    Spark's, which Delta has as well; `key` is the run's. Raises JobError where another run commits at the same time.
    """
    store, options = deltas_store(url)
    adds = [_added(new_file) for new_file in files]
    given = Schema.from_json(schema)
    by, properties = [DAY] if by_day else [], CommitProperties({"userMetadata": key})
    with _one_line(f"{url} cannot be committed; run the job again, and one at a time"):
        if days is not None:
            where = [(DAY, "in", sorted(days))]
            _opened(url).create_write_transaction(
                [*adds], "overwrite", given, by, where, commit_properties=properties
            )
        else:  # `create_write_transaction` would leave the partitioning as it is
            create_table_with_add_actions(
                store, given, adds, "overwrite", by, storage_options=options, commit_properties=properties
            )
    history = _opened(url).history(COMMITS_SEARCHED)
    return next(int(entry["version"]) for entry in history if entry.get("userMetadata") == key)


def _added(file: NewFile) -> AddAction:
    values = {} if file.day is None else {DAY: file.day}
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=values,
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def make_table(url: str, schema: Schema) -> None:
    """Makes the table, without a row; where there is one, it stays as it is."""
    store, options = deltas_store(url)
    with _one_line(f"{url} cannot be made"):
        create_table_with_add_actions(store, schema, [], "ignore", storage_options=options)


def newest_version(url: str) -> int | None:
    """Of the newest commit that may have changed rows; None where there is no table."""
    if not has_table(url):
        return None
    history = _opened(url).history(COMMITS_SEARCHED)
    return next((int(entry["version"]) for entry in history if changes_rows(entry["operation"])), None)


def live(url: str, version: int | None) -> tuple[str, list[str], list[str]]:
    """The schema of a version (the newest) as JSON, the names of the columns that it is partitioned by, which are in no file,
    and its files below the table's.

    Raises InputError where there is no table, JobError for tables that need more than their files.
    """
    table = _opened(url, version)
    protocol, metadata = table.protocol(), table.metadata()
    unknown = set(protocol.reader_features or ()) - _PLAIN_FEATURES
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        unknown.add("columnMapping")
    if unknown:
        raise JobError(
            f"{url} uses features of Delta Lake that need its jar in Spark (--packages io.delta:...): "
            f"{', '.join(sorted(unknown))}"
        )
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    return table.schema().to_json(), metadata.partition_columns, [unquote(path) for path in paths]


def vacuum(url: str, hours: int) -> None:
    """Removes the files that no version of the last so many hours names; those that none ever named after a day at least."""
    # A full vacuum also removes files that none ever named; a second one is of use only where it kept more than was asked for.
    ages = [(True, max(hours, UNFINISHED_HOURS)), (False, hours)]
    for full, age in ages if hours < UNFINISHED_HOURS else ages[:1]:
        remove = partial(_opened(url).vacuum, age, enforce_retention_duration=False, full=full)
        with _one_line(f"{url} cannot be vacuumed"):
            if remove(dry_run=True):  # else two commits would say that there was nothing to remove
                remove(dry_run=False)


# -- the table `runs`


def read_runs(folder: str) -> list[Run] | None:
    """The runs of the folder in their order; None where it holds no table `runs`."""
    url = f"{folder}/{RUNS}"
    if not has_table(url):
        return None
    system, root = file_system(url)
    _, _, paths = live(url, None)
    files = [parquet.ParquetFile(io.BytesIO(system.cat_file(f"{root}/{path}"))) for path in paths]
    rows = [row for file in files for row in file.read().to_pylist()]
    return sorted((Run.of(row) for row in rows), key=lambda run: run.run)


def make_runs(folder: str) -> None:
    """Makes the table `runs`, without a row, unless there is one."""
    make_table(f"{folder}/{RUNS}", Schema.from_arrow(COLUMNS))


def publish(folder: str, runs: Sequence[Run]) -> bool:
    """Makes these the runs of the folder, of which the last is new and the others were read when it began. False where another
    run of its number was published since.
    """
    url, new = f"{folder}/{RUNS}", runs[-1]
    system, root = file_system(url)
    table = pa.Table.from_pylist([run.row() for run in runs[-KEPT_RUNS:]], schema=COLUMNS)
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    path = f"r{new.run}-{new.key}.parquet"
    system.pipe_file(f"{root}/{path}", sink.getvalue())
    now = _opened(url)
    if (now.transaction_version(APPLICATION) or 0) >= new.run:
        return False
    # Of two transactions with an application's next number, that begin at the same version, Delta refuses the second.
    transaction = Transaction(APPLICATION, new.run)
    add = _added(NewFile(path, sink.tell(), table.num_rows))
    properties = CommitProperties({"userMetadata": new.key}, app_transactions=[transaction])
    with _one_line(f"{url} cannot be committed"):
        try:
            now.create_write_transaction(
                [add], "overwrite", Schema.from_arrow(COLUMNS), commit_properties=properties
            )
        except CommitFailedError:
            return False
    return True


def merge(folder: Path, rows: Path, keys: Sequence[str]) -> None:
    """Commits the rows of the Parquet files in `rows` into a table of this machine, batch by batch: those whose keys it has
    replace its own where they differ, others are added. Where none is new there is no commit.

    Raises JobError where they do not fit the table.
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
