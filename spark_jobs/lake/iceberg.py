"""Iceberg tables in folders of this machine, by the package pyiceberg: where Spark has no Iceberg runtime.

A table lies as Iceberg's own catalog of folders (type "hadoop") has it, so whoever knows the folder can open it: the table's
seventh state is `metadata/v7.metadata.json`, and `metadata/version-hint.text` says 7. A state gets its name when it is whole,
and a name that is taken is never given again. So a writer that is killed leaves the last state, and files that no state names.
"""

from __future__ import annotations

import os
import re
import secrets
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import dataset
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import AlwaysTrue, In
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, StaticTable, Table, Transaction
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from pyiceberg.transforms import IdentityTransform

from spark_jobs.errors import InputError, JobError

_STATE = re.compile(r"v(\d+)\.metadata\.json")
_HINT = "version-hint.text"

_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Of new tables: a state lists all snapshots, and there is one a run. So as many as the manifest lists runs."""

_CHUNK = 128 << 20
"""Bytes of rows that are held in memory, about, and become a file in each partition they are of."""


def replace(folder: Path, rows: Path, partition_by: Sequence[str], only: Collection[str] | None) -> None:
    """As `delta.replace`: one commit, of a column to partition by at most."""
    data = dataset.dataset(rows, format="parquet")
    schema = pa.schema([pa.field(field.name, field.type) for field in data.schema])  # nothing is required
    table = _table(folder) or _Folder(folder).new_table(schema, partition_by)
    change = table.transaction()
    if table.metadata.snapshots:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Delete operation did not match any records")
            change.delete(AlwaysTrue() if only is None else In(partition_by[0], set(only)))  # type: ignore[call-arg, arg-type]  # of pydantic
        _take_columns(change, schema, partition_by)
    for chunk in _chunks(data, schema):
        change.append(chunk)
    change.commit_transaction()


def newest(folder: Path) -> int:
    """The newest snapshot."""
    snapshot = _existing(folder).current_snapshot()
    assert snapshot is not None  # noqa: S101 - `replace` always makes one
    return snapshot.snapshot_id


def live(folder: Path, version: int | None) -> tuple[pa.Schema, list[str]]:
    """The columns and the files of a snapshot (the newest).

    Raises InputError where there is no table or no such snapshot, JobError where files alone do not tell which rows live.
    """
    table = _existing(folder)
    snapshot = table.current_snapshot() if version is None else table.snapshot_by_id(version)
    if snapshot is None:
        raise InputError(f"{folder}: the iceberg table has no snapshot {version or ''}; was it expired?")
    tasks = list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
    if any(task.delete_files for task in tasks):
        raise JobError(
            f"{folder} has rows that were deleted without rewriting their files: it needs Iceberg's runtime in Spark "
            "(--packages org.apache.iceberg:...)"
        )
    columns = table.schemas().get(-1 if snapshot.schema_id is None else snapshot.schema_id, table.schema())
    # file:/a of Spark's, file:///a of pyiceberg's
    files = ["/" + task.file.file_path.removeprefix("file:").lstrip("/") for task in tasks]
    return schema_to_pyarrow(columns, include_field_ids=False), files


# -- the columns


def _take_columns(change: Transaction, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Makes the columns those of `schema`, where they are not: all of them anew, but for that of the partitions."""
    old = change.table_metadata.schema()
    try:
        if pyarrow_to_schema(schema, name_mapping=old.name_mapping).fields == old.fields:
            return
    except ValueError:
        pass  # a column that the table has not
    with change.update_schema(allow_incompatible_changes=True) as update:
        for field in old.fields:
            if field.name not in partition_by:
                update.delete_column(field.name)
        for field in _columns(schema).fields:
            if field.name not in partition_by:
                update.add_column(field.name, field.field_type)


def _columns(schema: pa.Schema) -> Schema:
    return assign_fresh_schema_ids(NoopCatalog._convert_schema_if_needed(schema))  # noqa: SLF001 - what create_table does


def _chunks(data: Any, schema: pa.Schema) -> Iterator[pa.Table]:
    """One at least: an empty table has a snapshot, too."""
    held: list[pa.RecordBatch] = []
    size, none = 0, True
    for batch in data.to_batches():
        held.append(batch)
        size += batch.nbytes
        if size >= _CHUNK:
            yield pa.Table.from_batches(held).cast(schema)
            held, size, none = [], 0, False
    if held or none:
        yield pa.Table.from_batches(held, data.schema).cast(schema)


# -- the folder


class _Folder(NoopCatalog):
    """What Iceberg calls a catalog: it says which state of its one table is the newest."""

    def __init__(self, folder: Path) -> None:
        super().__init__("folder")
        self._states = folder / "metadata"
        self._folder = folder

    def new_table(self, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
        """A table without a state."""
        columns = _columns(schema)
        fields = [
            PartitionField(columns.find_field(name).field_id, number, IdentityTransform(), name)
            for number, name in enumerate(partition_by, 1000)  # Iceberg's first number
        ]
        metadata = new_table_metadata(
            columns, PartitionSpec(*fields), UNSORTED_SORT_ORDER, self._location, dict(_PROPERTIES)
        )
        io = self._load_file_io(location=self._location)
        return Table((self._folder.name,), metadata, self._state(0), io, self)

    @property
    def _location(self) -> str:
        return f"file://{self._folder}"

    def _state(self, number: int) -> str:
        return f"{self._location}/metadata/v{number}.metadata.json"

    def newest(self) -> Table | None:
        """As its newest state has it. Not by the hint, which a writer may have been killed before."""
        names = [path.name for path in self._states.glob("v*")]
        number = max((int(found[1]) for found in map(_STATE.fullmatch, names) if found), default=0)
        if not number:
            return None
        read = StaticTable.from_metadata(self._state(number))
        return Table((self._folder.name,), read.metadata, read.metadata_location, read.io, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Writes the state after the table's. Raises JobError where somebody else has written it."""
        for requirement in requirements:
            requirement.validate(table.metadata)
        before = int(Path(table.metadata_location).name.partition(".")[0][1:])
        old = table.metadata_location if before else None
        metadata = update_table_metadata(table.metadata, updates, metadata_location=old)
        state = self._state(before + 1)
        half = self._states / f".{secrets.token_hex(8)}.metadata.json"
        ToOutputFile.table_metadata(metadata, table.io.new_output(f"file://{half}"))
        if not _named(half, self._states / Path(state).name):
            raise JobError(
                f"another run wrote to {self._folder} at the same time; run the job again, and one at a time"
            )
        half.unlink(missing_ok=True)  # or else the next line would write into the state
        half.write_text(str(before + 1))
        half.replace(self._states / _HINT)
        return CommitTableResponse(metadata=metadata, metadata_location=state)  # type: ignore[call-arg]  # of pydantic


def _named(half: Path, name: Path) -> bool:
    """Gives the file its name; False where that is taken. `half` is there or not."""
    try:
        os.link(half, name)
    except FileExistsError:
        return False
    except OSError:  # a file system without links, as network shares: two writers at once go unnoticed there
        if name.exists():
            return False
        half.replace(name)
    return True


def _table(folder: Path) -> Table | None:
    """Raises InputError for a folder that no URL names."""
    if "#" in str(folder):
        raise InputError(
            f"'{folder}': an iceberg table's folder is named by a URL; accepted: a name without #"
        )
    return _Folder(folder).newest()


def _existing(folder: Path) -> Table:
    table = _table(folder)
    if table is None:
        raise InputError(f"{folder} holds no finished iceberg table")
    return table
