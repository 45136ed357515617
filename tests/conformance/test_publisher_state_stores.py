"""What every ProducerStateStore does. Another store: a subclass of StateStoreContract with its own `place`."""

import asyncio
import errno
import fcntl
import os
import re

import msgspec
import pytest
from sqlalchemy import select, update

from tests.support.disk import record_disk_calls
from tests.support.publisher import HUB, QUICK, FakeLinks, FakeWorld, RefusedError, event, events
from tests.support.servers.blobs import BlobPlace
from tests.support.servers.postgres import new_database
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.sql.database import SqlDatabase, ddl
from tidemark.publisher.errors import (
    InvalidProducerStateError,
    OutcomeUnknownError,
    ProducerDisconnectedError,
)
from tidemark.publisher.event_hubs.ports.state_store import StateConflictError, name_of
from tidemark.publisher.event_hubs.states import file as file_store
from tidemark.publisher.event_hubs.states import state_file
from tidemark.publisher.event_hubs.states.blob import BlobStateStore
from tidemark.publisher.event_hubs.states.file import FileStateStore
from tidemark.publisher.event_hubs.states.memory import MemoryStateStore
from tidemark.publisher.event_hubs.states.sql import STATES, SqlStateStore
from tidemark.publisher.model import (
    PartitionPublishingOptions,
    PendingSet,
    ProducerRecord,
    Stamp,
    StateKey,
)

KEY = StateKey("Acme.servicebus.windows.net", "Flights", "loader", "0")
PENDING = PendingSet(8, 3, "d1ge57", "line 12: „ü“", ((b"\x00\xff", b"tail"), (b"", b'"')))
RECORD = ProducerRecord(2**40, 3, 7, "line 9", PENDING, "me", 4)


def soon(seconds=30.0):
    return asyncio.get_running_loop().time() + seconds


