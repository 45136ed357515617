"""A database and the threads that talk to it: nothing here ever blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, Table, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import StaticPool

from consumer.errors import SettingsError, UnavailableError
from consumer.sql.failures import message_of
from consumer.sql.tables import CHECKPOINTS, DEAD_LETTERS, LEASES, ddl

T = TypeVar("T")

STATEMENT_TIMEOUT = 30.0
"""Seconds. As long as a stopped process holds a row's lock in an open transaction, nobody can take its partition
over; the server ends the transaction after this time.
"""
CONNECT_TIMEOUT = 5
RECYCLE = 1200
"""Seconds; gateways of the cloud drop connections that were idle for half an hour."""

_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mssql": "mssql+pyodbc"}
_EXTRAS = {"postgresql": "postgres", "mssql": "azure-sql"}


class JsonText(str):
    """Text that is JSON already."""

    __slots__ = ()


class SqlDatabase:
    """One database, shared by a sink and stores: each calls `use` first and `release` last; the last one closes it.

    `create_tables` None creates missing tables in SQLite only. `setting` names the URL's setting in errors. Raises
    SettingsError for a URL that cannot be read or whose driver is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        setting: str = "the SQL URL",
        connections: int = 8,
        create_tables: bool | None = None,
    ) -> None:
        self._url = _readable(url, setting)
        self.dialect = self._url.get_backend_name()
        self._create = self.dialect == "sqlite" if create_tables is None else create_tables
        # SQLite has one writer at a time; others would only poll for its lock.
        self._connections = 1 if self.dialect == "sqlite" else connections
        self.engine = _engine(self._url, setting, self._connections)
        self._executor = ThreadPoolExecutor(self._connections, thread_name_prefix="sql")
        self._running: set[asyncio.Future[Any]] = set()
        self._users = 0
        self._checked: set[str] = set()
        self._checking = threading.Lock()

    def __repr__(self) -> str:
        return f"SqlDatabase({self._url.render_as_string(hide_password=True)!r})"

    def use(self) -> None:
        self._users += 1

    async def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            if self._running:
                await asyncio.wait(self._running)
            await asyncio.wrap_future(self._executor.submit(self.engine.dispose))
            self._executor.shutdown()  # every thread is idle

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Runs `work` in a thread of the database's own. It goes on when nobody waits for it any more."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # seen, although its caller may have gone

    async def call(self, work: Callable[[], T], *, deadline: float | None = None) -> T:
        """The result of `work`. Raises what it raises; UnavailableError for errors of the database, and after the
        deadline: the work then goes on, and its outcome is unknown.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(self.start(work))
        except TimeoutError:
            raise UnavailableError(f"{self!r} has not answered by the deadline") from None
        except SQLAlchemyError as error:
            raise UnavailableError(f"{self!r}: {message_of(error)}") from error

    async def transact(
        self, work: Callable[[Connection], T], *, deadline: float | None = None, again_on_conflict: int = 0
    ) -> T:
        """As `call`, in a transaction of its own, once the consumer's tables are known to exist (SettingsError).

        It is tried again when another transaction took the same key first, up to `again_on_conflict` times.
        """
        return await self.call(lambda: self._transaction(work, again_on_conflict), deadline=deadline)

    def _transaction(self, work: Callable[[Connection], T], again_on_conflict: int) -> T:
        self.check_tables([CHECKPOINTS, DEAD_LETTERS, LEASES])
        for _ in range(again_on_conflict):
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except IntegrityError:
                continue
        with self.engine.begin() as connection:
            return work(connection)

    def check_tables(self, tables: Sequence[Table]) -> None:
        """Creates missing tables where that is allowed; blocks. Raises SettingsError, DBAPIError."""
        with self._checking:
            missing = [table for table in tables if table.name not in self._checked]
            if not missing:
                return
            if self._create:
                self._create_tables(missing)
            self._require(missing)
            self._checked.update(table.name for table in missing)

    def _create_tables(self, tables: Sequence[Table]) -> None:
        for table in tables:
            try:
                table.create(self.engine, checkfirst=True)
            except (ProgrammingError, OperationalError, IntegrityError):
                # Another consumer may have created it at the same moment.
                if not inspect(self.engine).has_table(table.name):
                    raise

    def _require(self, tables: Sequence[Table]) -> None:
        found = inspect(self.engine)
        for table in tables:
            if not found.has_table(table.name):
                raise SettingsError(
                    f"{self!r} has no table {table.name}; create it, or allow the consumer to:\n{ddl(self.dialect)}"
                )
            lacking = {column.name for column in table.c} - {
                column["name"] for column in found.get_columns(table.name)
            }
            if lacking:
                raise SettingsError(
                    f"{self!r}: table {table.name} lacks {', '.join(sorted(lacking))}; expected:\n{ddl(self.dialect)}"
                )


def _readable(url: str, setting: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SettingsError(
            f"{setting} is no database URL; expected sqlite:///file, postgresql://user@host/database or "
            "mssql+pyodbc://..."
        ) from None
    driver = _DRIVERS.get(parsed.drivername)
    return parsed.set(drivername=driver) if driver else parsed


def _engine(url: URL, setting: str, connections: int) -> Engine:
    backend = url.get_backend_name()
    options: dict[str, Any] = {"json_serializer": _json, "hide_parameters": True}
    if backend == "sqlite" and url.database in {None, "", ":memory:"}:
        options["poolclass"] = StaticPool  # one connection, or there would be one database per thread
        options["connect_args"] = {"check_same_thread": False}
    else:
        options |= {"pool_size": connections, "max_overflow": 0, "pool_recycle": RECYCLE}
    if backend == "postgresql":
        options["connect_args"] = _postgres_options(url)
    try:
        engine = create_engine(url, **options)
    except (NoSuchModuleError, ImportError) as error:
        extra = _EXTRAS.get(backend)
        hint = f"; install tidemark[{extra}]" if extra else ""
        raise SettingsError(
            f"{setting}: no driver for '{url.drivername}' is installed ({error}){hint}"
        ) from error
    if backend == "sqlite":
        event.listen(engine, "connect", _open_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgres_options(url: URL) -> dict[str, Any]:
    milliseconds = int(STATEMENT_TIMEOUT * 1000)
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "tcp_user_timeout": milliseconds,
        "options": f"-c statement_timeout={milliseconds} -c idle_in_transaction_session_timeout={milliseconds}",
    }
    return {name: value for name, value in defaults.items() if name not in url.query}


def _open_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own transactions know no savepoints
    connection.execute("PRAGMA journal_mode = WAL")
    # A power cut may take the last transactions, but rows and position go together: nothing is lost or doubled.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA busy_timeout = {int(STATEMENT_TIMEOUT * 1000)}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # the lock at once: one taken later can end in a deadlock


def _json(value: Any) -> str:
    return str(value) if isinstance(value, JsonText) else msgspec.json.encode(value).decode()
