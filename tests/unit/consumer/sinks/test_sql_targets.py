"""What the SQL sink writes where: tables of the user's own, the default table, and the statements for Azure SQL."""

import asyncio
import contextlib
import datetime as dt
import importlib.util
import json
import tempfile

import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from sqlalchemy import MetaData, Table
from sqlalchemy.engine import make_url

from consumer.mapping.operations import WriteOptions
from consumer.model import Batch, Checkpoint, Claim, DeadLetter, Operation, Outcome, Rejection, Write
from consumer.sinks.sql.columns import coercer
from consumer.sinks.sql.options import SqlOptions, target_of, writing_of
from consumer.sinks.sql.statements import Upsert, creation, deletion, parameters
from consumer.sinks.sql.targets import HandlerTarget, TableTarget, events_target
from consumer.stores.sql import dead_letters, positions
from consumer.stores.sql.tables import EVENTS, LEASES, TABLES
from tests.support.consumer.sql import SCOPE, T0, WRITTEN, World, event, flight, is_retry, soon
from tests.support.failures import exceptions
from tests.support.servers.postgres import new_database
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sql.database import SqlDatabase, ddl

COLUMNS = {
    "id": "$.id",
    "tail": "$.plane.tail",
    "odd": '/"a.b"/c',
    "departs": "$.departs",
    "day": "$.day",
    "extra": "$.extra",
    "seq": "@sequence_number",
    "enqueued": "@enqueued_at",
    "body": "@body",
    "hub": "@topic",
}
TABLE = (
    "CREATE TABLE flights (id INTEGER PRIMARY KEY, tail TEXT, odd TEXT, departs TIMESTAMP, day DATE, extra JSON, "
    "seq BIGINT, enqueued TIMESTAMP, body TEXT, hub TEXT)"
)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.wire)])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tidemark.db"
    return new_database(request.getfixturevalue("postgres"))


def read(world, target="flights"):
    """The rows as the database's own types."""
    table = Table(target, MetaData(), autoload_with=world.database.engine)
    with world.database.engine.connect() as connection:
        return [dict(row._mapping) for row in connection.execute(table.select())]


async def test_columns_come_from_paths_and_from_the_event(url):
    body = {
        "id": 1,
        "plane": {"tail": "N1"},
        "a.b": {"c": ["x", 2]},
        "departs": "2013-01-01T05:00:00-05:00",
        "day": "2013-01-01",
        "extra": {"é": [1]},
    }
    async with World(url, TableTarget("flights", COLUMNS), table=TABLE) as world:
        await world.claim()
        assert await world.write(event(7, b"\xef\xbb\xbf" + json.dumps(body).encode())) == [WRITTEN]

        assert read(world) == [
            {
                "id": 1,
                "tail": "N1",
                "odd": '["x",2]',
                "departs": dt.datetime(2013, 1, 1, 10),  # a column without a time zone is UTC
                "day": dt.date(2013, 1, 1),
                "extra": {"é": [1]},
                "seq": 7,
                "enqueued": dt.datetime.fromtimestamp(T0, dt.UTC).replace(tzinfo=None),
                "body": json.dumps(body),
                "hub": "acme.servicebus.windows.net/flights",
            }
        ]


async def test_what_is_not_in_the_body_is_null(url):
    async with World(url, TableTarget("flights", COLUMNS), table=TABLE) as world:
        await world.claim()
        await world.write(event(7, b'{"id": 1, "plane": 5}'))

        [row] = read(world)
        assert [row[name] for name in ("tail", "odd", "departs", "day", "extra")] == [None] * 5
        assert await world.run("SELECT count(*) FROM flights WHERE extra IS NULL") == [(1,)]