class StateStoreContract:
    @pytest.fixture
    async def place(self):
        """Yields a place with `store()`, several of which see the same states, and `spoil()`, which makes KEY's
        unreadable. Closes what it gave.
        """
        raise NotImplementedError

    async def test_there_is_no_state_at_first(self, place):
        assert await place.store().load(KEY, deadline=soon()) is None

    async def test_a_state_comes_back_whole_in_another_process(self, place):
        token = await place.store().save(KEY, RECORD, None, deadline=soon())

        assert await place.store().load(KEY, deadline=soon()) == (RECORD, token)

    async def test_a_state_without_a_pending_set_comes_back_whole(self, place):
        record = ProducerRecord(1, 0, 0, None, None, "me", 1)

        token = await place.store().save(KEY, record, None, deadline=soon())

        assert await place.store().load(KEY, deadline=soon()) == (record, token)

    async def test_each_save_needs_the_token_of_the_last(self, place):
        store = place.store()
        first = await store.save(KEY, RECORD, None, deadline=soon())
        later = msgspec.structs.replace(RECORD, revision=5)

        second = await store.save(KEY, later, first, deadline=soon())

        assert second != first
        assert await store.load(KEY, deadline=soon()) == (later, second)

    async def test_of_two_who_read_the_same_state_the_second_to_save_is_refused(self, place):
        one, other = place.store(), place.store()
        token = await one.save(KEY, RECORD, None, deadline=soon())
        mine = msgspec.structs.replace(RECORD, writer="one", revision=5)
        await one.save(KEY, mine, token, deadline=soon())

        with pytest.raises(StateConflictError):
            await other.save(KEY, msgspec.structs.replace(RECORD, writer="other"), token, deadline=soon())

        found = await other.load(KEY, deadline=soon())
        assert found[0] == mine

    async def test_of_two_first_saves_one_is_refused(self, place):
        found = await asyncio.gather(
            *(
                place.store().save(KEY, msgspec.structs.replace(RECORD, writer=name), None, deadline=soon())
                for name in ("a", "b", "c")
            ),
            return_exceptions=True,
        )

        assert sum(isinstance(one, StateConflictError) for one in found) == 2, found

    async def test_partitions_producers_and_hubs_have_states_of_their_own(self, place):
        store = place.store()
        keys = [
            KEY,
            msgspec.structs.replace(KEY, partition_id="1"),
            msgspec.structs.replace(KEY, producer="Ünsafe/../name"),
            msgspec.structs.replace(KEY, hub="other"),
        ]
        for number, key in enumerate(keys):
            await store.save(key, msgspec.structs.replace(RECORD, revision=number), None, deadline=soon())

        found = [(await store.load(key, deadline=soon()))[0].revision for key in keys]

        assert found == [0, 1, 2, 3]

    async def test_a_namespace_and_hub_in_other_letters_are_the_same(self, place):
        await place.store().save(KEY, RECORD, None, deadline=soon())

        lower = msgspec.structs.replace(KEY, namespace=KEY.namespace.lower(), hub=KEY.hub.upper())

        assert (await place.store().load(lower, deadline=soon()))[0] == RECORD

    async def test_a_state_that_cannot_be_read_is_an_error_and_not_a_fresh_start(self, place):
        await place.store().save(KEY, RECORD, None, deadline=soon())
        await place.spoil()

        with pytest.raises(InvalidProducerStateError, match=r"delete it|remove the file"):
            await place.store().load(KEY, deadline=soon())

    async def test_a_producer_goes_on_where_the_one_before_it_ended(self, place):
        world = FakeWorld()
        first = world.producer(state_store=place.store())
        await first.send_events(events("a", "b"), partition_id="0", bookmark="2")
        await first.close()

        second = world.producer(state_store=place.store())
        state = await second.saved_state("0")
        await second.send_events(events("c"), partition_id="0", bookmark="3")
        await second.close()

        assert (state.bookmark, state.pending) == ("2", None)
        assert world.numbers() == [1, 2, 3]
        assert len(world.groups()) == 1

    async def test_a_producer_that_died_leaves_its_last_set_pending_which_is_dropped_when_it_is_sent_again(
        self, place
    ):
        world = FakeWorld()
        died = world.producer(state_store=place.store())
        await died.send_events(events("a"), partition_id="0", bookmark="1")
        await died.send_events(events("b", "c"), partition_id="0", bookmark="3")

        heir = world.producer(state_store=place.store())
        state = await heir.saved_state("0")
        assert (state.bookmark, state.pending.count, state.pending.first, state.pending.bookmark) == (
            "1",
            2,
            2,
            "3",
        )
        with pytest.raises(InvalidProducerStateError, match="send exactly these events first"):
            await heir.send_events(events("d"), partition_id="0", bookmark="4")
        with pytest.raises(InvalidProducerStateError, match="send exactly these events first"):
            await heir.send_events(events("b", "x"), partition_id="0", bookmark="3")
        await heir.send_events(events("b", "c"), partition_id="0", bookmark="3")
        await heir.send_events(events("d"), partition_id="0", bookmark="4")

        assert world.bodies() == ["a", "b", "c", "d"]
        with pytest.raises(ProducerDisconnectedError, match="taken its saved state over"):
            await died.send_events(events("e"), partition_id="0", bookmark="5")
        assert world.bodies() == ["a", "b", "c", "d"]

    async def test_of_two_processes_the_overtaken_one_is_told_who_goes_on_and_the_service_refuses_it(
        self, place
    ):
        """The zombie was stopped between saving a set and sending it, and is shut out by the service as well."""
        world = FakeWorld()
        zombie = world.producer(state_store=place.store())
        await zombie.send_events(events("a"), partition_id="0", bookmark="1")
        late = world.service.producers["0"]
        stamp = Stamp(world.groups().pop(), 0, 2)

        heir = world.producer(state_store=place.store())
        assert (await heir.saved_state("0")).unended.process.startswith(f"process {os.getpid()} on ")
        await heir.send_events(events("a"), partition_id="0", bookmark="1")
        await heir.send_events(events("b"), partition_id="0", bookmark="2")

        with pytest.raises(RefusedError, match="producer-epoch-stolen"):
            late.is_new(stamp, 1)
        with pytest.raises(ProducerDisconnectedError) as told:
            await zombie.send_events(events("x"), partition_id="0", bookmark="2")
        assert f"process {os.getpid()} on " in str(told.value)
        assert re.search(
            r"publishes since \d{4}-\d\d-\d\dT.* with epoch 1; this is .* epoch 0", str(told.value)
        )
        assert "--name, --state" in str(told.value)
        await heir.close()
        again = world.producer(state_store=place.store())
        assert (await again.saved_state("0")).unended is None
        await again.send_events(events("c"), partition_id="0", bookmark="3")
        assert world.bodies() == ["a", "b", "c"]
        assert (await again.get_partition_publishing_properties("0")).owner_level == 1

    async def test_to_look_at_a_state_overtakes_nobody(self, place):
        world = FakeWorld()
        first = world.producer(state_store=place.store())
        await first.send_events(events("a"), partition_id="0", bookmark="1")

        looking = world.producer(state_store=place.store())
        await looking.saved_state("0")
        await looking.close()

        await first.send_events(events("b"), partition_id="0", bookmark="2")
        assert world.bodies() == ["a", "b"]

    async def test_a_pending_set_whose_outcome_is_unknown_again_is_still_to_be_sent_first(self, place):
        world = FakeWorld()
        died = world.producer(state_store=place.store())
        await died.send_events(events("a"), partition_id="0", bookmark="1")
        heir = world.producer(state_store=place.store())
        world.fault("no_answer", count=QUICK.max_attempts)

        with pytest.raises(OutcomeUnknownError):
            await heir.send_events(events("a"), partition_id="0", bookmark="1")
        with pytest.raises(InvalidProducerStateError, match="send exactly these events first"):
            await heir.send_events(events("b"), partition_id="0", bookmark="2")
        await heir.send_events(events("a"), partition_id="0", bookmark="1")
        await heir.send_events(events("b"), partition_id="0", bookmark="2")

        assert world.bodies() == ["a", "b"]

    async def test_a_pending_set_can_be_given_up(self, place):
        world = FakeWorld()
        died = world.producer(state_store=place.store())
        await died.send_events(events("a"), partition_id="0", bookmark="1")
        heir = world.producer(state_store=place.store())

        await heir.abandon_pending("0")
        await heir.send_events(events("b"), partition_id="0", bookmark="2")

        assert world.bodies() == ["a", "b"]
        assert len(world.groups()) == 2

    async def test_a_producer_that_the_service_forgot_goes_on_under_a_new_identity_and_doubles_nothing(
        self, place
    ):
        """P2: nothing is pending, so the position is certain."""
        world = FakeWorld()
        first = world.producer(state_store=place.store())
        await first.send_events(events("a"), partition_id="0", bookmark="1")
        await first.close()
        world.forget("0")

        for number, body in enumerate("bc", 2):
            heir = world.producer(state_store=place.store())
            assert (await heir.saved_state("0")).bookmark == str(number - 1)
            await heir.send_events(events(body), partition_id="0", bookmark=str(number))
            await heir.close()

        assert world.bodies() == ["a", "b", "c"]
        assert len(world.groups()) == 2

    async def test_a_pending_set_whose_events_were_kept_is_sent_again_without_the_input(self, place):
        world = FakeWorld()
        died = world.producer(state_store=place.store())
        batch = await died.create_batch(partition_id="0")
        for each in events("a", "b"):
            batch.add(each)
        world.fault("no_answer", count=4)
        with pytest.raises(OutcomeUnknownError):
            await died.send_batch(batch, bookmark="2", keep_events=True)
        await died.resend_pending("0")  # of its own: the same batch is to be sent again
        assert world.bodies() == []

        for _ in range(2):  # the second one finds nothing to send
            heir = world.producer(state_store=place.store())
            await heir.resend_pending("0")
            assert (await heir.saved_state("0")).bookmark == "2"
            await heir.close()

        assert world.bodies() == ["a", "b"]

    async def test_a_pending_set_whose_events_were_not_kept_stays_pending(self, place):
        world = FakeWorld()
        died = world.producer(state_store=place.store())
        await died.send_events(events("a"), partition_id="0", bookmark="1")

        heir = world.producer(state_store=place.store())
        await heir.resend_pending("0")

        assert (await heir.saved_state("0")).pending.count == 1
        assert world.bodies() == ["a"]

    async def test_a_pending_set_of_a_forgotten_producer_is_sent_again_only_where_that_is_wanted(self, place):
        world = FakeWorld()
        died = world.producer(state_store=place.store())
        await died.send_events(events("a"), partition_id="0", bookmark="1")
        world.forget("0")
        heir = world.producer(state_store=place.store())
        with pytest.raises(InvalidProducerStateError, match=r"resend_unknown .* doubles it if it is stored"):
            await heir.send_events(events("a"), partition_id="0", bookmark="1")

        told = world.producer(state_store=place.store(), resend_unknown=True)
        await told.send_events(events("a"), partition_id="0", bookmark="1")
        await told.send_events(events("b"), partition_id="0", bookmark="2")

        assert world.bodies() == ["a", "a", "b"]

    async def test_a_pending_set_is_dropped_by_a_service_that_knows_it_also_where_it_may_be_sent_again(
        self, place
    ):
        world = FakeWorld()
        died = world.producer(state_store=place.store())
        await died.send_events(events("a"), partition_id="0", bookmark="1")

        heir = world.producer(state_store=place.store(), resend_unknown=True)
        await heir.send_events(events("a"), partition_id="0", bookmark="1")

        assert world.bodies() == ["a"]

    @pytest.mark.parametrize("clean", [True, False], ids=["stopped in order", "killed"])
    @pytest.mark.parametrize("forgets", [True, False], ids=["unknown id", "an id that is known again"])
    async def test_a_hub_made_anew_is_refused_and_another_name_begins_there(self, place, clean, forgets):
        """Else the new hub lacks what was published to the old one."""
        world = FakeWorld()
        first = world.producer(state_store=place.store())
        await first.send_events(events("a"), partition_id="0", bookmark="1")
        if clean:
            await first.close()
        world.service.created_at = "2026-02-02T00:00:00.000+00:00"
        world.service.stored["0"].clear()
        if forgets:
            world.forget("0")
        heir = world.producer(state_store=place.store(), resend_unknown=True)
        with pytest.raises(
            InvalidProducerStateError, match=r"hub was recreated.*created at 2026-02-02"
        ) as refused:
            await heir.send_events(events("b"), partition_id="0", bookmark="2")
        assert "publish with another saved state" in str(refused.value)
        assert "all of the input is published" in str(refused.value)

        other = world.producer(state_store=place.store(), producer_name="other")
        assert (await other.saved_state("0")).bookmark is None
        await other.send_events(events("a", "b"), partition_id="0", bookmark="2")
        assert world.bodies() == ["a", "b"]

    async def test_a_state_that_does_not_say_of_which_hub_it_is_goes_on_while_the_service_knows_its_producer(
        self, place
    ):
        """Of an earlier version. Once the service has forgotten the producer nobody knows whether it is the same hub."""
        world = FakeWorld()
        first = world.producer(state_store=place.store())
        await first.send_events(events("a"), partition_id="0", bookmark="1")
        await first.close()
        key = msgspec.structs.replace(KEY, namespace="local", hub=HUB, producer="default")
        await self.forget_hub(place.store(), key)
        heir = world.producer(state_store=place.store())
        await heir.send_events(events("b"), partition_id="0", bookmark="2")
        await heir.close()
        assert (await place.store().load(key, deadline=soon()))[0].hub_created_at == world.service.created_at

        await self.forget_hub(place.store(), key)
        world.forget("0")
        late = world.producer(state_store=place.store())
        with pytest.raises(InvalidProducerStateError, match="does not identify its hub"):
            await late.send_events(events("c"), partition_id="0", bookmark="3")
        told = world.producer(state_store=place.store(), resend_unknown=True)
        await told.send_events(events("c"), partition_id="0", bookmark="3")
        assert world.bodies() == ["a", "b", "c"]

    async def forget_hub(self, store, key):
        record, token = await store.load(key, deadline=soon())
        await store.save(key, msgspec.structs.replace(record, hub_created_at=None), token, deadline=soon())

    @pytest.mark.parametrize(
        ("stored", "spelled"),
        [
            *(("local", spelled) for spelled in ("LOCAL", "local.", "local:5671", "sb://local/")),
            ("local.servicebus.windows.net", "Local.servicebus.windows.net:5672"),
            ("localhost:5672", "LOCALHOST:5672"),
        ],
    )
    async def test_the_namespace_in_another_spelling_has_the_same_state(
        self, place, stored, spelled, monkeypatch
    ):
        """Of this version, and of earlier ones, which saved by the spelling."""
        for number, before in enumerate([stored, spelled]):
            monkeypatch.setattr(FakeLinks, "namespace", stored)
            world = FakeWorld()
            key = StateKey(before, HUB, f"p{number}", "0")
            first = world.producer(state_store=place.store(), producer_name=key.producer)
            await first.send_events(events("a"), partition_id="0", bookmark="1")
            await first.close()
            if number:
                found = await place.store().load(
                    msgspec.structs.replace(key, namespace=stored), deadline=soon()
                )
                key = msgspec.structs.replace(key, producer="p9")
                await place.store().save(key, found[0], None, deadline=soon())
            monkeypatch.setattr(FakeLinks, "namespace", spelled)
            heir = world.producer(state_store=place.store(), producer_name=key.producer)

            assert (await heir.saved_state("0")).bookmark == "1"
            await heir.send_events(events("b"), partition_id="0", bookmark="2")
            assert world.bodies() == ["a", "b"]

    async def test_two_emulators_on_one_machine_have_a_state_each(self, place, monkeypatch):
        for port in (5672, 5673):
            monkeypatch.setattr(FakeLinks, "namespace", f"localhost:{port}")
            producer = FakeWorld().producer(state_store=place.store())
            assert (await producer.saved_state("0")).bookmark is None
            await producer.send_events(events("a"), partition_id="0", bookmark="1")

    async def test_a_lower_owner_level_than_the_saved_one_is_refused(self, place):
        world = FakeWorld()
        first = world.producer(
            state_store=place.store(), partition_options={"0": PartitionPublishingOptions(owner_level=2)}
        )
        await first.send_events(events("a"), partition_id="0")
        await first.close()
        lower = world.producer(
            state_store=place.store(), partition_options={"0": PartitionPublishingOptions(owner_level=1)}
        )

        with pytest.raises(ProducerDisconnectedError, match="owner level 2, this producer has 1"):
            await lower.send_events(events("b"), partition_id="0")

    async def test_a_higher_owner_level_settles_what_is_pending_and_shuts_the_old_producer_out(self, place):
        world = FakeWorld()
        old = world.producer(state_store=place.store())
        await old.send_events(events("a"), partition_id="0", bookmark="1")
        heir = world.producer(
            state_store=place.store(), partition_options={"0": PartitionPublishingOptions(owner_level=1)}
        )
        await heir.send_events(events("a"), partition_id="0", bookmark="1")
        await heir.send_events(events("b"), partition_id="0", bookmark="2")

        assert world.bodies() == ["a", "b"]
        assert (await heir.get_partition_publishing_properties("0")).owner_level == 1
        with pytest.raises(ProducerDisconnectedError):
            await old.send_events([event("c")], partition_id="0", bookmark="2")


