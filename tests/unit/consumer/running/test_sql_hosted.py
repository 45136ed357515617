"""Next starts with the SQL sink, on SQLite: behind the trigger, with tables of one's own, and with tables of an older version."""

import msgspec
import pytest
from sqlalchemy import text

from consumer.config import ConsumerConfig, SinkKind
from consumer.errors import PositionError
from consumer.mapping.preparing import Preparation
from consumer.model import Checkpoint, Claim, Origin, Write
from consumer.options import OnDistrust, PositionPolicy
from consumer.running.hosted import HostedConsumer
from consumer.sinks.sql.targets import TableTarget, events_target
from consumer.sinks.sql.transactional import SqlTransactionalSink
from consumer.stores.sql.checkpoints import SqlCheckpointStore
from consumer.stores.sql.dead_letters import SqlDeadLetterStore
from consumer.stores.sql.tables import TABLES
from tests.support.consumer.next_starts import Hub, Receiver
from tests.support.consumer.sql import SCOPE, flight, soon
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sql.database import SqlDatabase
from tidemark.foundation.tracing.spans import NO_SPANS


class Parts:
    """Parts on one SQLite file, as a host starts them; `created_at` makes another hub."""

    def __init__(self, folder):
        self.url, self.is_away = f"sqlite:///{folder}/tidemark.db", False
        self.hub = Hub(1_795_000_000.0, 1)

    def start(self, **policy):
        self.database = SqlDatabase(self.url, tables=TABLES)
        config = ConsumerConfig("flights", sink=SinkKind.SQL, policy=PositionPolicy(**policy))
        return HostedConsumer(config, {}, self._made)

    def _made(self, config, settings):
        self.config, self.settings = config, settings
        return self

    def sink(self):
        return SqlTransactionalSink(self.database, SCOPE, events_target())

    def preparation(self, sink):
        return Preparation(sink.prepare)

    def checkpoints(self):
        return SqlCheckpointStore(self.database, SCOPE)

    def spans(self):
        return NO_SPANS

    def parked_untried(self, *, behind_trigger):
        return ()

    def dead_letters(self):
        return SqlDeadLetterStore(self.database, SCOPE)

    def receiver(self):
        return Receiver(self)

    def send(self, count, body=None):
        first = len(self.hub.logs["0"])
        self.hub.send("0", count, 1_795_000_001.0)
        return [
            msgspec.structs.replace(self.hub.event("0", n), body=body or self.hub.event("0", n).body)
            for n in range(first, first + count)
        ]

    def rows(self, table="Events"):
        with self.database.engine.connect() as connection:
            query = text(f'SELECT "PartitionID", "SequenceNumber" FROM "{table}" ORDER BY 1, 2')
            return [tuple(row) for row in connection.execute(query)]


async def test_a_trigger_with_the_sql_sink_refuses_a_hub_created_anew_and_then_writes_beside_the_old_rows(
    tmp_path,
):
    parts = Parts(tmp_path)
    hosted = parts.start()
    await hosted.settle("0", parts.send(20), deadline=soon())
    await hosted.settle("0", parts.send(1, b"poison"), deadline=soon())
    parts.hub = Hub(1_795_000_777.5, 1)
    batch = parts.send(10)
    for _ in range(2):
        with pytest.raises(PositionError, match="CONSUMER_ON_FOREIGN_CHECKPOINT"):
            await hosted.settle("0", batch, deadline=soon())
    await hosted.aclose()

    hosted = parts.start(on_foreign_checkpoint=OnDistrust.EARLIEST)
    await hosted.settle("0", batch, deadline=soon())
    await hosted.settle("0", parts.send(1, b"poison"), deadline=soon())

    old, new = "0", "0@1795000777500"
    assert parts.rows() == [(old, n) for n in range(20)] + [(new, n) for n in range(10)]
    assert parts.rows("EventHubDeadLetter") == [(old, 20), (new, 10)]
    await hosted.aclose()


async def test_tables_of_an_older_version_get_their_new_column_where_the_consumer_may_else_its_statement_is_told(
    tmp_path,
):
    url = f"sqlite:///{tmp_path}/tidemark.db"
    store = SqlCheckpointStore(SqlDatabase(url, tables=TABLES), SCOPE)
    await store.put(Checkpoint("0", 7, "o7"), deadline=soon())
    await store.aclose()
    old = SqlDatabase(url)
    with old.engine.begin() as connection:
        connection.execute(text('ALTER TABLE "EventHubCheckpoint" DROP COLUMN "Origin"'))
    old.engine.dispose()

    store = SqlCheckpointStore(SqlDatabase(url, tables=TABLES, create_tables=False), SCOPE)
    with pytest.raises(SettingsError, match='ALTER TABLE "EventHubCheckpoint" ADD "Origin" TEXT'):
        await store.load_all(deadline=soon())
    await store.aclose()
    store = SqlCheckpointStore(SqlDatabase(url, tables=TABLES), SCOPE)
    found = (await store.load_all(deadline=soon()))["0"]
    await store.aclose()

    assert (found.sequence_number, found.origin) == (7, Origin())


KEYED = 'CREATE TABLE t ("p" {kind}, "n" bigint, "i" varchar(20), PRIMARY KEY ("p", "n", "i"))'
NUMBERED = {"p": "@partition", "n": "@sequence_number"}


@pytest.mark.parametrize(
    ("kind", "columns", "stored"),
    [
        ("varchar(40)", {**NUMBERED, "i": "@topic"}, [("0",), ("0@77",)]),
        ("bigint", {**NUMBERED, "i": "@incarnation"}, [("",), ("77",)]),
        ("bigint", {**NUMBERED, "i": "@topic"}, "with the source @incarnation"),
        ("varchar(4)", {**NUMBERED, "i": "@topic"}, "takes 4 characters.*alter it to VARCHAR"),
        ("varchar(4)", {**NUMBERED, "i": "@incarnation"}, [("",), ("77",)]),
    ],
)
async def test_a_table_keyed_by_positions_tells_hubs_of_one_name_apart_or_is_refused(
    tmp_path, kind, columns, stored
):
    database = SqlDatabase(f"sqlite:///{tmp_path}/tidemark.db", tables=TABLES)
    with database.engine.begin() as connection:
        connection.execute(text(KEYED.format(kind=kind)))
    store = SqlCheckpointStore(database, SCOPE)
    sink = SqlTransactionalSink(database, SCOPE, TableTarget("t", columns, key=("p", "n", "i")))
    await sink.open()
    try:
        sink.attach(Claim("0", "a", 1))
        claim = Claim("0", "a", 1, Checkpoint("0", -1, "", origin=Origin(77, 1, "77")))
        if isinstance(stored, str):
            with pytest.raises(SettingsError, match=stored):
                sink.attach(claim)
            return
        sink.attach(claim)
        name = next(
            name
            for name, source in columns.items()
            if source == ("@incarnation" if columns["i"] == "@incarnation" else "@partition")
        )
        with database.engine.begin() as connection:
            for incarnation in ("", "77"):
                record = sink.prepare(Write(msgspec.structs.replace(flight(5), incarnation=incarnation)))
                sink.target.write(connection, [record])
            assert list(connection.execute(text(f'SELECT "{name}" FROM t ORDER BY 1'))) == stored
    finally:
        await sink.aclose()
        await store.aclose()
