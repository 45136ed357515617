"""The targets of a transactional sink: a table whose columns come from the event, or a handler of the user.

The sources of columns are those of consumer/mapping/sources.py; a path that the body does not have is NULL. If no column has
`@incarnation`, a text column of `@partition` gets both (`0@1764165000123`), so that no row of the hub before is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa
from msgspec import UNSET, structs
from sqlalchemy import event as sa_event
from sqlalchemy.exc import NoSuchTableError

from consumer.mapping.documents import read_object
from consumer.mapping.paths import find
from consumer.mapping.sources import parse_source
from consumer.model import Event, Operation, Record, Rejection, Stream, Write
from consumer.sinks.sql.columns import coercer
from consumer.sinks.sql.failures import HandlerError
from consumer.sinks.sql.statements import Upsert, creation, deletion, parameters
from consumer.stores.sql.tables import EVENTS
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sql.database import JsonText, MissingTablesError, SqlDatabase
from tidemark.foundation.wording import count_text

_BOM = b"\xef\xbb\xbf"
_PARTITION = len("2047@")  # a hub has at most 2,048 partitions, in a dedicated cluster
_HANDLING = "tidemark.handling"
_NOT_YOURS = "a handler must not end the transaction: the sink commits rows and position together"

_json_text = msgspec.json.Encoder().encode
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode

Handler = Callable[[sa.Connection, Event], object]


class Target(Protocol):
    """All methods but `prepare` run in a thread of the database and may block."""

    operations: Collection[Operation]
    """What an event may ask for."""
    appends: bool
    """Whether a record that is written again may stand there twice."""
    is_repeatable: bool
    """Whether a record may be written again, in a transaction that is rolled back, to test whether it still can be."""

    def open(self, database: SqlDatabase, scope: Stream) -> None:
        """Raises SettingsError if the target can never work, SQLAlchemyError if it may work later."""
        ...

    def writes(self, column: str) -> bool:
        """False if the column certainly gets no value from any event."""
        ...

    def check(self, incarnation: str) -> None:
        """Raises SettingsError if events of a hub with that incarnation would replace those of the hub before it."""
        ...

    def prepare(self, write: Write, operation: Operation) -> bytes | Rejection:
        """The payload of the record, or why it can never be written. Never raises."""
        ...

    def write(self, connection: sa.Connection, records: Sequence[Record]) -> None:
        """Runs in the caller's transaction. May raise anything; the caller decides whose fault it is."""
        ...