NO_TIME = "is no time in epoch seconds"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("departs", "yesterday", "column 'departs': .*yesterday"),
        *(
            ("departs", {}, "time, found a JSON dict"),
            ("departs", True, "expected a date and time, found a JSON bool"),
        ),
        *(("day", 5, "expected a date, found a JSON int"), ("id", 2**70, "too large")),
        *(
            ("departs", 17 * 10**17, f"{NO_TIME}.*nanoseconds"),
            ("departs", 17 * 10**11, f"{NO_TIME}.*milliseconds"),
        ),
        *(("departs", -(2**62), NO_TIME), ("departs", 1e300, NO_TIME)),
    ],
)
async def test_a_value_its_column_can_never_take_is_rejected_before_it_is_written(
    tmp_path, field, value, said
):
    async with World(f"sqlite:///{tmp_path}/x.db", TableTarget("flights", COLUMNS), table=TABLE) as world:
        record = world.sink.prepare(Write(event(0, json.dumps({field: value}).encode())))

        assert record.rejection is not None
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(record.rejection.detail)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (0, "1970-01-01T00:00:00"),
        (1_700_000_000.25, "2023-11-14T22:13:20.250000"),
        (-62_135_596_800, "0001-01-01T00:00:00"),
        (253_402_300_799, "9999-12-31T23:59:59"),
    ],
)
async def test_epoch_seconds_are_a_time_from_the_first_year_to_the_last(tmp_path, value, stored):
    async with World(f"sqlite:///{tmp_path}/x.db", TableTarget("flights", COLUMNS), table=TABLE) as world:
        await world.claim()
        assert await world.write(event(0, json.dumps({"departs": value}).encode())) == [WRITTEN]

        assert [row["departs"].isoformat() for row in read(world)] == [stored]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
COLUMN_TYPES = [
    sqlalchemy.DateTime(),
    sqlalchemy.DateTime(timezone=True),
    sqlalchemy.Date(),
    sqlalchemy.Time(),
    sqlalchemy.Uuid(),
    sqlalchemy.LargeBinary(),
    sqlalchemy.JSON(),
    sqlalchemy.Integer(),
    sqlalchemy.Unicode(),
]


@given(st.sampled_from(COLUMN_TYPES), JSON_VALUES)
def test_any_value_for_any_column_is_taken_or_refused_as_a_value(column, value):
    with contextlib.suppress(ValueError, TypeError):
        coercer(column)(value)


async def test_with_a_key_a_later_event_replaces_the_row(url):
    target = TableTarget("flights", {"id": "$.number", "tail": "$.carrier"}, key=["id"])
    async with World(url, target, table=TABLE) as world:
        await world.claim()
        await world.write(
            flight(0, number=1, carrier="UA"), flight(1, number=2), flight(2, number=1, carrier="AA")
        )
        await world.write(flight(3, number=2, carrier="B6"))

        assert {row["id"]: row["tail"] for row in read(world)} == {1: "AA", 2: "B6"}


async def test_a_key_that_is_all_there_is_may_come_again(url):
    async with World(url, TableTarget("flights", {"id": "$.number"}, key=["id"]), table=TABLE) as world:
        await world.claim()

        assert await world.write(flight(0, number=1), flight(1, number=1)) == [WRITTEN] * 2
        assert [row["id"] for row in read(world)] == [1]


