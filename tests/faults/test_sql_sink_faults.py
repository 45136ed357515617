"""Faults of the transactional SQL sink, on SQLite and on PostgreSQL: every event has its effect exactly once."""

import asyncio
import contextlib
import json
import threading
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy import exc, text
from sqlalchemy.exc import SQLAlchemyError

from consumer.errors import FencedError
from consumer.model import Checkpoint
from consumer.sinks.sql.statements import Upsert
from consumer.sinks.sql.targets import HandlerTarget, TableTarget
from consumer.sinks.sql.transactional import SqlTransactionalSink
from consumer.stores.sql.checkpoints import SqlCheckpointStore
from consumer.stores.sql.tables import EVENTS, TABLES
from tests.support.consumer.sql import (
    FLIGHTS,
    SCOPE,
    WRITTEN,
    World,
    admin,
    event,
    flight,
    is_retry,
    next_commit,
    replaced,
    soon,
)
from tests.support.servers.postgres import new_database
from tests.support.waiting import until
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.sql.database import SqlDatabase

TABLE = "CREATE TABLE flights (carrier VARCHAR(3) NOT NULL, number INTEGER CHECK (number < 1000), seq BIGINT)"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.wire)])
def url(request, tmp_path):
    """URL of an empty database; PostgreSQL is started outside the loop."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tidemark.db"
    return new_database(request.getfixturevalue("postgres"))


@pytest.fixture
def postgres_url(postgres):
    return new_database(postgres)


@pytest.fixture
async def world(url):
    async with World(url, FLIGHTS, table=TABLE) as world:
        yield world


async def test_a_connection_cut_before_the_commit_writes_nothing_and_the_retry_writes_once(world):
    await world.claim()
    with next_commit(world, "before"):
        results = await world.write(flight(0), flight(1))

    assert is_retry(results)
    assert await world.position() is None
    assert await world.write(flight(0), flight(1)) == [WRITTEN] * 2
    assert await world.written() == [0, 1]


async def test_a_commit_whose_answer_was_lost_is_recognized_and_not_written_twice(world):
    await world.claim()
    with next_commit(world, "after"):
        results = await world.write(flight(0), flight(1))

    assert is_retry(results)
    assert await world.position() == 1
    assert await world.write(flight(0), flight(1)) == [WRITTEN] * 2
    assert await world.written() == [0, 1]


async def test_a_violated_constraint_makes_one_dead_letter_and_the_rest_is_committed(world):
    await world.claim()

    results = await world.write(
        flight(0), flight(1, number=5000), flight(2), flight(3, carrier=None), flight(4)
    )

    assert results == [WRITTEN, ("written", "constraint"), WRITTEN, ("written", "constraint"), WRITTEN]
    assert await world.written() == [0, 2, 4]
    assert await world.dead() == [(1, "constraint"), (3, "constraint")]
    assert await world.position() == 4


async def test_a_dead_letter_has_the_body_the_cause_and_the_attempts(world):
    await world.claim()
    with next_commit(world, "before"):
        await world.write(flight(0, number=5000))
    await world.write(flight(0, number=5000))

    [dead_letter] = [found async for found in world.dead_letters.list()]

    assert dead_letter.event == flight(0, number=5000)
    assert "number" in dead_letter.rejection.detail
    assert "INSERT" not in dead_letter.rejection.detail
    assert dead_letter.attempts == 2


async def test_unreadable_events_become_dead_letters_in_the_same_transaction(world):
    await world.claim()
    with next_commit(world, "before"):
        await world.write(flight(0), event(1, b"{no json"))

    assert (await world.dead(), await world.position()) == ([], None)

    results = await world.write(flight(0), event(1, b"{no json"), flight(2))

    assert results == [WRITTEN, ("written", "json"), WRITTEN]
    assert await world.dead() == [(1, "json")]
    assert await world.written() == [0, 2]


async def test_an_event_rejected_again_after_a_rewind_replaces_its_letter(world):
    await world.claim()
    await world.write(event(0, b"poison"), flight(1))
    await world.store.put(
        replaced((await world.store.load_all(deadline=soon()))["0"], sequence_number=-1), deadline=soon()
    )
    await world.claim()

    assert await world.write(event(0, b"poison")) == [("written", "json")]
    assert await world.dead() == [(0, "json")]


async def test_a_zombie_is_fenced_and_writes_nothing(world):
    await world.claim("zombie")
    await world.write(flight(0))
    other = SqlTransactionalSink(world.database, SCOPE, FLIGHTS)
    await world.claim("heir", sink=other)

    with pytest.raises(FencedError, match="'heir'"):
        await world.write(flight(1), event(2, b"poison"))

    assert await world.write(flight(1), sink=other) == [WRITTEN]
    assert (await world.written(), await world.dead(), await world.position()) == ([0, 1], [], 1)
    await other.aclose()


async def test_a_zombie_is_fenced_although_the_heir_has_written_the_same_events(world):
    await world.claim("zombie")
    other = SqlTransactionalSink(world.database, SCOPE, FLIGHTS)
    await world.claim("heir", sink=other)
    await world.write(flight(0), flight(1), sink=other)

    with pytest.raises(FencedError):
        await world.write(flight(0))

    assert await world.written() == [0, 1]
    await other.aclose()


async def test_of_two_consumers_that_write_one_partition_under_one_claim_one_commits(world):
    claim = await world.claim()
    others = [SqlTransactionalSink(world.database, SCOPE, FLIGHTS) for _ in range(3)]
    for other in others:
        other.attach(claim)

    outcomes = await asyncio.gather(
        *(world.write(flight(0), flight(1), sink=s) for s in (world.sink, *others))
    )

    assert outcomes == [[WRITTEN] * 2] * 4
    assert await world.written() == [0, 1]
    for other in others:
        await other.aclose()


async def test_events_up_to_the_position_are_skipped(world):
    await world.claim()
    await world.write(flight(0), flight(1))

    assert await world.write(flight(0), flight(1)) == [WRITTEN] * 2
    assert await world.write(flight(1), flight(2)) == [WRITTEN] * 2
    assert await world.written() == [0, 1, 2]


async def test_events_settled_beyond_the_position_are_skipped_and_stay_known(world):
    claim = await world.claim("cosmos")
    before = replaced((await world.store.claim("0", "x", deadline=soon())), checkpoint=None)
    assert before.epoch > claim.epoch
    await world.store.save(before, Checkpoint("0", 1, "o1", ((3, 4), (9, 9))), deadline=soon())
    await world.claim()

    await world.write(*(flight(n) for n in range(2, 7)))

    assert await world.written() == [2, 5, 6]
    assert (await world.store.load_all(deadline=soon()))["0"].beyond == ((9, 9),)


async def test_a_later_batch_never_steps_over_an_unsettled_one(world):
    await world.claim()
    with next_commit(world, "before"):
        await world.write(flight(0), flight(1))

    assert is_retry(await world.write(flight(2), flight(3)))
    assert await world.write(flight(0), flight(1)) == [WRITTEN] * 2
    assert await world.write(flight(2), flight(3)) == [WRITTEN] * 2
    assert await world.written() == [0, 1, 2, 3]


async def test_commits_that_the_database_lost_make_the_partition_be_read_again(world):
    await world.claim()
    await world.write(flight(0), flight(1))
    await world.run(
        'UPDATE "EventHubCheckpoint" SET "SequenceNumber" = 0', "DELETE FROM flights WHERE seq = 1"
    )

    with pytest.raises(FencedError, match="lost commits"):
        await world.write(flight(2))

    assert (await world.claim()).checkpoint.sequence_number == 0
    await world.write(flight(1), flight(2))
    assert await world.written() == [0, 1, 2]


async def test_a_partition_that_is_not_attached_or_was_detached_is_not_written(world):
    with pytest.raises(FencedError, match="not attached"):
        await world.write(flight(0))
    await world.claim()
    world.sink.detach("0")
    with pytest.raises(FencedError, match="not attached"):
        await world.write(flight(0))


async def test_a_claim_of_another_store_is_refused(world):
    claim = await world.claim()
    world.sink.attach(replaced(claim, partition="7"))

    with pytest.raises(FencedError, match="no row in EventHubCheckpoint"):
        await world.write(flight(0, "7"))


async def test_a_missing_target_table_at_run_time_is_retried_and_drains_nothing_into_the_letters(world):
    await world.claim()
    await world.run("ALTER TABLE flights RENAME TO away")
    results = await world.write(flight(0))

    assert is_retry(results)
    assert "flights" in results[0][1]
    assert await world.dead() == []
    await world.run("ALTER TABLE away RENAME TO flights")
    assert await world.write(flight(0)) == [WRITTEN]


def held_up():
    """A handler that writes a row once it is let go on: events for its beginning and for that, and itself."""
    entered, leave = threading.Event(), threading.Event()

    def slow(connection, e):
        entered.set()
        leave.wait(30)
        connection.execute(
            text("INSERT INTO flights (carrier, seq) VALUES ('UA', :seq)"), {"seq": e.sequence_number}
        )

    return entered, leave, slow


async def test_after_the_deadline_the_outcome_is_unknown_and_the_next_write_finds_it_out(url):
    entered, leave, slow = held_up()

    async with World(url, HandlerTarget(slow), table=TABLE) as world:
        await world.claim()
        first = asyncio.create_task(world.write(flight(0), deadline=soon(0.05)))
        results = await first
        assert entered.is_set()
        assert is_retry(results)
        assert is_retry(await world.write(flight(0), deadline=soon(0.05)))
        leave.set()

        assert await world.write(flight(0)) == [WRITTEN]
        assert await world.written() == [0]


async def test_a_cancelled_write_leaves_no_half_and_no_double(url):
    entered, leave, slow = held_up()

    async with World(url, HandlerTarget(slow), table=TABLE) as world:
        await world.claim()
        writing = asyncio.create_task(world.write(flight(0)))
        await until(entered.is_set)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        leave.set()

        assert await world.write(flight(0), flight(1)) == [WRITTEN] * 2
        assert await world.written() == [0, 1]


# ----- the user's handler


def insert_flight(connection, e):
    connection.execute(
        text("INSERT INTO flights (carrier, seq) VALUES ('UA', :seq)"), {"seq": e.sequence_number}
    )


async def test_a_handlers_exception_makes_a_dead_letter_and_undoes_what_it_did(url):
    def picky(connection, e):
        insert_flight(connection, e)
        if e.body == b"bad":
            raise LookupError("no such airport")

    async with World(url, HandlerTarget(picky), table=TABLE) as world:
        await world.claim()

        assert await world.write(event(0, b"x"), event(1, b"bad"), event(2, b"x")) == [
            WRITTEN,
            ("written", "handler"),
            WRITTEN,
        ]
        assert await world.written() == [0, 2]
        [dead_letter] = [found async for found in world.dead_letters.list()]
        assert dead_letter.rejection.detail == "LookupError: no such airport"


@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_a_handler_that_catches_an_error_of_the_database_loses_nothing(url, bad):
    def careless(connection, e):
        insert_flight(connection, e)
        if e.sequence_number == bad:
            with contextlib.suppress(SQLAlchemyError):
                connection.execute(text("INSERT INTO flights (carrier) VALUES (NULL)"))

    async with World(url, HandlerTarget(careless), table=TABLE) as world:
        await world.claim()
        await world.write(event(0, b"x"), event(1, b"x"), event(2, b"x"))

        assert await world.position() == 2
        written, dead = await world.written(), [number for number, _ in await world.dead()]
        assert sorted(written + dead) == [0, 1, 2]
        assert dead in ([], [bad])  # SQLite goes on after an error, PostgreSQL does not


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_handler_that_ends_the_transaction_becomes_a_dead_letter(url, end):
    def eager(connection, e):
        insert_flight(connection, e)
        if e.sequence_number == 1:
            getattr(connection, end)()

    async with World(url, HandlerTarget(eager), table=TABLE) as world:
        await world.claim()

        assert await world.write(event(0, b"x"), event(1, b"x"), event(2, b"x")) == [
            WRITTEN,
            ("written", "handler"),
            WRITTEN,
        ]
        assert (await world.written(), await world.dead()) == ([0, 2], [(1, "handler")])


async def test_a_handlers_network_error_is_retried(url):
    fails = [True]

    def calls_out(connection, e):
        insert_flight(connection, e)
        if fails.pop():
            raise ConnectionResetError("the geocoder is away")
        fails.append(False)

    async with World(url, HandlerTarget(calls_out), table=TABLE) as world:
        await world.claim()
        assert is_retry(await world.write(event(0, b"x")))
        fails.append(False)
        assert await world.write(event(0, b"x")) == [WRITTEN]
        assert await world.written() == [0]


# ----- PostgreSQL alone


@pytest.mark.wire
@pytest.mark.parametrize("state", ["40001", "40P01", "53100", "57014", "55P03"])
async def test_errors_that_trying_again_may_cure_are_retried_whole(postgres_url, state):
    broken = [True]

    def handler(connection, e):
        insert_flight(connection, e)
        if e.sequence_number == 1 and broken:
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$"))

    async with World(postgres_url, HandlerTarget(handler), table=TABLE) as world:
        await world.claim()
        assert is_retry(await world.write(flight(0), flight(1), flight(2)))
        assert (await world.written(), await world.dead()) == ([], [])
        broken.clear()
        assert await world.write(flight(0), flight(1), flight(2)) == [WRITTEN] * 3
        assert await world.written() == [0, 1, 2]


@pytest.mark.wire
async def test_the_victim_of_a_real_deadlock_is_retried(postgres_url):
    table = (
        f"{TABLE}; CREATE TABLE seats (id INTEGER, taken INTEGER); INSERT INTO seats VALUES (1, 0), (2, 0)"
    )
    rivals = []

    def handler(connection, e):
        insert_flight(connection, e)
        connection.execute(text("UPDATE seats SET taken = taken + 1 WHERE id = 1"))
        if not rivals:
            rivals.append(threading.Thread(target=wants_both))
            rivals[0].start()
            while not connection.execute(
                text("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")
            ).scalar():
                pass
        connection.execute(text("UPDATE seats SET taken = taken + 1 WHERE id = 2"))

    def wants_both():
        with admin(world) as connection:
            connection.execute("SET deadlock_timeout = '20s'")  # so that the sink is the one who notices
            with connection.transaction():
                connection.execute("UPDATE seats SET taken = taken + 1 WHERE id = 2")
                connection.execute("UPDATE seats SET taken = taken + 1 WHERE id = 1")

    async with World(postgres_url, HandlerTarget(handler), table=table) as world:
        await world.claim()
        results = await world.write(flight(0))
        rivals[0].join()

        assert is_retry(results)
        assert "deadlock" in results[0][1]
        assert await world.write(flight(0)) == [WRITTEN]
        assert await world.run("SELECT taken FROM seats ORDER BY id") == [(2,), (2,)]


@pytest.mark.wire
async def test_a_claim_waits_for_the_former_owners_open_transaction_and_sees_its_position(postgres_url):
    entered, leave = threading.Event(), threading.Event()

    def slow(connection, e):
        insert_flight(connection, e)
        entered.set()
        leave.wait(30)

    async with World(postgres_url, HandlerTarget(slow), table=TABLE) as world:
        await world.claim("former")
        writing = asyncio.create_task(world.write(flight(0)))
        await until(entered.is_set)
        claiming = asyncio.create_task(world.store.claim("0", "heir", deadline=soon()))
        with admin(world) as connection:
            await until(lambda: connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())
        assert not claiming.done()
        leave.set()

        assert await writing == [WRITTEN]
        assert (await claiming).checkpoint.sequence_number == 0


@pytest.mark.wire
async def test_a_deferred_constraint_makes_one_dead_letter(postgres_url):
    table = (
        "CREATE TABLE airlines (carrier VARCHAR(3) PRIMARY KEY); INSERT INTO airlines VALUES ('UA');"
        "CREATE TABLE flights (carrier VARCHAR(3) REFERENCES airlines DEFERRABLE INITIALLY DEFERRED, number INTEGER, "
        "seq BIGINT)"
    )
    async with World(postgres_url, FLIGHTS, table=table) as world:
        await world.claim()
        await world.write(flight(0), flight(1, carrier="XX"), flight(2))

        assert (await world.written(), await world.dead()) == ([0, 2], [(1, "constraint")])


@pytest.mark.wire
async def test_values_that_do_not_fit_their_column_become_dead_letters(postgres_url):
    async with World(postgres_url, FLIGHTS, table=TABLE) as world:
        await world.claim()
        results = await world.write(
            flight(0),
            flight(1, carrier="much too long"),
            flight(2, number="no number"),
            flight(3, carrier="\x00"),
            flight(4, number=2**40),
            flight(5, number={"a": 1}),
            flight(6, number=2**70),
            flight(7, number=True),
        )

        assert [number for number, _ in await world.dead()] == [1, 2, 3, 4, 5, 6]
        assert await world.written() == [0, 7]
        assert results[0] == results[7] == WRITTEN


@pytest.mark.wire
@pytest.mark.parametrize(
    ("kind", "good", "bad"), [("INET", "::1", 5), ("BOOLEAN", True, 1.5), ("DATE[]", None, "x")]
)
async def test_a_value_of_another_type_than_its_column_is_the_events_fault(postgres_url, kind, good, bad):
    async with World(
        postgres_url, FLIGHTS, table=f"CREATE TABLE flights (carrier TEXT, number {kind}, seq BIGINT)"
    ) as world:
        await world.claim()
        await world.write(flight(0, number=good), flight(1, number=bad), flight(2, number=good))

        assert (await world.written(), await world.dead()) == ([0, 2], [(1, "value")])


@pytest.mark.wire
async def test_a_triggers_refusal_becomes_a_dead_letter(postgres_url):
    async with World(postgres_url, FLIGHTS, table=TABLE) as world:
        await world.run(
            "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN IF NEW.seq = 1 THEN RAISE EXCEPTION 'odd'; END IF; "
            "RETURN NEW; END $$ LANGUAGE plpgsql",
            "CREATE TRIGGER refuse BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        await world.claim()
        await world.write(flight(0), flight(1), flight(2))

        assert (await world.written(), await world.dead()) == ([0, 2], [(1, "constraint")])


# ----- errors that no list knows


NEW_COLUMN = "ALTER TABLE flights ADD gate INT NOT NULL DEFAULT 0;ALTER TABLE flights ALTER gate DROP DEFAULT"
NUMBERS = TableTarget("flights", {"n": "$.n", "seq": "@sequence_number"})
REFUSING = (
    "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN IF NEW.seq = 1 THEN RAISE EXCEPTION 'odd' "
    "USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$ LANGUAGE plpgsql"
)
FOR_EACH_ROW = " ON flights {deferred} FOR EACH ROW EXECUTE FUNCTION refuse()"
REFERRING = "ALTER TABLE flights ADD CONSTRAINT c FOREIGN KEY (n) REFERENCES known NOT VALID"
CLOSED = (
    "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'closed' ? END $$ LANGUAGE plpgsql"
)
LONG = "".join(f"{chr(33 + i * 7919 % 90)}{i}" for i in range(9000))


async def settle(world, *events):
    """The results of the first attempt that decides; the second one does at the latest."""
    for _ in range(2):
        results = await world.write(*events)
        if not is_retry(results):
            break
    return results


def numbers(*values):
    return [event(seq, json.dumps({"n": value}).encode()) for seq, value in enumerate(values)]


async def test_a_number_beyond_64_bits_is_the_events_fault_also_alone(url):
    async with World(url, NUMBERS, table="CREATE TABLE flights (n BIGINT, seq BIGINT)") as world:
        await world.claim()
        assert await world.write(*numbers(1, 2**63, 3)) == [WRITTEN, ("written", "value"), WRITTEN]
        assert await world.write(event(3, b'{"n": 9223372036854775808}')) == [("written", "value")]

        assert (await world.written(), await world.dead()) == ([0, 2], [(1, "value"), (3, "value")])


@pytest.mark.wire
@pytest.mark.parametrize(
    ("column", "more", "bad", "reason"),
    [
        ("n BIGINT", "", True, "value"),  # 42846
        ("n UUID", "", 5, "value"),
        ("n JSONB", "", "\x00", "value"),  # 22P05
        ("n TEXT", "CREATE INDEX ON flights (n)", LONG, "refused"),  # 54000
        ("n BIGINT CHECK (n > 0)", "", -1, "constraint"),
        *(
            ("n BIGINT", f"{REFUSING}|CREATE TRIGGER t BEFORE INSERT{FOR_EACH_ROW}", state, "refused")
            for state in ("45000", "XX000", "0A000", "42501", "21000", "54001", "55000")
        ),
        (
            "n BIGINT",
            f"{REFUSING}|CREATE CONSTRAINT TRIGGER t AFTER INSERT{FOR_EACH_ROW}",
            "45000",
            "refused",
        ),
    ],
)
async def test_what_fails_alone_again_and_again_while_others_pass_is_the_events_fault(
    postgres_url, column, more, bad, reason
):
    """No list has all SQLSTATEs: of a trigger of the user's own the error may have any."""
    deferred = "DEFERRABLE INITIALLY DEFERRED" if "CONSTRAINT TRIGGER" in more else ""
    good = str(uuid.UUID(int=1)) if "UUID" in column else "x" if "TEXT" in column else 1
    async with World(postgres_url, NUMBERS, table=f"CREATE TABLE flights ({column}, seq BIGINT)") as world:
        await world.run(*more.format(state=bad, deferred=deferred).split("|"))
        await world.claim()
        await settle(world, *numbers(good, good if "{state}" in more else bad, good))

        assert (await world.written(), await world.dead()) == ([0, 2], [(1, reason)])
        assert await world.position() == 2


