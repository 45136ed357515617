"""A database and the threads that call it, so that nothing blocks the event loop.

A call that has not ended by its deadline keeps its thread until the driver returns, which the timeouts below ensure. There are
never more threads than connections. Leases have their own threads, so that partitions with locked rows do not delay others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, Table, create_engine, event, exc, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateColumn, CreateTable

from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.sanitize import without_secrets
from tidemark.foundation.secrets.known import hide_text
from tidemark.foundation.sql.address import check_url, describe_connection_failure, location_of
from tidemark.foundation.sql.threads import Threads
from tidemark.foundation.version import install_hint

log = logging.getLogger("tidemark.consumer")

T = TypeVar("T")

STATEMENT_TIMEOUT = 30.0
"""Seconds. While a stopped process holds the lock of a row in an open transaction, no other process can take its partition over.
After this time the server ends the transaction. Chosen.
"""
CONNECT_TIMEOUT = 5
"""Seconds to connect to PostgreSQL. Chosen: far below STATEMENT_TIMEOUT, because a failed attempt is repeated."""
LOGIN_TIMEOUT = 15
"""Seconds. The gateway of Azure SQL may take several; a paused serverless database refuses at once. Chosen."""
LOCK_TIMEOUT = 10.0
"""Seconds that a statement in Azure SQL waits for a row that another transaction has locked. The server never ends the transaction
of a stopped client by itself, so the next owner of a partition must not wait, but try again and report the reason. Chosen.
"""
RELEASE_TIMEOUT = 5.0
"""Seconds that a shutdown waits for running calls. Chosen."""
URGENT = 2
"""How many threads and connections there are for leases. Chosen."""
RECYCLE = 1200
"""Seconds after which a connection is replaced, because gateways in Azure drop connections that were idle for 30 minutes."""

_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mssql": "mssql+pyodbc"}
_EXTRAS = {"postgresql": "postgres", "mssql": "azure-sql"}


class MissingTablesError(SettingsError):
    """Tables are not there and may not be created."""


class JsonText(str):
    """A text that is JSON already."""

    __slots__ = ()


class SqlDatabase:
    """One database, shared by a sink and stores: each calls `use` first and `release` last; the last one closes it.

    `tables` are there before any transaction: where `create_tables` allows it (None: in SQLite only), missing ones are
    created, and columns that an older version did not have are added. With `read_only` neither is, nor a file of SQLite. `setting`
    names the URL's setting in errors. Raises SettingsError for a URL that cannot be read or whose driver is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        setting: str = "the SQL URL",
        connections: int = 8,
        create_tables: bool | None = None,
        tables: Sequence[Table] = (),
        read_only: bool = False,
    ) -> None:
        hide_text(url)
        self._url = _readable(url, setting)
        self._place, self._setting = location_of(url), setting
        self._tables = tables
        self.dialect = self._url.get_backend_name()
        self.read_only = read_only
        self._create = not read_only and (
            self.dialect == "sqlite" if create_tables is None else create_tables
        )
        # SQLite has one writer at a time; others would only poll for its lock.
        self._connections = 1 if self.dialect == "sqlite" else connections
        urgent = 0 if self.dialect == "sqlite" else URGENT
        self.engine = _engine(self._url, setting, self._connections + urgent, read_only=read_only)
        self._threads = Threads(self._connections, "sql")
        self._urgent = Threads(urgent, "sql-urgent") if urgent else self._threads
        self._running: set[asyncio.Future[Any]] = set()
        self._users = 0
        self._checked: set[str] = set()
        self._checking = threading.Lock()

    def __repr__(self) -> str:
        return f"database {self._place!r} ({self._setting})"

    def use(self) -> None:
        self._users += 1

    async def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            hanging = await self._wait_for(self._running)
            hanging = hanging or await self._wait_for({self.start(self.engine.dispose)})
            if hanging:
                log.warning(
                    "%r: %d calls do not end; they are left behind, their outcomes unknown", self, hanging
                )
            for threads in {self._threads, self._urgent}:
                threads.shutdown()

    async def _wait_for(self, running: set[asyncio.Future[Any]]) -> int:
        """How many calls have not ended after RELEASE_TIMEOUT."""
        if not running:
            return 0
        _, late = await asyncio.wait(running, timeout=RELEASE_TIMEOUT)
        return len(late)

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in a thread of the database. It continues if the caller stops waiting."""
        return self._follow(self._threads.submit(work))

    def _follow(self, submitted: Future[T]) -> asyncio.Future[T]:
        future = asyncio.wrap_future(submitted)
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # retrieved, because the caller may have stopped waiting

    async def call(self, work: Callable[[], T], *, deadline: float | None = None, urgent: bool = False) -> T:
        """The result of `work`. `urgent` work waits only for other urgent work.

        Raises the TidemarkErrors of `work`, and UnavailableError for all other errors and after the deadline: then the work
        continues, and its outcome is unknown.
        """
        submitted: Future[T] | None = None
        try:
            submitted = (self._urgent if urgent else self._threads).submit(work)
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(self._follow(submitted))
        except TimeoutError:
            raise UnavailableError(f"{self!r} has not answered by the deadline") from None
        except TidemarkError:
            raise
        except Exception as error:
            kind = "" if isinstance(error, exc.SQLAlchemyError) else f"{type(error).__name__}: "
            raise UnavailableError(f"{self!r}: {kind}{message_of(error)}") from error
        finally:
            if submitted is not None:
                submitted.cancel()  # work that has not begun by the deadline never begins

    async def transact(
        self,
        work: Callable[[Connection], T],
        *,
        deadline: float | None = None,
        again_on_conflict: int = 0,
        urgent: bool = False,
    ) -> T:
        """Run `work` in a transaction, as `call` does, after checking that the tables exist (SettingsError). It is repeated up to
        `again_on_conflict` times if another transaction inserts the same key first, and rolled back if its caller has given up.
        """
        given_up = threading.Event()
        transaction = partial(self._transaction, work, again_on_conflict, given_up)
        try:
            return await self.call(transaction, deadline=deadline, urgent=urgent)
        finally:
            given_up.set()

    def _transaction(self, work: Callable[[Connection], T], again: int, given_up: threading.Event) -> T:
        self.check_tables(self._tables)
        for _ in range(again):
            with contextlib.suppress(exc.IntegrityError):
                return self._commit(work, given_up)
        return self._commit(work, given_up)

    def _commit(self, work: Callable[[Connection], T], given_up: threading.Event) -> T:
        with self.engine.begin() as connection:
            result = work(connection)
            if given_up.is_set():  # it would overwrite what the caller has written since
                raise UnavailableError(f"{self!r} answered too late, and is rolled back")
            return result

    def check_tables(self, tables: Sequence[Table]) -> None:
        """Create missing tables, if that is allowed. Blocks. Raises SettingsError and DBAPIError."""
        self.require_file()
        if self._checked.issuperset(table.name for table in tables):
            return  # without the lock, because a hanging call may hold it
        with self._checking:
            missing = [table for table in tables if table.name not in self._checked]
            if self._create:
                self._create_tables(missing)
            self._require(missing)
            self._checked.update(table.name for table in missing)

    def require_file(self) -> None:
        """Raises MissingTablesError if nothing may be created and the file of SQLite is missing: a connection would create it."""
        name = self._url.database or ":memory:"
        if self.read_only and self.dialect == "sqlite" and name != ":memory:" and not Path(name).exists():
            raise MissingTablesError(f"{self!r} does not exist")

    def _create_tables(self, tables: Sequence[Table]) -> None:
        for table in tables:
            try:
                table.create(self.engine, checkfirst=True)
            except (exc.ProgrammingError, exc.OperationalError, exc.IntegrityError):
                # Another consumer may have created it at the same moment.
                if not inspect(self.engine).has_table(table.name):
                    raise
            for statement in self._additions(table):
                try:
                    with self.engine.begin() as connection:
                        connection.exec_driver_sql(statement)
                except (exc.ProgrammingError, exc.OperationalError):
                    if statement in self._additions(table):
                        raise

    def _additions(self, table: Table) -> list[str]:
        """The statements that add missing columns, if all of them may be NULL: then an older version created the table. No
        statements if others are missing: then the table is not ours.
        """
        has = {column["name"] for column in inspect(self.engine).get_columns(table.name)}
        lacking = [column for column in table.c if column.name not in has]
        if not all(column.nullable for column in lacking):
            return []
        quoted = self.engine.dialect.identifier_preparer.format_table(table)
        return [
            f"ALTER TABLE {quoted} ADD {CreateColumn(column).compile(dialect=self.engine.dialect)}"
            for column in lacking
        ]

    def _require(self, tables: Sequence[Table]) -> None:
        inspector = inspect(self.engine)
        known = [*self._tables, *(table for table in tables if table not in self._tables)]
        absent = [table for table in known if not inspector.has_table(table.name)]
        expected = ddl(known, self.dialect)
        for table in tables:
            if table in absent:
                names = ", ".join(each.name for each in absent)
                raise MissingTablesError(
                    f"{self!r} has no table {names}; create what is missing, or allow the consumer to:\n"
                    f"{ddl(absent, self.dialect)}"
                )
            lacking = {column.name for column in table.c} - {
                column["name"] for column in inspector.get_columns(table.name)
            }
            if lacking:
                added = ";\n".join(self._additions(table))
                raise SettingsError(
                    f"{self!r}: table {table.name} lacks {', '.join(sorted(lacking))}"
                    + (f"; an older version made it, so add:\n{added};\nto have" if added else "; expected")
                    + f":\n{expected}"
                )


def ddl(tables: Sequence[Table], dialect: str) -> str:
    """The statements that create the tables in `sqlite`, `postgresql` or `mssql`."""
    spoken = make_url(f"{dialect}://").get_dialect()()
    return "\n".join(f"{str(CreateTable(table).compile(dialect=spoken)).strip()};\n" for table in tables)


def _readable(url: str, setting: str) -> URL:
    check_url(url, setting)
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        raise SettingsError(
            f"{setting} is no database URL; expected sqlite:///file, postgresql://user@host/database or "
            "mssql+pyodbc://..."
        ) from None
    return parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))


def _engine(url: URL, setting: str, connections: int, *, read_only: bool) -> Engine:
    backend = url.get_backend_name()
    options: dict[str, Any] = {"json_serializer": _json, "hide_parameters": True}
    if backend == "sqlite" and url.database in {None, "", ":memory:"}:
        options["poolclass"] = StaticPool  # one connection, or there would be one database per thread
        options["connect_args"] = {"check_same_thread": False}
    else:
        options |= {"pool_size": connections, "max_overflow": 0, "pool_recycle": RECYCLE}
    if backend == "postgresql":
        options["connect_args"] = _postgres_options(url)
    if backend == "mssql" and url.get_driver_name() == "pyodbc":
        options["connect_args"] = {"timeout": LOGIN_TIMEOUT}
    try:
        engine = create_engine(url, **options)
    except (exc.NoSuchModuleError, ImportError) as error:
        extra = _EXTRAS.get(backend)
        hint = f"; {install_hint(extra)}" if extra else ""
        raise SettingsError(
            f"{setting}: no driver for '{url.drivername}' is installed ({error}){hint}"
        ) from error
    if backend != "sqlite":
        event.listen(engine, "do_connect", _connect)
    if backend == "sqlite":
        event.listen(engine, "connect", partial(_open_sqlite, read_only=read_only))
        event.listen(engine, "begin", _begin_sqlite)
    if backend == "mssql":
        # Before the dialect asks the server who it is, on the same connection.
        event.listen(engine, "connect", _open_azure_sql, insert=True)
    return engine


def _postgres_options(url: URL) -> dict[str, Any]:
    milliseconds = int(STATEMENT_TIMEOUT * 1000)
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "tcp_user_timeout": milliseconds,
        "options": f"-c statement_timeout={milliseconds} -c idle_in_transaction_session_timeout={milliseconds}",
    }
    return {name: value for name, value in defaults.items() if name not in url.query}


def _connect(dialect: Any, _record: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """Open a connection. Errors of the driver are replaced by our own text: see `describe_connection_failure`."""
    try:
        return dialect.connect(*arguments, **options)
    except dialect.loaded_dbapi.Error as error:
        state = _state_of(error)
        reason = describe_connection_failure(str(error))
        fault = type(error)(*([state, reason] if error.args and error.args[0] == state else [reason]))
        with contextlib.suppress(AttributeError):
            fault.sqlstate = state
        raise fault from None


def _open_azure_sql(connection: Any, _record: Any) -> None:
    if hasattr(connection, "timeout"):  # pyodbc's, in seconds, for each statement
        connection.timeout = int(STATEMENT_TIMEOUT)
    cursor = connection.cursor()
    cursor.execute(f"SET LOCK_TIMEOUT {int(LOCK_TIMEOUT * 1000)}")
    cursor.close()


def _open_sqlite(connection: Any, _record: Any, *, read_only: bool) -> None:
    connection.isolation_level = None  # the driver's own transactions know no savepoints
    if not read_only:  # it is written into the file
        connection.execute("PRAGMA journal_mode = WAL")
    # A power cut may undo the last transactions, but rows and positions together: nothing is lost or doubled.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA busy_timeout = {int(STATEMENT_TIMEOUT * 1000)}")


def _begin_sqlite(connection: Connection) -> None:
    # Takes the lock at once, because taking it later can end in a deadlock.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _json(value: Any) -> str:
    return str(value) if isinstance(value, JsonText) else msgspec.json.encode(value).decode()


def message_of(error: BaseException) -> str:
    """The error on one line, without the statement and its parameters, which contain data of events."""
    cause = error.orig if isinstance(error, exc.StatementError) and error.orig is not None else error
    text = without_secrets(" ".join(str(cause).split())) or type(cause).__name__
    name = NAMES.get(sqlstate(error))
    return f"{name}: {text}" if name else text


NAMES = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "53100": "disk full",
    "55P03": "lock timeout",
    "57014": "statement timeout",
    "HYT00": "timeout of the driver",
    "HYT01": "timeout of the connection",
}


def sqlstate(error: BaseException) -> str:
    """The five characters of the database's SQLSTATE; '' without one, as in SQLite."""
    cause = error.orig if isinstance(error, exc.StatementError) else None
    return "" if cause is None else _state_of(cause)


def _state_of(cause: BaseException) -> str:
    state = getattr(cause, "sqlstate", None)
    if state is None and cause.args and isinstance(cause.args[0], str):
        state = cause.args[0]  # pyodbc
    return state if isinstance(state, str) and len(state) == 5 else ""