class Place:
    def __init__(self, create, spoil):
        self._create, self._spoil, self._open = create, spoil, []

    def store(self):
        store = self._create()
        self._open.append(store)
        return store

    async def spoil(self):
        await self._spoil()

    async def aclose(self):
        for store in self._open:
            await store.aclose()


class TestMemoryStateStore(StateStoreContract):
    @pytest.fixture
    async def place(self):
        store = MemoryStateStore()
        return Place(lambda: store, None)

    test_a_state_that_cannot_be_read_is_an_error_and_not_a_fresh_start = None  # it holds values, not text


class TestFileStateStore(StateStoreContract):
    @pytest.fixture
    async def place(self, tmp_path):
        path = tmp_path / "state.json"

        async def spoil():
            path.write_text('{"half')

        place = Place(lambda: FileStateStore(path), spoil)
        yield place
        await place.aclose()

    async def test_a_file_that_cannot_be_written_is_unavailable_and_the_old_one_stays(self, tmp_path):
        store = FileStateStore(tmp_path / "missing" / "state.json")

        with pytest.raises(UnavailableError, match="No such file"):
            await store.save(KEY, RECORD, None, deadline=soon())

    async def test_a_folder_in_place_of_the_file_is_said_in_words(self, tmp_path):
        with pytest.raises(UnavailableError) as refused:
            await FileStateStore(tmp_path).load(KEY, deadline=soon())

        assert str(refused.value) == f"{tmp_path}: Is a directory"

    async def test_half_a_file_is_never_read(self, tmp_path, monkeypatch):
        """A crash between writing and renaming leaves the old state."""
        path = tmp_path / "state.json"
        store = FileStateStore(path)
        token = await store.save(KEY, RECORD, None, deadline=soon())
        (tmp_path / "state.json.new").write_text("{")

        assert await FileStateStore(path).load(KEY, deadline=soon()) == (RECORD, token)
        await store.save(KEY, RECORD, token, deadline=soon())