async def test_by_default_every_event_is_a_row_of_events_and_a_rewind_doubles_nothing(url):
    async with World(url) as world:
        await world.claim()
        await world.write(flight(0), flight(1))
        await world.store.put(Checkpoint("0", -1, ""), deadline=soon())
        await world.claim()

        assert await world.write(flight(0), flight(1), flight(2)) == [WRITTEN] * 3
        assert [(row["SequenceNumber"], row["Body"]) for row in read(world, "Events")] == [
            (n, {"carrier": "UA", "number": n}) for n in range(3)
        ]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda: TableTarget("flights", {}), "has no columns"),
        (lambda: TableTarget("flights", {"id": "number"}), "the source 'number' of column 'id' is not known"),
        (lambda: TableTarget("flights", {"id": "@now"}), "accepted: .*@sequence_number"),
    ],
)
def test_a_target_that_can_never_work_is_refused_at_once(target, said):
    with pytest.raises(SettingsError, match=said):
        target()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (TableTarget("nowhere", {"id": "$.id"}), "no table 'nowhere'"),
        (TableTarget("flights", {"idd": "$.id"}), "no column 'idd'; it has id, tail"),
        (TableTarget("flights", {"id": "$.id"}, key=["tail"]), "without a source: tail"),
        (
            TableTarget("flights", {"tail": "$.id"}, key=["tail"]),
            "no primary key or unique constraint on exactly tail",
        ),
    ],
)
async def test_a_target_that_does_not_fit_the_database_is_refused_when_the_sink_is_opened(
    tmp_path, target, said
):
    world = World(f"sqlite:///{tmp_path}/x.db", target)
    await world.run(TABLE)
    with pytest.raises(SettingsError, match=said):
        await world.sink.open()
    await world.__aexit__()


async def test_a_dead_letter_keeps_text_that_the_database_cannot(url):
    async with World(url) as world:
        rejection = Rejection("json", "nul \x00 and half a pair \ud800")
        dead_letter = DeadLetter(
            "flights",
            "$Default",
            event(0, b"\x00", partition_key="\x00", properties={1: {2: b"x"}}),
            rejection,
            1,
            T0,
        )
        await world.dead_letters.put([dead_letter], deadline=soon())

        [found] = [found async for found in world.dead_letters.list()]
        assert (found.rejection.detail, found.event.partition_key) == (
            "nul \\x00 and half a pair \\ud800",
            "\ufffd",
        )
        assert found.event.body == b"\x00"


async def test_an_in_memory_database_is_one_for_all_threads():
    async with World("sqlite://") as world:
        await world.claim()

        assert await world.write(flight(0)) == [WRITTEN]
        assert await world.position() == 0


@pytest.mark.parametrize("setting", ["not a url", "://", "mysterydb://x/y"])
def test_a_url_nobody_can_read_is_refused_by_its_settings_name(setting):
    with pytest.raises(SettingsError, match="TIDEMARK_SQL"):
        SqlDatabase(setting, setting="TIDEMARK_SQL")


@pytest.mark.skipif(importlib.util.find_spec("pyodbc") is not None, reason="the driver is installed")
def test_a_missing_driver_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(
        "tidemark.foundation.version.prefix", "elsewhere"
    )  # not a clone's own, which has all extras
    with pytest.raises(
        SettingsError, match=r"TIDEMARK_SQL: no driver .* pip install \. '\./cli\[azure-sql\]'"
    ):
        SqlDatabase("mssql://tidemark@server/db?driver=ODBC+Driver+18+for+SQL+Server", setting="TIDEMARK_SQL")


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mssql"])
def test_the_ddl_is_printed_for_every_database(dialect):
    text = ddl([*TABLES, EVENTS], dialect)

    assert [line.split()[2].strip('"[]') for line in text.splitlines() if line.startswith("CREATE")] == [
        "EventHubCheckpoint",
        "EventHubDeadLetter",
        "EventHubLease",
        "Events",
    ]
    assert ("DATETIME2(6)" in text) == (dialect == "mssql")
    assert text.count(";\n") == 4


class AzureSql:
    """A connection that only compiles what it is given, for Azure SQL; every statement finds one row or none."""

    def __init__(self, *, found):
        self.said = []
        self.rowcount = 1 if found else 0
        self.dialect = make_url("mssql+pyodbc://").get_dialect()(paramstyle="qmark")

    def execute(self, statement, _parameters=None):
        self.said.append(" ".join(str(statement.compile(dialect=self.dialect)).split()))
        return self

    def one_or_none(self):
        return None


