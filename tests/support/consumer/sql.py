"""A consumer's side of an SQL database: claims, batches of events, and what is in the tables afterwards."""

import asyncio
import contextlib
import itertools
import json

import msgspec
import psycopg
from sqlalchemy import text

from consumer.model import Batch, Event, Outcome, Stream, Write
from consumer.sinks.sql.targets import TableTarget, events_target
from consumer.sinks.sql.transactional import SqlTransactionalSink
from consumer.stores.sql.checkpoints import SqlCheckpointStore
from consumer.stores.sql.dead_letters import SqlDeadLetterStore
from consumer.stores.sql.tables import TABLES
from tidemark.foundation.sql.database import SqlDatabase

SCOPE = Stream("acme.servicebus.windows.net", "flights", "$Default")
T0 = 1_795_000_000.5
BATCHES = itertools.count()


def soon(seconds=30.0):
    return asyncio.get_running_loop().time() + seconds


def flight(sequence_number, partition="0", **fields):
    body = {"carrier": "UA", "number": sequence_number, **fields}
    return event(sequence_number, json.dumps(body).encode(), partition)


def event(sequence_number, body, partition="0", **more):
    return Event(partition, sequence_number, f"o{sequence_number}", T0, body, **more)


FLIGHTS = TableTarget("flights", {"carrier": "$.carrier", "number": "$.number", "seq": "@sequence_number"})
"""Without a key: an event that is written twice is two rows, for all to see."""


class World:
    """One database with a checkpoint store, a letter store and a sink; `table` is made before the sink is opened."""

    def __init__(self, url, target=None, *, table=None, clock=lambda: T0):
        self.database = SqlDatabase(url, create_tables=True, tables=TABLES)
        self.store = SqlCheckpointStore(self.database, SCOPE)
        self.dead_letters = SqlDeadLetterStore(self.database, SCOPE)
        self.sink = SqlTransactionalSink(self.database, SCOPE, target or events_target(), clock=clock)
        self._table = table

    async def __aenter__(self):
        if self._table:
            await self.run(*self._table.split(";"))
        await self.sink.open()
        return self

    async def __aexit__(self, *_):
        await self.sink.aclose()
        await self.dead_letters.aclose()
        await self.store.aclose()

    async def run(self, *statements):
        def execute(connection):
            for statement in statements:
                found = connection.execute(text(statement))
            return [tuple(row) for row in found] if found.returns_rows else None

        return await self.database.transact(execute)

    async def claim(self, owner="a", partition="0", sink=None):
        claim = await self.store.claim(partition, owner, deadline=soon())
        (sink or self.sink).attach(claim)
        return claim

    async def write(self, *events, sink=None, deadline=None):
        """The results' (outcome, reason), one per event."""
        records = [(sink or self.sink).prepare(Write(each)) for each in events]
        return await self.write_records(*records, sink=sink, deadline=deadline)

    async def write_records(self, *records, sink=None, deadline=None):
        results = await self.sink_results(records, sink or self.sink, deadline)
        return [(result.outcome, result.reason) for result in results]

    async def sink_results(self, records, sink, deadline=None):
        batch = Batch(next(BATCHES), records[0].event.partition, tuple(records))
        return await sink.write(batch, deadline=deadline or soon())

    async def position(self, partition="0"):
        found = (await self.store.load_all(deadline=soon())).get(partition)
        return None if found is None else found.sequence_number

    async def dead(self):
        """Sequence number and reason of every letter."""
        return [
            (dead_letter.event.sequence_number, dead_letter.rejection.reason)
            async for dead_letter in self.dead_letters.list()
        ]

    async def written(self, column="seq", table="flights"):
        return sorted(row[0] for row in await self.run(f"SELECT {column} FROM {table}"))


WRITTEN = (Outcome.WRITTEN, "")


def is_retry(results):
    return {outcome for outcome, _ in results} == {Outcome.RETRY}


@contextlib.contextmanager
def next_commit(world, when):
    """The next commit's connection is cut, `before` it is sent or `after` the server has carried it out. On
    PostgreSQL the server's process really is ended.
    """
    dialect = world.database.engine.dialect
    commit = dialect.do_commit

    def cut(connection):
        dialect.do_commit = commit
        if when == "after":
            commit(connection)
        if world.database.dialect == "postgresql":
            _end(world, connection.driver_connection.info.backend_pid)
            connection.driver_connection.execute("SELECT 1")  # raises: nobody is there any more
        raise dialect.dbapi.OperationalError("the connection was lost")

    dialect.do_commit = cut
    try:
        yield
    finally:
        dialect.do_commit = commit


def _end(world, pid):
    with admin(world) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


@contextlib.contextmanager
def admin(world):
    """A psycopg connection of its own, autocommitting, to the world's database."""
    url = world.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def replaced(claim, **fields):
    return msgspec.structs.replace(claim, **fields)