@pytest.mark.wire
async def test_a_row_that_row_level_security_refuses_is_the_events_fault_and_a_right_is_not(postgres_url):
    table = "CREATE TABLE flights (n BIGINT, seq BIGINT)"
    async with World(postgres_url, NUMBERS, table=table) as world:
        role = f"writer_{uuid.uuid4().hex}"
        with admin(world) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN")
            connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
            connection.execute("ALTER TABLE flights ENABLE ROW LEVEL SECURITY")
            connection.execute("CREATE POLICY positive ON flights WITH CHECK (n > 0)")
        database = SqlDatabase(postgres_url.replace("postgres@", f"{role}@"), tables=TABLES)
        sink = SqlTransactionalSink(database, SCOPE, NUMBERS)
        await sink.open()
        await world.claim(sink=sink)
        results = await world.write(*numbers(1, -1, 3), sink=sink)

        assert results == [WRITTEN, ("written", "refused"), WRITTEN]
        with admin(world) as connection:
            connection.execute(f"REVOKE INSERT ON flights FROM {role}")
        for _ in range(3):
            assert is_retry(await world.write(*(flight(seq) for seq in range(3, 9)), sink=sink))
        assert await world.dead() == [(1, "refused")]
        await sink.aclose()


@pytest.mark.wire
@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("ALTER TABLE flights RENAME COLUMN n TO m", "ALTER TABLE flights RENAME COLUMN m TO n"),
        (
            "ALTER TABLE flights ALTER COLUMN n TYPE BOOLEAN USING n > 0",
            "ALTER TABLE flights ALTER COLUMN n TYPE BIGINT USING n::int",
        ),
        ("ALTER TABLE flights RENAME TO away", "ALTER TABLE away RENAME TO flights"),
        # What speaks of a row is no proof either: a column that must not be null was added, a check, a foreign key.
        (NEW_COLUMN, "ALTER TABLE flights DROP gate"),
        (
            "ALTER TABLE flights ADD CONSTRAINT c CHECK (seq < 0) NOT VALID",
            "ALTER TABLE flights DROP CONSTRAINT c",
        ),
        (
            "CREATE TABLE known (n BIGINT PRIMARY KEY);" + REFERRING,
            "ALTER TABLE flights DROP CONSTRAINT c",
        ),
        (
            f"{CLOSED};CREATE TRIGGER t BEFORE INSERT{FOR_EACH_ROW.format(deferred='')}",
            "DROP TRIGGER t ON flights",
        ),
    ],
)
@pytest.mark.parametrize("start", ["goes on", "starts anew"])
async def test_while_every_event_is_refused_alike_none_becomes_a_dead_letter(
    postgres_url, change, back, start
):
    async with World(postgres_url, NUMBERS, table="CREATE TABLE flights (n BIGINT, seq BIGINT)") as world:
        await world.claim()
        await world.write(*numbers(1, 2))
        await world.run(*(each.replace("?", ";") for each in change.split(";")))
        alone = 1
        if start == "starts anew":  # nothing that was written before is known
            await world.sink.aclose()
            world.sink = SqlTransactionalSink(world.database, SCOPE, NUMBERS)
            await world.claim()
            alone = 1 if change == NEW_COLUMN else 2
        events = [event(seq, b'{"n": 5}') for seq in range(2, 8)]
        for attempt in range(4):
            results = await world.write(*events[: alone + attempt])
            assert is_retry(results)
        assert "an event is only blamed once others pass" in results[0][1]
        await world.run(back)

        assert await world.write(*events) == [WRITTEN] * 6
        assert await world.dead() == []