@pytest.mark.wire
class TestBlobStateStore(StateStoreContract):
    @pytest.fixture
    async def place(self, azurite):
        blobs = BlobPlace(azurite)

        async def spoil():
            container = blobs.container()
            async for blob in container.list_blobs():
                await container.get_blob_client(blob.name).upload_blob(b"\xff{", overwrite=True)

        place = Place(lambda: BlobStateStore(blobs.container()), spoil)
        yield place
        await place.aclose()
        await blobs.aclose()


class SqlPlace(Place):
    def __init__(self, url):
        database = self._database = SqlDatabase(url, create_tables=True)
        database.use()  # as long as the place is open

        async def spoil():
            def work():
                with database.engine.begin() as connection:
                    connection.execute(update(STATES).values(State="{half"))

            await database.call(work)

        super().__init__(lambda: SqlStateStore(database), spoil)

    async def aclose(self):
        await super().aclose()
        await self._database.release()


class TestSqliteStateStore(StateStoreContract):
    @pytest.fixture
    async def place(self, tmp_path):
        place = SqlPlace(f"sqlite:///{tmp_path / 'state.db'}")
        yield place
        await place.aclose()


@pytest.mark.wire
class TestPostgresStateStore(StateStoreContract):
    @pytest.fixture
    async def place(self, postgres):
        place = SqlPlace(new_database(postgres))
        yield place
        await place.aclose()