def test_the_position_moves_in_azure_sql_by_one_compare_and_set():
    connection = AzureSql(found=True)
    claim = Claim("0", "a", 3)

    assert positions.advance(connection, SCOPE, claim, 6, Checkpoint("0", 9, "x")) is True
    [said] = connection.said
    assert said == (
        "UPDATE [EventHubCheckpoint] SET [SequenceNumber]=?, [Offset]=?, [Beyond]=?, [SavedAt]=SYSUTCDATETIME() WHERE "
        "[EventHubCheckpoint].[Topic] = ? AND [EventHubCheckpoint].[ConsumerGroup] = ? AND "
        "[EventHubCheckpoint].[PartitionID] = ? AND [EventHubCheckpoint].[SequenceNumber] = ? AND "
        "[EventHubCheckpoint].[OwnerEpoch] = ? AND [EventHubCheckpoint].[Owner] = ?"
    )


def test_every_statement_compiles_for_azure_sql():
    connection = AzureSql(found=False)
    positions.put(connection, SCOPE, Checkpoint("0", 9, "x"))
    dead_letters.put(
        connection, SCOPE, [DeadLetter("flights", "$Default", flight(0), Rejection("json", "x"), 1, T0)]
    )
    Upsert(EVENTS, EVENTS.c.keys(), ["Topic", "PartitionID", "SequenceNumber"], "mssql").execute(
        connection, [dict.fromkeys(EVENTS.c.keys())]
    )
    connection.execute(LEASES.select())

    assert [statement.split(" SET ")[0].split(" (")[0].split(" WHERE ")[0] for statement in connection.said][
        :-1
    ] == [
        "UPDATE [EventHubCheckpoint]",
        "INSERT INTO [EventHubCheckpoint]",
        "DELETE FROM [EventHubDeadLetter]",
        "INSERT INTO [EventHubDeadLetter]",
        "UPDATE [Events]",
        "INSERT INTO [Events]",
    ]


async def test_without_upsert_a_row_is_updated_or_inserted(tmp_path):
    async with World(f"sqlite:///{tmp_path}/x.db", events_target()) as world:
        upsert = Upsert(
            EVENTS,
            ["Topic", "PartitionID", "SequenceNumber", "EnqueuedAt", "Body"],
            ["Topic", "PartitionID", "SequenceNumber"],
            "mssql",
        )
        rows = [
            {"Topic": "t", "PartitionID": "0", "SequenceNumber": n, "EnqueuedAt": T0, "Body": {"n": i}}
            for i, n in enumerate([1, 2, 1])
        ]
        with world.database.engine.begin() as connection:
            upsert.execute(connection, rows)

        assert {row["SequenceNumber"]: row["Body"] for row in read(world, "Events")} == {
            1: {"n": 2},
            2: {"n": 1},
        }


async def test_an_empty_batch_is_nothing_and_the_lanes_are_the_partitions():
    async with World("sqlite://") as world:
        routes = await world.sink.routes()

        assert routes.lane_of(world.sink.prepare(Write(flight(0, "7")))) == "7"
        assert await world.sink.write(Batch(0, "7", ()), deadline=soon()) == []


@pytest.mark.parametrize("failure", [ValueError("no"), KeyError("x"), OverflowError("far")])
async def test_what_a_handler_raises_is_the_event_s_fault(tmp_path, failure):
    def handler(_connection, handled):
        if handled.sequence_number == 1:
            raise failure

    async with World(f"sqlite:///{tmp_path}/x.db", HandlerTarget(handler)) as world:
        await world.claim()
        results = await world.write(flight(0), flight(1), flight(2))

        assert results == [WRITTEN, (Outcome.WRITTEN, "handler"), WRITTEN]
        assert await world.dead() == [(1, "handler")]