@pytest.mark.wire
async def test_an_event_alone_in_its_batch_is_judged_when_a_neighbour_was_written(postgres_url):
    async with World(postgres_url, NUMBERS, table="CREATE TABLE flights (n BIGINT, seq BIGINT)") as world:
        await world.claim()
        bad, neighbour = event(0, b'{"n": true}'), event(1, b'{"n": 1}')
        assert is_retry(await world.write(bad))
        assert is_retry(await world.write(bad))
        assert await world.write(bad, neighbour) == [("written", "value"), WRITTEN]

        await world.claim(partition="1")
        other = event(0, b'{"n": true}', "1")
        assert await world.write(other) == [
            ("written", "value")
        ]  # one that was written before is tried again


async def test_of_events_that_come_one_by_one_and_are_refused_alike_the_first_alone_is_believed(url):
    """A start knows nothing that was written before."""
    async with World(
        url, NUMBERS, table="CREATE TABLE flights (n BIGINT CHECK (n > 0), seq BIGINT)"
    ) as world:
        await world.claim()
        first, second, good = numbers(-1, -2, 3)
        assert await world.write(first) == [("written", "constraint")]
        for _ in range(3):
            assert is_retry(await world.write(second))
        assert await world.write(second, good) == [("written", "constraint"), WRITTEN]
        assert await world.write(numbers(0, 0, 0, -4)[3]) == [("written", "constraint")]
        # Nine more are believed while what was written before would be still, then it may be what is new in all events.
        assert len(await world.write(*numbers(*[-1] * 13)[4:])) == 9
        for _ in range(3):
            assert is_retry(await world.write(numbers(*[-1] * 14)[13]))
        assert await world.dead() == [(seq, "constraint") for seq in (0, 1, *range(3, 13))]