def test_azure_sql_keeps_every_character_and_tells_upper_from_lower_case():
    """P4: TEXT lost bookmarks beyond Latin-1, and producers were compared without case."""
    text = ddl([STATES], "mssql")

    assert "[Producer] NVARCHAR(128) COLLATE Latin1_General_100_BIN2 NOT NULL" in text
    assert "[State] NVARCHAR(max) NOT NULL" in text
    assert "TEXT" not in text


class OlderTable(SqlPlace):
    """As a table that an earlier version created in Azure SQL: names without case, and one code page."""

    def __init__(self, url):
        super().__init__(url)
        with self._database.engine.begin() as connection:
            connection.exec_driver_sql(
                'CREATE TABLE "EventHubProducer" ("Topic" VARCHAR(320) COLLATE NOCASE, "Producer" VARCHAR(128) COLLATE NOCASE, '
                '"PartitionID" VARCHAR(16), "Version" BIGINT NOT NULL, "State" TEXT NOT NULL, '
                'PRIMARY KEY ("Topic", "Producer", "PartitionID"))'
            )

    def texts(self):
        with self._database.engine.begin() as connection:
            return [row[0] for row in connection.execute(select(STATES.c.State))]


@pytest.fixture
async def older_table(tmp_path):
    place = OlderTable(f"sqlite:///{tmp_path / 'state.db'}")
    yield place
    await place.aclose()