async def test_a_handler_s_time_that_is_none_is_the_event_s_fault_and_a_lost_connection_is_not(tmp_path):
    def handler(_connection, _event):
        dt.datetime.fromtimestamp(1_700_000_000_000_000_000, dt.UTC)

    def cut(_connection, _event):
        raise ConnectionResetError("reset")

    async with World(f"sqlite:///{tmp_path}/x.db", HandlerTarget(cut)) as world:
        await world.claim()
        assert is_retry(await world.write(flight(0)))
        world.sink.target = HandlerTarget(handler)
        assert await world.write(flight(0)) == [(Outcome.WRITTEN, "handler")]


@settings(deadline=None, max_examples=80)
@given(exceptions(), st.sampled_from(["execute", "commit"]))
def test_whatever_a_driver_raises_is_no_event_s_fault(failure, where):
    """Only a handler's own errors are: a driver raises all kinds, and none of them fills the dead letters."""

    async def main(folder):
        async with World(f"sqlite:///{folder}/x.db", events_target()) as world:
            await world.claim()
            dialect = world.database.engine.dialect
            calls = (dialect, "do_commit") if where == "commit" else (world.sink.target, "write")
            original = getattr(*calls)

            def failing(*_args):
                setattr(*calls, original)
                raise failure

            setattr(*calls, failing)
            assert is_retry(await world.write(flight(0), flight(1)))
            assert await world.write(flight(0), flight(1)) == [WRITTEN] * 2
            assert await world.dead() == []

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))


def change(number, operation=Operation.UPSERT, **document):
    return Write(event(number, json.dumps({"id": "a", **document}).encode()), operation=operation)


UPSERT, CREATE, DELETE = Operation.UPSERT, Operation.CREATE, Operation.DELETE
OPERATIONS = {
    "a create leaves a row as it is": ("", [change(0, CREATE, v=1), change(1, CREATE, v=2)], {"a": 1}),
    "a delete removes the row, or nothing": (
        "",
        [change(0, v=1), change(1, id="b", v=1), change(2, DELETE), change(3, DELETE, id="c")],
        {"b": 1},
    ),
    "operations of one batch are carried out in their order": (
        "",
        [change(0, DELETE), change(1, v=1), change(2, DELETE), change(3, v=3), change(4, v=4)],
        {"a": 4},
    ),
    "under the guard only a larger value changes a row": (
        "v",
        [change(0, v=5), change(1, v=4), change(2, v=5, other=1), change(3, DELETE, v=5), change(4, v=6)],
        {"a": 6},
    ),
    "under the guard a later delete removes the row": ("v", [change(0, v=5), change(1, DELETE, v=6)], {}),
    "under the guard an event without a value is a dead letter": ("v", [change(0, v=5), change(1)], {"a": 5}),
}


@pytest.mark.parametrize("dialect", ["own", "azure"])
@pytest.mark.parametrize("story", OPERATIONS)
async def test_what_an_operation_does_to_a_row(url, story, dialect):
    guard, writes, expected = OPERATIONS[story]
    target = TableTarget("kept", {"id": "$.id", "v": "$.v", "other": "$.other"}, key=["id"], guard=guard)
    table = "CREATE TABLE kept (id VARCHAR(9) PRIMARY KEY, v BIGINT, other BIGINT)"
    async with World(url, target, table=table) as world:
        if dialect == "azure":  # without an upsert of its own; the statements as such run anywhere
            reflected = Table("kept", MetaData(), autoload_with=world.database.engine)
            target._statement = Upsert(reflected, target._sources, ["id"], "mssql", guard)
        await world.claim()
        await world.write_records(*map(world.sink.prepare, writes))

        assert {row["id"]: row["v"] for row in read(world, "kept")} == expected
        assert [reason for _, reason in await world.dead()] == (
            ["version"] if "without a value" in story else []
        )


async def test_a_row_from_before_the_guard_has_no_value_and_is_replaced(url):
    target = TableTarget("kept", {"id": "$.id", "v": "$.v"}, key=["id"], guard="v")
    table = "CREATE TABLE kept (id VARCHAR(9) PRIMARY KEY, v BIGINT); INSERT INTO kept (id) VALUES ('a')"
    async with World(url, target, table=table) as world:
        await world.claim()
        await world.write_records(world.sink.prepare(change(0, v=1)))

        assert [row["v"] for row in read(world, "kept")] == [1]