async def test_an_error_that_ends_the_transaction_is_found_out_without_the_event(url):
    """Some errors of SQL Server roll everything back: what is behind the event can only be tried without it."""

    class Dooming(type(FLIGHTS)):
        def write(self, connection, records):
            for record in records:
                if record.event.sequence_number in {0, 3}:
                    connection.exec_driver_sql("ROLLBACK")
                    raise exc.ProgrammingError("INSERT", {}, Exception("the transaction is doomed"))
                super().write(connection, [record])

    target = Dooming("flights", {"carrier": "$.carrier", "number": "$.number", "seq": "@sequence_number"})
    async with World(url, target, table=TABLE) as world:
        await world.claim()
        results = await settle(world, *(flight(seq) for seq in range(5)))

        assert results == [("written", "refused"), WRITTEN, WRITTEN, ("written", "refused"), WRITTEN]
        assert (await world.written(), await world.dead()) == ([1, 2, 4], [(0, "refused"), (3, "refused")])


@pytest.mark.wire
async def test_a_key_that_two_partitions_insert_at_once_makes_no_dead_letter(postgres_url):
    """Where a row is updated or else inserted, as in Azure SQL, another partition may insert it in between."""
    target = TableTarget("flights", {"number": "$.number", "carrier": "$.carrier", "seq": "@sequence_number"})
    table = "CREATE TABLE flights (number INTEGER PRIMARY KEY, carrier VARCHAR(3) UNIQUE, seq BIGINT)"
    async with World(postgres_url, target, table=table) as world:
        columns = ["number", "carrier", "seq"]
        reflected = sa.Table("flights", sa.MetaData(), autoload_with=world.database.engine)
        world.sink.target._statement = Upsert(reflected, columns, ["number"], "mssql")

        @sa.event.listens_for(world.database.engine, "before_cursor_execute")
        def overtake(connection, _cursor, statement, parameters, _context, _many):
            if statement.startswith("INSERT INTO flights") and connection.in_nested_transaction():
                with admin(world) as other:  # before the first insert of each number
                    number = parameters["number"]
                    other.execute("INSERT INTO flights VALUES (%s, %s, -1)", [number, f"x{number}"])

        await world.claim()
        results = await world.write(
            flight(0, number=1, carrier="A"),
            flight(1, number=2, carrier="long"),
            flight(2, number=3, carrier="C"),
        )

        assert results == [WRITTEN, ("written", "value"), WRITTEN]
        assert await world.written() == [0, 2]  # seq -1, the other partition's, was replaced
        sa.event.remove(world.database.engine, "before_cursor_execute", overtake)
        violating = flight(3, number=9, carrier="C")  # another constraint than the key's is the event's fault
        assert await world.write(violating, flight(4, number=8, carrier="D")) == [
            ("written", "constraint"),
            WRITTEN,
        ]