async def test_in_an_older_table_a_state_loses_no_character_and_is_never_taken_for_that_of_another_name(
    older_table,
):
    store = older_table.store()
    record = msgspec.structs.replace(RECORD, bookmark="Łódź \N{SNOWMAN} 名", pending=None)
    token = await store.save(KEY, record, None, deadline=soon())

    assert await store.load(KEY, deadline=soon()) == (record, token)
    assert all(text.isascii() for text in older_table.texts())
    other = msgspec.structs.replace(KEY, producer="LOADER")
    with pytest.raises(SettingsError, match=r"'loader' for 'LOADER': .* ALTER TABLE"):
        await store.load(other, deadline=soon())
    with pytest.raises(StateConflictError):
        await store.save(other, record, None, deadline=soon())


@pytest.mark.parametrize("name", ["", "loader ", "x" * 129])
async def test_a_name_that_a_database_would_take_for_another_is_refused(older_table, name):
    with pytest.raises(SettingsError, match="accepted in EventHubProducer: 1 to 128 characters"):
        await older_table.store().load(msgspec.structs.replace(KEY, producer=name), deadline=soon())


# P5: what a crash of the machine and another process ask of the file.


async def test_a_state_is_on_the_disk_before_a_save_returns_first_the_file_then_its_name(
    tmp_path, monkeypatch
):
    happened = record_disk_calls(monkeypatch)
    await FileStateStore(tmp_path / "state.json").save(KEY, RECORD, None, deadline=soon())

    assert happened == [("fsync", "state.json.new"), ("rename", "state.json.new"), ("fsync", tmp_path.name)]