class TableTarget:
    """Rows of one table. With a `key` an existing row is replaced, so that events received again change nothing; without a
    key every event is a new row. With a `guard`, a column, a row is only replaced or deleted by an event with a larger value
    of the column. Raises SettingsError for unknown sources.
    """

    is_repeatable = True

    def __init__(
        self,
        table: str,
        columns: Mapping[str, str],
        *,
        key: Sequence[str] = (),
        guard: str = "",
        create: sa.Table | None = None,
    ) -> None:
        if not columns:
            raise SettingsError(f"the target table '{table}' has no columns; expected at least one")
        _check_guard(table, columns, key, guard)
        self._guard = guard
        self.operations: Collection[Operation] = _OF_KEYS if key and create is None else {Operation.UPSERT}
        self._name = table
        self._sources = {name: parse_source(name, text) for name, text in columns.items()}
        self._paths = {name: path for name, path in self._sources.items() if not isinstance(path, str)}
        self._key = tuple(key)
        self.appends = not key
        self._create = create
        self._topic = ""

    def open(self, database: SqlDatabase, scope: Stream) -> None:
        self._topic = scope.topic
        table = self._create if self._is_missing(database) else self._reflect(database)
        assert table is not None
        self._coercers = {name: coercer(table.c[name].type) for name in self._sources}
        has_incarnation = "incarnation" in self._sources.values()
        self._with_incarnation = {
            name
            for name, source in self._sources.items()
            if source == "incarnation"
            or (source == "partition" and not has_incarnation and isinstance(table.c[name].type, sa.String))
        }
        self._lengths = {name: getattr(table.c[name].type, "length", None) for name in self._with_incarnation}
        self._is_json = {name: isinstance(table.c[name].type, sa.JSON) for name in self._sources}
        self._statement = Upsert(table, self._sources, self._key, database.dialect, self._guard)
        if self._key:
            self._others = {
                Operation.DELETE: deletion(table, self._key, self._guard),
                Operation.CREATE: creation(table, list(self._sources), self._key),
            }

    def prepare(self, write: Write, operation: Operation) -> bytes | Rejection:
        document = self._document(write, operation)
        if isinstance(document, Rejection):
            return document
        if write.index and self._is_keyed_by_position and "index" not in self._sources.values():
            return Rejection(
                "several",
                f"the event has several documents, and its position is the key of table '{self._name}': they would replace"
                " each other; add a column with the source @index to the key",
            )
        values = []
        needed = {*self._key, self._guard}
        for name, path in self._paths.items():
            value = find(document, path)
            values.append(None if value is UNSET else value)
            if operation is Operation.DELETE and name not in needed:
                continue
            if values[-1] is None and (
                name == self._guard or (operation is Operation.DELETE and name in needed)
            ):
                return Rejection(
                    "version" if name == self._guard else "value", f"column '{name}' gets no value"
                )
            try:
                self._coercers[name](values[-1])
            except (ValueError, TypeError, ArithmeticError, OSError) as error:
                return Rejection("value", f"column '{name}': {error}")
        if write.document is not None and "body" in self._sources.values():
            values.append(_json_text(document).decode())
        try:
            return _encode(values) if values else b""
        except OverflowError as error:
            return Rejection("number", f"a whole number is too large: {error}")

    def _document(self, write: Write, operation: Operation) -> dict[str, Any] | Rejection:
        """A delete by an empty body has what the event itself says: its partition key, for example."""
        if write.document is not None:
            return write.document
        is_empty = not write.event.body and write.event.unreadable is None
        return {} if is_empty and operation is Operation.DELETE else read_object(write.event)

    def writes(self, column: str) -> bool:
        return not column or column.lower() in {name.lower() for name in self._sources}

    def check(self, incarnation: str) -> None:
        if incarnation and self._is_keyed_by_position and not self._with_incarnation.intersection(self._key):
            raise SettingsError(
                f"the key of table '{self._name}' ({', '.join(self._key)}) has positions of events and no incarnation of the"
                " hub, which was created anew: its events would replace rows of the hub before it. Add a text column to"
                " the key, with the source @incarnation in CONSUMER_SQL_COLUMNS and '' in the rows that are there"
            )
        if incarnation and self._guard and self._sources[self._guard] == "sequence_number":
            raise SettingsError(
                f"the guard '{self._guard}' of table '{self._name}' has sequence numbers, which begin at 0 again in the hub that was"
                " created anew: all its events would count as older. Let the guard have @enqueued_at or a version of the event's"
            )
        for name, length in self._lengths.items():
            needed = len(incarnation) + (_PARTITION if self._sources[name] == "partition" else 0)
            if incarnation and length is not None and length < needed:
                raise SettingsError(
                    f"column '{name}' of table '{self._name}' takes {count_text(length, 'character')}, and of a hub that was created"
                    f" anew it gets up to {needed} (as 0@{incarnation}): alter it to VARCHAR({needed}) or longer, or set a column of"
                    " its own to @incarnation in CONSUMER_SQL_COLUMNS"
                )

    @property
    def _is_keyed_by_position(self) -> bool:
        return any(self._sources[name] in {"sequence_number", "offset"} for name in self._key)

    def write(self, connection: sa.Connection, records: Sequence[Record]) -> None:
        for operation, of_operation in groupby(records, key=attrgetter("operation")):
            rows = [self._row(record) for record in of_operation]
            if operation is Operation.UPSERT:
                self._statement.execute(connection, rows)
            else:
                connection.execute(self._others[operation], [parameters(row, self._key) for row in rows])

    def _row(self, record: Record) -> dict[str, Any]:
        stored = _decode(record.payload) if record.payload else []
        values = dict(zip(self._paths, stored, strict=False))
        body = stored[-1] if len(stored) > len(self._paths) else None
        for name, source in self._sources.items():
            if source == "index":
                values[name] = record.index
            elif source == "body" and body is not None:
                values[name] = JsonText(body) if self._is_json[name] else body
            elif isinstance(source, str):
                values[name] = self._of_event(name, source, record.event)
        return {
            name: value if isinstance(value, JsonText) else self._coercers[name](value)
            for name, value in values.items()
        }

    def _of_event(self, name: str, source: str, event: Event) -> Any:
        if source == "body":
            text = event.body.removeprefix(_BOM).decode()
            return JsonText(text) if self._is_json[name] else text
        if source == "partition" and name in self._with_incarnation:
            return event.place
        return self._topic if source == "topic" else getattr(event, source)

    def _is_missing(self, database: SqlDatabase) -> bool:
        """Whether this is a dry run, and the table is one that a start would create."""
        try:
            database.check_tables([] if self._create is None else [self._create])
        except MissingTablesError:
            if self._create is None or not database.read_only:
                raise
            return True
        return False

    def _reflect(self, database: SqlDatabase) -> sa.Table:
        schema, _, name = self._name.rpartition(".")
        try:
            table = sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=database.engine)
        except NoSuchTableError:
            raise SettingsError(
                f"{database!r} has no table '{self._name}', the target of the SQL sink"
            ) from None
        missing = [name for name in (*self._sources, *self._key) if name not in table.c]
        if missing:
            raise SettingsError(
                f"the target table '{self._name}' has no column {', '.join(map(repr, missing))}; "
                f"it has {', '.join(table.c.keys())}"
            )
        unmapped = [name for name in self._key if name not in self._sources]
        if unmapped:
            raise SettingsError(
                f"the key of '{self._name}' has columns without a source: {', '.join(unmapped)}"
            )
        if self._key and frozenset(self._key) not in _unique_keys(database, name, schema or None):
            raise SettingsError(
                f"the target table '{self._name}' has no primary key or unique constraint on exactly "
                f"{', '.join(self._key)}; a key needs one"
            )
        return table


