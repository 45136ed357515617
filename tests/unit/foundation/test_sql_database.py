"""The database's threads and timeouts; Azure SQL with a driver that is not there, so with one that only looks like it."""

import asyncio
import subprocess
import sys
import textwrap
import threading
import traceback
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from consumer.errors import FencedError
from consumer.sinks.sql.failures import rejection_of
from consumer.stores.sql.checkpoints import SqlCheckpointStore, SqlLeaseStore
from consumer.stores.sql.tables import TABLES
from tests.support.consumer.sql import SCOPE, soon
from tests.support.failures import exceptions
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.sql import database as module
from tidemark.foundation.sql.address import location_of
from tidemark.foundation.sql.database import SqlDatabase, sqlstate
from tidemark.foundation.sql.threads import Threads

AZURE_SQL = "mssql+pyodbc://tidemark:s3cret@server/db?driver=ODBC+Driver+18+for+SQL+Server"


class Pyodbc(types.ModuleType):
    """PEP 249 as far as SQLAlchemy asks for it. `connections` are those that were made, `failure` what all but the
    dialect's first questions are answered with.
    """

    version, paramstyle, apilevel = "5.2.0", "qmark", "2.0"
    Binary = SQL_WVARCHAR = SQL_DECIMAL = None

    class Error(Exception):
        pass

    class ProgrammingError(Error):
        pass

    class OperationalError(Error):
        pass

    def __init__(self):
        super().__init__("pyodbc")
        self.connections = []
        self.failure = self.unreachable = None
        self.IntegrityError = self.DataError = self.DatabaseError = type("Other", (self.Error,), {})
        self.Cursor = Cursor
        self.InterfaceError = self.InternalError = self.NotSupportedError = self.DatabaseError

    def connect(self, *_args, **options):
        if self.unreachable is not None:
            raise self.unreachable
        self.connections.append(Connection(self, options))
        return self.connections[-1]


class Connection:
    timeout = 0
    autocommit = False

    def __init__(self, driver, options):
        self.driver, self.options, self.said = driver, options, []

    def cursor(self):
        return Cursor(self)

    def getinfo(self, _what):
        return "16.0.1000"

    def add_output_converter(self, *_):
        pass

    def commit(self):
        pass

    rollback = close = commit


class Cursor:
    description, rowcount, arraysize = None, -1, 1

    def __init__(self, connection):
        self._connection = connection

    def execute(self, statement, *_parameters):
        connection = self._connection
        connection.said.append((connection.timeout, statement))
        self.description = None
        if statement.lstrip().upper().startswith("SELECT"):
            self.description = [("x", str, None, None, None, None, True)]
        if "refused" in statement and connection.driver.failure is not None:
            raise connection.driver.failure
        return self

    def fetchone(self):
        return ("dbo",)

    def fetchall(self):
        return [("dbo",)]

    def close(self):
        pass

    def setinputsizes(self, *_):
        pass


@pytest.fixture
def pyodbc(monkeypatch):
    driver = Pyodbc()
    driver.SQL_DRIVER_VER = 0
    monkeypatch.setitem(sys.modules, "pyodbc", driver)
    return driver


async def used(url=AZURE_SQL):
    database = SqlDatabase(url, tables=TABLES)
    database.use()
    return database


def execute(database, statement):
    def work():
        with database.engine.begin() as connection:
            connection.execute(text(statement))

    return database.call(work, deadline=soon())