@pytest.mark.parametrize("turns_apart", [0, 1])
async def test_partitions_that_save_at_the_same_time_or_turn_by_turn_share_one_sync(
    tmp_path, monkeypatch, turns_apart
):
    synced = []
    monkeypatch.setattr(file_store, "_GATHERING", 60.0)  # however busy the machine is
    monkeypatch.setattr(os, "fdatasync", synced.append)
    store = FileStateStore(tmp_path / "state.json")
    keys = [msgspec.structs.replace(KEY, partition_id=str(number)) for number in range(8)]
    tokens = [await store.save(key, RECORD, None, deadline=soon()) for key in keys]
    synced.clear()

    later = msgspec.structs.replace(RECORD, revision=5)

    async def save(number):
        for _ in range(number * turns_apart):
            await asyncio.sleep(0)
        await store.save(keys[number], later, tokens[number], deadline=soon())

    await asyncio.gather(*map(save, range(len(keys))))

    assert len(synced) == 1
    assert [
        (await FileStateStore(tmp_path / "state.json").load(key, deadline=soon()))[0] for key in keys
    ] == [later] * 8


async def test_a_busy_event_loop_lets_a_save_wait_only_so_long_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(file_store, "_GATHERING", 0.0)
    store = FileStateStore(tmp_path / "state.json")
    keys = [msgspec.structs.replace(KEY, partition_id=str(number)) for number in range(2)]
    for key in keys:
        await store.save(key, RECORD, None, deadline=soon())
    monkeypatch.setattr(store, "_commit", lambda: committed.append(len(store._waiting)))
    committed = []

    store.save_soon(keys[0], RECORD, None, deadline=soon())

    assert committed == [1]