# ----- tables that are missing or wrong


async def test_missing_tables_are_named_with_their_ddl_when_the_consumer_may_not_create_them(url):
    database = SqlDatabase(url, create_tables=False, tables=TABLES)
    sink = SqlTransactionalSink(database, SCOPE)

    with pytest.raises(
        SettingsError, match=r'(?s)no table EventHubCheckpoint.*CREATE TABLE "EventHubCheckpoint"'
    ) as caught:
        await sink.open()

    assert "EventHubDeadLetter" in str(caught.value)
    with pytest.raises(SettingsError, match=r"no table .*\bEvents;") as caught:
        database.check_tables([EVENTS])
    for name in ("EventHubCheckpoint", "Events"):
        assert f'CREATE TABLE "{name}"' in str(caught.value)
    await sink.aclose()


@pytest.mark.wire
async def test_nothing_is_created_in_postgresql_unless_told(postgres_url):
    database = SqlDatabase(postgres_url, tables=TABLES)
    store = SqlCheckpointStore(database, SCOPE)

    with pytest.raises(SettingsError, match="no table EventHubCheckpoint"):
        await store.claim("0", "a", deadline=soon())
    await store.aclose()


async def test_the_articles_own_tables_are_refused_by_the_columns_they_lack(url):
    database = SqlDatabase(url, create_tables=True, tables=TABLES)
    sink = SqlTransactionalSink(database, SCOPE)
    with database.engine.begin() as connection:
        connection.execute(
            text(
                'CREATE TABLE "EventHubCheckpoint" ("Topic" varchar(100), "PartitionID" varchar(100), '
                '"SequenceNumber" bigint, "Offset" varchar(20))'
            )
        )

    with pytest.raises(
        SettingsError, match="lacks Beyond, ConsumerGroup, Origin, Owner, OwnerEpoch, SavedAt"
    ):
        await sink.open()
    await sink.aclose()


@pytest.mark.wire
async def test_consumers_that_start_together_create_the_tables_once(postgres_url):
    async def start():
        store = SqlCheckpointStore(SqlDatabase(postgres_url, create_tables=True, tables=TABLES), SCOPE)
        claim = await store.claim("0", uuid.uuid4().hex, deadline=soon())
        await store.aclose()
        return claim.epoch

    assert sorted(await asyncio.gather(*(start() for _ in range(4)))) == [1, 2, 3, 4]


async def test_a_database_that_cannot_be_reached_is_unavailable_and_its_password_is_not_shown():
    database = SqlDatabase("postgresql://tidemark:s3cret@127.0.0.1:9/x")
    sink = SqlTransactionalSink(database, SCOPE)

    with pytest.raises(UnavailableError) as caught:
        await sink.open()

    assert "127.0.0.1" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    await sink.aclose()