async def test_azure_sql_is_asked_with_a_timeout_for_the_login_each_statement_and_each_lock(pyodbc):
    database = await used()
    await execute(database, "UPDATE x SET y = 1")
    await database.release()

    [connection] = pyodbc.connections
    assert connection.options["timeout"] == 15
    assert connection.said[0] == (30, "SET LOCK_TIMEOUT 10000")
    assert {timeout for timeout, _ in connection.said} == {30}
    assert connection.said[-1] == (30, "UPDATE x SET y = 1")


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("ProgrammingError", "42000", "[SQL Server]Lock request time out period exceeded. (1222)"),
        ("OperationalError", "HYT00", "[ODBC Driver 18 for SQL Server]Query timeout expired"),
        ("OperationalError", "08S01", "[ODBC Driver 18 for SQL Server]Communication link failure"),
    ],
)
async def test_a_timeout_of_azure_sql_is_an_outage_in_its_words_and_no_event_s_fault(
    pyodbc, kind, state, words
):
    database = await used()
    pyodbc.failure = getattr(pyodbc, kind)(state, words)
    with pytest.raises(UnavailableError) as caught:
        await execute(database, "UPDATE refused SET y = 1")
    await database.release()

    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert rejection_of(caught.value.__cause__) is None


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (("08001", "Named Pipes: server h4lf@127.0.0.1 timed out"), "no answer in time"),
        (("28000", "Login failed for user 'sE/h4lf'"), "the login was refused"),
        (("08001", "TCP Provider: Connection refused (h4lf)"), "the connection was refused"),
        (("IM002", "Data source name not found: h4lf"), "the driver that the URL names is not installed"),
        (('missing "=" after "h4lf"',), "the driver cannot read what the URL says"),
        (("h4lf@h is odd",), "the driver gives a reason that is not shown"),
    ],
)
async def test_what_a_driver_says_before_a_connection_stands_is_told_in_other_words(pyodbc, said, shown):
    pyodbc.unreachable = pyodbc.OperationalError(*said)
    database = await used()
    with pytest.raises(UnavailableError) as caught:
        await execute(database, "UPDATE x SET y = 1")
    await database.release()
    story = "".join(traceback.format_exception(caught.value))

    assert shown in str(caught.value)
    assert "database 'mssql+pyodbc://server/db' (the SQL URL)" in str(caught.value)
    assert "h4lf" not in story
    assert sqlstate(caught.value.__cause__) == (said[0] if len(said) == 2 else "")


@pytest.mark.parametrize(
    ("url", "at"),
    [
        ("postgresql://u:s@Ec:ret@h/db", 18),
        ("postgresql://u:sE@cret@127.0.0.1/db", 19),
        ("postgresql://u:sE/cret@h/db", 14),
        ("postgresql://u:12/cret@h/db", 18),
        ("postgresql://u:sE?cret@h/db", 14),
        ("postgresql://u:12?cret@h/db", 18),
        ("postgresql://u:sE#cret@h/db", 14),
        ("postgresql://u:sE cret@h/db", 14),
        ("mssql+pyodbc://u:sE;cret=@h@x/db", 27),
    ],
)
def test_a_url_whose_parts_could_be_taken_for_one_another_is_refused_by_position(url, at):
    with pytest.raises(SettingsError) as caught:
        SqlDatabase(url, setting="CONSUMER_SQL_URL")

    assert f"CONSUMER_SQL_URL cannot be read from character {at} on" in str(caught.value)
    assert "cret" not in str(caught.value)
    assert "'@' is written %40" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("sqlite:////tmp/a@b: c?.db", "sqlite:////tmp/a@b: c"),
        ("postgresql://u:s%40cret@h:5432/db?sslmode=require&password=cret", "postgresql://h:5432/db"),
        ("postgresql://postgres@/postgres?host=/tmp/x", "postgresql:///postgres"),
        ("postgresql://u:p@[::1]:5432/db", "postgresql://[::1]:5432/db"),
        ("mssql+pyodbc://u:p@server\\SQL/db?driver=ODBC Driver 18", "mssql+pyodbc://server\\SQL/db"),
        (
            "mssql+pyodbc:///?odbc_connect=Server%3Dtcp%3Ax.database.windows.net%2C1433%3BDatabase%3Dd%3BPwd%3Dcret",
            "mssql+pyodbc://x.database.windows.net/d",
        ),
        ("mssql+pyodbc:///?odbc_connect=Server%3Dx%3BPwd%3D%7Ba%3BServer%3Dcret%7D", "mssql+pyodbc://x"),
        ("mssql+pyodbc:///?odbc_connect=Pwd%3D%7Bcret%3BServer%3Dx", "mssql+pyodbc://"),
    ],
)
def test_messages_name_a_database_by_scheme_host_and_name(url, place):
    assert location_of(url) == place
    assert "cret" not in place