@pytest.mark.parametrize("cut", [1, 9, 40, 200])
async def test_a_line_that_a_crash_has_torn_does_not_count_and_is_written_over(tmp_path, cut):
    path = tmp_path / "state.json"
    store = FileStateStore(path)
    token = await store.save(KEY, RECORD, None, deadline=soon())
    later = [msgspec.structs.replace(RECORD, revision=number, bookmark="b" * 80) for number in (5, 6)]
    before = path.read_bytes().rstrip(b"\n")
    token = await store.save(KEY, later[0], token, deadline=soon())
    await store.save(KEY, later[1], token, deadline=soon())
    end = len(path.read_bytes().rstrip(b"\n")) - cut
    path.write_bytes(path.read_bytes()[:end] + b"\n" * 2000)

    heir = FileStateStore(path)
    found, token = await heir.load(KEY, deadline=soon())
    assert found == later[0]
    for revision in range(7, 12):
        record = msgspec.structs.replace(RECORD, revision=revision)
        token = await heir.save(KEY, record, token, deadline=soon())
        assert await FileStateStore(path).load(KEY, deadline=soon()) == (record, token)
    assert len(before) < end


async def test_damage_before_a_good_line_is_an_error_and_no_older_state(tmp_path):
    path = tmp_path / "state.json"
    store, token = FileStateStore(path), None
    for revision in range(4, 8):
        record = msgspec.structs.replace(RECORD, revision=revision)
        token = await store.save(KEY, record, token, deadline=soon())
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b"revision", b"revisiom")
    path.write_bytes(b"\n".join(lines))

    with pytest.raises(InvalidProducerStateError, match="is damaged"):
        await FileStateStore(path).load(KEY, deadline=soon())


async def test_the_log_is_written_anew_when_it_is_full_and_is_one_document_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(state_file, "_ROOM", 3000)
    path = tmp_path / "state.json"
    one, other = FileStateStore(path), FileStateStore(path)
    token = None
    for revision in range(60):  # by two processes in turn: each notices what the other has written
        record = msgspec.structs.replace(RECORD, revision=revision)
        token = await (one, one, other)[revision % 3].save(KEY, record, token, deadline=soon())
        assert path.stat().st_size < 8000

    await one.aclose()
    assert msgspec.json.decode(path.read_bytes()) == {
        name_of(KEY): [msgspec.json.decode(msgspec.json.encode(record)), token]
    }
    await other.save(KEY, msgspec.structs.replace(RECORD, revision=99), token, deadline=soon())
    await other.aclose()


async def test_after_a_failed_sync_the_states_go_to_a_new_file(tmp_path, monkeypatch):
    """The system reports a failed write once. A later sync of the same file may then succeed, although the bytes are lost."""
    path = tmp_path / "state.json"
    store = FileStateStore(path)
    token = await store.save(KEY, RECORD, None, deadline=soon())
    inode = path.stat().st_ino

    def fail(_):
        raise OSError(errno.EIO, "the disk")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        with pytest.raises(UnavailableError, match="the disk"):
            await store.save(KEY, msgspec.structs.replace(RECORD, revision=5), token, deadline=soon())
    _, token = await store.load(KEY, deadline=soon())
    await store.save(KEY, msgspec.structs.replace(RECORD, revision=6), token, deadline=soon())

    assert path.stat().st_ino != inode


async def test_a_save_waits_for_the_other_process_that_saves(tmp_path):
    store = FileStateStore(tmp_path / "state.json")
    with (tmp_path / "state.json.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        saving = asyncio.create_task(store.save(KEY, RECORD, None, deadline=soon()))
        done, _ = await asyncio.wait({saving}, timeout=0.2)
        assert not done
        assert not (tmp_path / "state.json").exists()
    await saving
    assert (await store.load(KEY, deadline=soon()))[0] == RECORD