async def test_an_empty_body_deletes_the_row_of_the_events_key(url):
    target = TableTarget("kept", {"id": "@partition_key", "v": "$.v"}, key=["id"])
    async with World(url, target, table="CREATE TABLE kept (id VARCHAR(9) PRIMARY KEY, v BIGINT)") as world:
        world.sink.writing = WriteOptions(empty="delete")
        await world.claim()
        first, empty, keyless = (
            structs.replace(event(n, body), partition_key=key)
            for n, body, key in [(0, b'{"v":1}', "a"), (1, b"", "a"), (2, b"", None)]
        )
        await world.write_records(*(world.sink.prepare(Write(each)) for each in (first, empty, keyless)))

        assert read(world, "kept") == []


@pytest.mark.parametrize("operation", [Operation.REPLACE, Operation.PATCH])
async def test_an_operation_without_a_meaning_for_rows_is_a_dead_letter_that_says_so(url, operation):
    target = TableTarget("kept", {"id": "$.id"}, key=["id"])
    async with World(url, target, table="CREATE TABLE kept (id VARCHAR(9) PRIMARY KEY)") as world:
        record = world.sink.prepare(change(0, operation))

        assert record.rejection.reason == "operation"
        assert "create, delete, upsert" in record.rejection.detail


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"guard": "v"}, "name a table and its key"),
        ({"operation": "delete"}, "name a table and its key"),
        ({"handler": "json:loads", "operation_from": "/op"}, "name a table and its key"),
        (
            {"table": "t", "columns": {"id": "$.id"}, "key": ("id",), "operation": "patch"},
            "no meaning for rows",
        ),
        ({"table": "t", "columns": {"id": "$.id"}, "key": ("id",), "operation": "merge"}, "accepted: upsert"),
        ({"table": "t", "columns": {"id": "$.id"}, "key": ("id",), "guard": "v"}, "a column with a source"),
        ({"table": "t", "columns": {"id": "$.id"}, "key": ("id",), "guard": "id"}, "beside the key"),
        (
            {"table": "t", "columns": {"id": "$.id", "o": "@offset"}, "key": ("id",), "guard": "o"},
            "does not grow",
        ),
    ],
)
def test_options_of_operations_that_mean_nothing_are_refused(options, said):
    with pytest.raises(SettingsError, match=said):
        target_of(SqlOptions(**options)) and writing_of(SqlOptions(**options))


async def test_a_guard_of_sequence_numbers_is_refused_in_a_hub_that_was_created_anew(url):
    target = TableTarget("kept", {"id": "$.id", "n": "@sequence_number"}, key=["id"], guard="n")
    async with World(url, target, table="CREATE TABLE kept (id VARCHAR(9) PRIMARY KEY, n BIGINT)"):
        target.check("")
        with pytest.raises(SettingsError, match="@enqueued_at"):
            target.check("1764165000123")


def test_the_statements_of_operations_compile_for_azure_sql():
    connection = AzureSql(found=True)
    key = ["Topic", "PartitionID", "SequenceNumber"]
    row = parameters(dict.fromkeys(EVENTS.c.keys()), key)
    connection.execute(deletion(EVENTS, key, "EnqueuedAt"), [row])
    connection.execute(creation(EVENTS, EVENTS.c.keys(), key), [row])

    assert connection.said[0].startswith("DELETE FROM [Events] WHERE [Events].[Topic] = ?")
    assert "([Events].[EnqueuedAt] IS NULL OR [Events].[EnqueuedAt] < ?)" in connection.said[0]
    assert "WHERE NOT (EXISTS (SELECT 1" in " ".join(connection.said[1].split())