def events_target() -> TableTarget:
    """The default: the table `Events`, one row per event, its body as JSON."""
    columns = {
        "Topic": "@topic",
        "PartitionID": "@partition",
        "SequenceNumber": "@sequence_number",
        "EnqueuedAt": "@enqueued_at",
        "Body": "@body",
    }
    return TableTarget(EVENTS.name, columns, key=("Topic", "PartitionID", "SequenceNumber"), create=EVENTS)


class HandlerTarget:
    """Calls `handler(connection, event)` for every event, or every document of it, which is then the body as JSON; an exception
    makes the event a dead letter.

    The handler must use only the connection and must not end the transaction: the sink may call it again for the same
    event after a rollback. Errors that trying again may cure (a lost connection, a missing table, OSError) reject nothing.
    """

    operations: Collection[Operation] = frozenset({Operation.UPSERT})
    appends = True  # unknown
    is_repeatable = False  # it may do more than the transaction does

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def open(self, database: SqlDatabase, scope: Stream) -> None:  # the handler's tables are its own matter
        if not sa_event.contains(database.engine, "commit", _refuse_commit):
            sa_event.listen(database.engine, "commit", _refuse_commit)

    def writes(self, column: str) -> bool:  # unknown
        return True

    def check(self, incarnation: str) -> None:
        """Nothing to check: the handler gets each event with its `incarnation`, and has its own keys."""

    def prepare(self, write: Write, operation: Operation) -> bytes | Rejection:
        if write.document is not None:
            return _json_text(write.document)
        unreadable = write.event.unreadable
        return b"" if unreadable is None else Rejection("unreadable", unreadable)

    def write(self, connection: sa.Connection, records: Sequence[Record]) -> None:
        connection.info[_HANDLING] = True
        try:
            for record in records:
                handled = record.event
                if record.payload:
                    handled = structs.replace(handled, body=record.payload)
                self._handle(connection, handled)
        finally:
            connection.info.pop(_HANDLING, None)
        # After an error that the handler caught, PostgreSQL takes no more statements and silently turns a COMMIT into a
        # ROLLBACK. This statement then fails.
        connection.execute(sa.select(1))

    def _handle(self, connection: sa.Connection, handled: Event) -> None:
        try:
            self._handler(connection, handled)
        except Exception as error:
            refusal = HandlerError.of(error)
            if refusal is None:
                raise
            raise refusal from error
        if not connection.in_transaction():
            raise HandlerError(_NOT_YOURS)


def _refuse_commit(connection: sa.Connection) -> None:
    if connection.info.get(_HANDLING):
        # SQLAlchemy counts its transaction as ended whatever is raised here, and would not roll it back.
        connection.engine.dialect.do_rollback(connection.connection)
        raise RuntimeError(_NOT_YOURS)


_OF_KEYS = frozenset({Operation.UPSERT, Operation.CREATE, Operation.DELETE})
"""What has a meaning for rows with a key. A row has no steps to patch, and to replace one only where it exists is an UPDATE that
a handler can do.
"""


def _check_guard(table: str, columns: Mapping[str, str], key: Sequence[str], guard: str) -> None:
    if not guard:
        return
    if not key or guard not in columns or guard in key:
        raise SettingsError(
            f"the guard '{guard}' of table '{table}' must be a column with a source, beside the key by which rows are replaced"
        )
    source = columns[guard]
    if source.startswith("@") and source not in {"@sequence_number", "@enqueued_at"}:
        raise SettingsError(
            f"the guard '{guard}' of table '{table}' has the source {source}, which does not grow; accepted: a path such as"
            " $.version, @enqueued_at, or @sequence_number where all events of a key are in one partition"
        )


def _unique_keys(database: SqlDatabase, table: str, schema: str | None) -> set[frozenset[str | None]]:
    inspector = sa.inspect(database.engine)
    keys: list[Sequence[str | None]] = [
        inspector.get_pk_constraint(table, schema=schema)["constrained_columns"]
    ]
    keys += [entry["column_names"] for entry in inspector.get_unique_constraints(table, schema=schema)]
    keys += [
        entry["column_names"] for entry in inspector.get_indexes(table, schema=schema) if entry["unique"]
    ]
    return {frozenset(columns) for columns in keys}
