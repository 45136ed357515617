"""Appends to a Delta table, exactly once, by the application transactions of its log.

The mark of a partition is the version of an application transaction, whose id names hub, consumer group and partition. A commit
has rows and mark. The library refuses a commit if another one with the id came after the snapshot that it begins with; that the
version rises is checked here, because the library does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from consumer.model import NOTHING_SETTLED, Claim, Event, Record, Routes, Stream, Write
from consumer.options import BatchLimits
from consumer.sinks.appending import AppendingSink, MovedError, RefusedError
from consumer.sinks.lake.columns import RowMapper, parse_schema
from consumer.sinks.lake.options import DeltaOptions, batches_of
from consumer.sinks.lake.rows import APPENDING, identity_of, identity_of_event, prepare_row
from consumer.sinks.lake.storage import storage_options
from consumer.sinks.types import SinkContext, SinkType
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.sql.threads import Threads

_T = TypeVar("_T")

THREADS = 8
"""Tables that are read or written at once. Chosen, as for SQL: a commit mostly waits for the storage."""
OPEN_WITHIN = 60.0
"""Seconds for the table to be read at the start. Chosen: the timeout of a call of the consumer."""
_DELETION_VECTORS = "deletionVectors"
_COLUMN_MAPPING = "delta.columnMapping.mode"
_FAILED_CHECK = "failed validation check"
"""Of the text of deltalake 1.6 for rows that a CHECK constraint or an invariant of the table refuses; it has no error of its own."""


class DeltaSink(AppendingSink):
    """Rows of one table."""

    def __init__(
        self,
        uri: str,
        storage: dict[str, str],
        stream: Stream,
        *,
        name: str,
        batches: BatchLimits,
        columns: pa.Schema | None = None,
        sources: dict[str, str] | None = None,
        partition_by: Sequence[str] = (),
        create: bool = False,
        dry_run: bool = False,
    ) -> None:
        """`name` is that of the sink, which its marks have. `columns` are those that are written, and those of a table that is created. None: all columns of the table."""
        super().__init__(batches)
        self._uri = uri
        self._storage = storage
        self._stream = stream
        self._name = name
        self._columns = columns
        self._sources = sources or {}
        self._partition_by = list(partition_by)
        self._create = create
        self._dry_run = dry_run
        self._threads = Threads(THREADS, "delta")
        self._mapper: RowMapper | None = None

    def __repr__(self) -> str:
        return f"DeltaSink({self._uri!r})"

    async def open(self) -> Routes:
        try:
            async with asyncio.timeout(OPEN_WITHIN):
                table = await self._call(self._open_table)
        except TimeoutError:
            raise UnavailableError(f"{self!r} has not answered within {OPEN_WITHIN:g} s") from None
        except TidemarkError:
            raise
        except Exception as error:
            raise UnavailableError(f"{self!r} cannot be read: {_first_line(error)}") from error
        columns = self._columns if table is None else self._written_columns(table)
        self._mapper = RowMapper(columns, self._sources, self._stream.topic)
        return await self.routes()

    def _open_table(self) -> DeltaTable | None:
        """None in a dry run before the table is created. Raises SettingsError."""
        try:
            table = self._read_table()
        except TableNotFoundError as error:
            if not self._create or self._columns is None:
                raise SettingsError(
                    f"there is no Delta table at {self._uri} ({_first_line(error)}); create it, or set create = true with columns"
                ) from error
            if self._dry_run:
                return None
            table = self._create_table(self._columns)
        refuse_unsafe(table, self._uri)
        partition_columns = list(table.metadata().partition_columns)
        if self._partition_by and partition_columns != self._partition_by:
            raise SettingsError(
                f"the Delta table at {self._uri} is partitioned by {partition_columns}, and partition_by is {self._partition_by};"
                " leave partition_by out to write to the table as it is"
            )
        return table

    def _read_table(self) -> DeltaTable:
        return DeltaTable(self._uri, storage_options=self._storage)

    def _create_table(self, columns: pa.Schema) -> DeltaTable:
        try:
            return DeltaTable.create(
                self._uri,
                Schema.from_arrow(columns),
                mode="error",
                partition_by=self._partition_by,
                storage_options=self._storage,
            )
        except Exception:  # another consumer may have created it at the same moment
            return self._read_table()

    def _written_columns(self, table: DeltaTable) -> pa.Schema:
        """The columns that get values. Raises SettingsError if the table cannot take them."""
        present = pa.schema(table.schema().to_arrow())
        wanted = present if self._columns is None else self._columns
        for column in wanted:
            index = present.get_field_index(column.name)
            if index < 0 or present.field(index).type != column.type:
                has = present.field(index).type if index >= 0 else "no such column"
                raise SettingsError(
                    f"column '{column.name}' is {column.type} in the settings, and {has} in the Delta table at {self._uri}"
                )
        missing = [
            column.name for column in present if not column.nullable and column.name not in wanted.names
        ]
        if missing:
            raise SettingsError(
                f"the Delta table at {self._uri} has columns that take no null and get no value: {', '.join(missing)}"
            )
        return pa.schema([present.field(name) for name in wanted.names])

    async def ask(self) -> None:
        await self._call(self._read_table)

    def prepare(self, write: Write) -> Record:
        assert self._mapper is not None, "the sink is not open"
        return prepare_row(self._mapper, write)

    async def load(self, claim: Claim) -> DeltaLog:
        return await self._load(identity_of(self._stream, self._name, claim))

    async def load_event(self, event: Event, part: str = "") -> DeltaLog:
        return await self._load(identity_of_event(self._stream, self._name, event, part))

    async def _load(self, application: str) -> DeltaLog:
        assert self._mapper is not None, "the sink is not open"
        mapper, threads = self._mapper, self._threads
        return await self._call(lambda: DeltaLog(self._read_table(), application, mapper, threads))

    async def aclose(self) -> None:
        await super().aclose()
        self._threads.shutdown()

    async def _call(self, work: Callable[[], _T]) -> _T:
        return await asyncio.wrap_future(self._threads.submit(work))


class DeltaLog:
    """An AppendLog: one table object, which is kept for a claim. Made in a thread: it asks the storage for its mark."""

    def __init__(self, table: DeltaTable, application: str, mapper: RowMapper, threads: Threads) -> None:
        self._table = table
        self._id = table.metadata().id
        self._application = application
        self._mapper = mapper
        self._threads = threads
        self.mark = self._stored_mark()

    def _stored_mark(self) -> int:
        version = self._table.transaction_version(self._application)
        return NOTHING_SETTLED if version is None else version

    async def append(self, records: Sequence[Record], last: int) -> None:
        await asyncio.wrap_future(self._threads.submit(self._commit, records, last))

    def _commit(self, records: Sequence[Record], last: int) -> None:
        """Runs in a thread. Raises MovedError, and any other error of deltalake and its storage."""
        table = self._table
        table.update_incremental()  # raises if the log is gone or ends before
        if table.metadata().id != self._id or self._stored_mark() != self.mark:
            raise MovedError
        refuse_unsafe(table, table.table_uri)
        columns = pa.schema(table.schema().to_arrow())
        _refuse_changed(columns, self._mapper.schema, table.table_uri)
        properties = CommitProperties(app_transactions=[Transaction(self._application, last)])
        batch = _with_all_columns(_batch(self._mapper, records), columns)
        try:
            write_deltalake(table, batch, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            raise MovedError from error
        except DeltaError as error:
            if _FAILED_CHECK in str(error):  # a constraint of the table
                raise RefusedError(sanitize_line(str(error))) from error
            raise
        self.mark = last


def refuse_unsafe(table: DeltaTable, uri: str) -> None:
    """Raises SettingsError for tables that deltalake may damage.

    With deletion vectors, compaction by delta-rs lost rows or brought deleted ones back, up to releases of September 2026 (delta-rs
    PR 4692). With column mapping, deltalake 1.6 writes and says nothing; whether under the right names is not tried.
    """
    protocol = table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if _DELETION_VECTORS in features:
        raise SettingsError(
            f"the Delta table at {uri} has deletion vectors, which this sink refuses. Write to a table without them: in Spark,"
            " ALTER TABLE ... DROP FEATURE deletionVectors removes them, which rewrites files and the history"
        )
    if table.metadata().configuration.get(_COLUMN_MAPPING, "none") != "none":
        raise SettingsError(
            f"the Delta table at {uri} has column mapping ({_COLUMN_MAPPING}), which this sink refuses. Write to a table without it"
        )


def _refuse_changed(present: pa.Schema, written: pa.Schema, uri: str) -> None:
    """Raises UnavailableError where a column was removed or changed since the start: without it its values would be left out, and
    deltalake casts what has another type. A column that was added is null if it may be.
    """
    changed = [column.name for column in written if not _takes(present, column)]
    changed += [column.name for column in present if not column.nullable and column.name not in written.names]
    if changed:
        raise UnavailableError(
            f"the Delta table at {uri} has other columns than when the consumer started ({', '.join(changed)}): restart it, so that"
            " rows are made for them, or put them back"
        )


def _takes(present: pa.Schema, column: pa.Field) -> bool:
    """Whether a table takes the values of a column as they are."""
    index = present.get_field_index(column.name)
    if index < 0 or present.field(index).type != column.type:
        return False
    return bool(present.field(index).nullable or not column.nullable)


def _batch(mapper: RowMapper, records: Sequence[Record]) -> pa.RecordBatch:
    """Raises RefusedError for a value that Arrow does not take, which no value should be that has a row."""
    try:
        return mapper.batch(records)
    except pa.ArrowException as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error


def _with_all_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with null in the columns of the table that get no value; deltalake needs all of them."""
    arrays = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _first_line(error: Exception) -> str:
    """Errors of deltalake have several lines."""
    return str(error).partition("\n")[0]


def _build(options: DeltaOptions, context: SinkContext) -> DeltaSink:
    return DeltaSink(
        options.uri,
        storage_options(options.uri, context.settings, options.connection),
        context.stream,
        name=context.name,
        batches=batches_of(options.commit_every, options.commit_rows),
        columns=parse_schema(options.columns) if options.columns else None,
        sources=options.sources,
        partition_by=options.partition_by,
        create=options.create,
        dry_run=context.dry_run,
    )


DELTA = SinkType("delta", DeltaOptions, _build, APPENDING, (), ordered=True)