class Hanging:
    """Calls that do not end before they are let go."""

    def __init__(self):
        self.gate, self.running = threading.Event(), threading.Semaphore(0)

    def __call__(self):
        self.running.release()
        self.gate.wait()

    async def begun(self, count):
        for _ in range(count):
            await asyncio.to_thread(self.running.acquire)


@pytest.fixture
def hanging():
    calls = Hanging()
    yield calls
    calls.gate.set()


async def test_a_shutdown_leaves_behind_what_hangs(pyodbc, hanging, monkeypatch, caplog):
    monkeypatch.setattr(module, "RELEASE_TIMEOUT", 0.01)
    database = await used()
    for _ in range(8):
        database.start(hanging)
    await hanging.begun(8)
    await asyncio.wait_for(database.release(), 20)

    assert "8 calls do not end" in caplog.text


async def test_what_was_not_begun_by_its_deadline_never_is(pyodbc, hanging):
    database = await used()
    for _ in range(8):
        database.start(hanging)
    await hanging.begun(8)
    done = []
    with pytest.raises(UnavailableError, match="deadline"):
        await database.call(lambda: done.append(1), deadline=soon(0.01))
    hanging.gate.set()
    await database.call(lambda: done.append(2), deadline=soon())
    await database.release()

    assert done == [2]


async def test_leases_are_kept_while_every_other_call_waits_for_a_lock(pyodbc, hanging, monkeypatch):
    monkeypatch.setattr(SqlDatabase, "check_tables", lambda *_: None)
    database = SqlDatabase(AZURE_SQL, tables=TABLES)
    leases, checkpoints = SqlLeaseStore(database, SCOPE), SqlCheckpointStore(database, SCOPE)
    monkeypatch.setattr(leases, "_list", lambda _connection: ([], 7.0))
    for _ in range(8):
        database.start(hanging)
    await hanging.begun(8)

    assert await leases.list(deadline=soon()) == ([], 7.0)
    hanging.gate.set()
    await leases.aclose()
    await checkpoints.aclose()


def test_the_process_ends_though_a_call_does_not():
    code = """
        import threading
        from tidemark.foundation.sql.threads import Threads
        begun = threading.Event()
        Threads(2, "sql").submit(lambda: (begun.set(), threading.Event().wait()))
        begun.wait()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60, check=True)


def test_threads_are_made_when_needed_and_used_again():
    threads = Threads(3, "mine")
    names = {threads.submit(lambda: threading.current_thread().name).result(20) for _ in range(20)}
    gate = threading.Event()
    waiting = [threads.submit(gate.wait) for _ in range(10)]
    most = sum(thread.name.startswith("mine_") for thread in threading.enumerate())
    gate.set()

    assert [each.result(20) for each in waiting] == [True] * 10
    assert names <= {"mine_0", "mine_1", "mine_2"}
    assert most <= 3
    threads.shutdown()


async def test_a_thread_that_cannot_be_started_costs_one_call_and_not_all(monkeypatch):
    """As on a machine that has no more of them for the moment."""
    database = await used("sqlite://")
    with monkeypatch.context() as context, pytest.raises(UnavailableError, match="can't start new thread"):
        context.setattr(threading.Thread, "start", refuse_to_start)
        await database.call(lambda: 1, deadline=soon())

    assert await database.call(lambda: 2, deadline=soon()) == 2
    await database.release()


def refuse_to_start(_thread):
    raise RuntimeError("can't start new thread")


@given(
    exceptions() | st.sampled_from([FencedError("somebody else"), SettingsError("wrong"), TidemarkError("x")])
)
def test_whatever_a_call_raises_is_one_of_our_errors(failure):
    def work():
        raise failure

    async def main():
        database = await used("sqlite://")
        with pytest.raises(TidemarkError) as caught:
            await database.call(work, deadline=soon())
        await database.release()

        ours = isinstance(failure, TidemarkError)
        assert caught.value is failure if ours else isinstance(caught.value, UnavailableError)

    asyncio.run(main())
