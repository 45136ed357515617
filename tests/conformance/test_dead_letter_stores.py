"""What every DeadLetterStore does. Another store: a subclass of DeadLetterStoreContract with its own `place`."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from azure.cosmos.aio import CosmosClient
from msgspec import structs

from consumer.core.parked import SUFFIX
from consumer.model import Checkpoint, DeadLetter, Event, Rejection, Stream
from consumer.stores.blob import dead_letters as blob_letters
from consumer.stores.cosmos.dead_letters import CosmosDeadLetterStore
from consumer.stores.sql.checkpoints import SqlCheckpointStore
from consumer.stores.sql.dead_letters import SqlDeadLetterStore
from consumer.stores.sql.dead_letters import put as put_letters
from consumer.stores.sql.tables import TABLES
from devstack.cosmos.server import CosmosServer
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.store_places import GROUP, HUB, OnBlob, OnPostgres, OnSqlite, soon
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sql.database import SqlDatabase

T0 = 1_795_000_000.5


def dead_letter(
    sequence_number, partition="0", *, reason="not_json", body=b"{", hub=HUB, group=GROUP, **event
):
    return DeadLetter(
        hub=hub,
        consumer_group=group,
        event=Event(partition, sequence_number, str(sequence_number * 64), T0 - 9, body, **event),
        rejection=Rejection(reason, f"the body ends after {len(body)} bytes — 'ü'"),
        attempts=3,
        failed_at=T0,
    )


FULL = dead_letter(
    2**53 + 1,
    body=b"\x00\xff\xfe not text",
    partition_key="clé",
    properties={
        "kind": "order",
        "n": 3,
        "share": 0.25,
        "ok": True,
        "nothing": None,
        "nested": {"a": [1, "x"]},
    },
    unreadable="an AMQP value, not bytes",
    content_type="avro/binary+0123",
    content_encoding="gzip",
)
FULL = structs.replace(
    FULL, records=("0", "a sink, [odd]:3"), of=5, epoch=2**40, first="2026-11-21 08:00:00Z json: 'ü'"
)


class DeadLetterStoreContract:
    SQL, BLOB = SqlDeadLetterStore, "dead_letters"

    @pytest.fixture
    async def place(self):
        """Yields an empty place, and closes at the end what it gave.

        `store(hub, consumer_group)` gives a store on the place, not yet opened; twice with the same names, the
        same data.
        """
        raise NotImplementedError

    @pytest.fixture
    async def store(self, place):
        store = place.store(HUB, GROUP)
        await store.open()
        return store

    async def listed(self, store, **filters):
        return [found async for found in store.list(**filters)]

    async def test_at_first_there_is_no_letter(self, store):
        assert await self.listed(store) == []
        assert await store.get(dead_letter(1).id) is None
        assert await store.delete([dead_letter(1).id]) == 0

    async def test_opening_again_keeps_what_is_there(self, place, store):
        await store.put([dead_letter(1)], deadline=soon())
        second = place.store(HUB, GROUP)
        await second.open()

        assert await self.listed(second) == [dead_letter(1)]

    async def test_a_letter_comes_back_whole(self, store):
        await store.put([FULL], deadline=soon())

        assert await self.listed(store) == [FULL]
        assert await store.get(FULL.id) == FULL

    @pytest.mark.parametrize("body", [b"", b"\x00", bytes(range(256)) * 4096], ids=["empty", "nul", "1 MiB"])
    async def test_any_body_is_kept(self, store, body):
        await store.put([dead_letter(1, body=body)], deadline=soon())

        assert (await store.get(dead_letter(1).id)).event.body == body

    async def test_a_letter_put_twice_is_one_letter(self, store):
        await store.put([dead_letter(1), dead_letter(2)], deadline=soon())
        await store.put([dead_letter(2), dead_letter(1), dead_letter(3)], deadline=soon())

        assert await self.listed(store) == [dead_letter(1), dead_letter(2), dead_letter(3)]

    @pytest.mark.parametrize(("epoch", "stays"), [(1, True), (2, False), (3, False), (0, False)])
    async def test_one_that_was_parked_under_an_earlier_claim_replaces_none_of_a_later_one(
        self, store, epoch, stays
    ):
        before, after = (
            structs.replace(dead_letter(1, reason=str(n)), records=(str(n),), of=9, epoch=n)
            for n in (2, epoch)
        )
        await store.put([before], deadline=soon())
        await store.put([structs.replace(after, attempts=7), dead_letter(2)], deadline=soon())

        assert await self.listed(store) == [
            before if stays else structs.replace(after, attempts=7),
            dead_letter(2),
        ]

    async def test_of_two_owners_that_park_an_event_at_once_the_later_one_wins(self, store):
        parked = [structs.replace(dead_letter(1, reason=str(n)), epoch=n) for n in (1, 5, 2, 4, 3)]
        await asyncio.gather(*(store.put([each], deadline=soon()) for each in parked))

        assert await self.listed(store) == [parked[1]]

    async def test_deleting_for_an_epoch_leaves_what_a_later_claim_parked(self, store):
        parked = structs.replace(dead_letter(1), epoch=2)
        await store.put([parked, dead_letter(2)], deadline=soon())

        assert await store.delete([parked.id, dead_letter(9).id], epoch=1) == 0
        assert await store.delete([parked.id, dead_letter(2).id, dead_letter(9).id], epoch=2) == 2
        assert await self.listed(store) == []

    async def test_a_letter_twice_in_one_put_is_one_letter(self, store):
        await store.put([dead_letter(1), dead_letter(1)], deadline=soon())

        assert await self.listed(store) == [dead_letter(1)]

    async def test_putting_none_is_nothing(self, store):
        await store.put([], deadline=soon())

        assert await self.listed(store) == []

    async def test_letters_put_at_the_same_time_are_all_kept(self, store):
        await asyncio.gather(
            *(store.put([dead_letter(n), dead_letter(n + 1)], deadline=soon()) for n in range(5))
        )

        assert await self.listed(store) == [dead_letter(n) for n in range(6)]

    async def test_a_second_letter_of_a_partition_is_kept_beside_the_first(self, store):
        await store.put([dead_letter(1)], deadline=soon())
        await store.put([dead_letter(2)], deadline=soon())

        assert await self.listed(store) == [dead_letter(1), dead_letter(2)]

    async def test_letters_are_listed_by_partition_and_number(self, store):
        put = [
            dead_letter(10, "1"),
            dead_letter(9, "1"),
            dead_letter(100, "0"),
            dead_letter(99, "0"),
            dead_letter(2, "1"),
        ]
        await store.put(put, deadline=soon())

        assert [
            (found.event.partition, found.event.sequence_number) for found in await self.listed(store)
        ] == [
            ("0", 99),
            ("0", 100),
            ("1", 2),
            ("1", 9),
            ("1", 10),
        ]

    async def test_a_letter_of_a_hub_created_anew_is_kept_beside_that_of_the_hub_before(self, store):
        put = [dead_letter(5), dead_letter(5, incarnation="1795000000123"), dead_letter(5, "10")]
        await store.put(put, deadline=soon())

        assert await self.listed(store, partition="0") == put[:2]
        assert await store.get(put[1].id) == put[1]
        assert await store.delete([put[1].id]) == 1
        assert await self.listed(store) == [put[0], put[2]]

    async def test_a_list_is_narrowed_by_partition_and_reason(self, store):
        put = [
            dead_letter(1),
            dead_letter(2, reason="too_large"),
            dead_letter(3, "1"),
            dead_letter(4, "1", reason="too_large"),
        ]
        await store.put(put, deadline=soon())

        assert await self.listed(store, partition="1") == put[2:]
        assert await self.listed(store, reason="too_large") == [put[1], put[3]]
        assert await self.listed(store, partition="0", reason="too_large") == [put[1]]
        assert await self.listed(store, partition="7") == []

    async def test_deleting_counts_what_was_there(self, store):
        await store.put([dead_letter(n) for n in range(4)], deadline=soon())

        assert await store.delete([dead_letter(1).id, dead_letter(2).id, dead_letter(77).id]) == 2
        assert await self.listed(store) == [dead_letter(0), dead_letter(3)]
        assert await store.delete([]) == 0

    @pytest.mark.parametrize(
        "dead_letter_id", ["", "x", "orders~readers~0~x", "orders~readers~0", "a~b~c~1", "☃~~~1"]
    )
    async def test_an_id_that_never_was_finds_nothing(self, store, dead_letter_id):
        await store.put([dead_letter(1)], deadline=soon())

        assert await store.get(dead_letter_id) is None
        assert await store.delete([dead_letter_id]) == 0

    async def test_hundreds_of_letters_are_put_and_listed(self, store):
        put = [dead_letter(n, str(n % 3)) for n in range(303)]
        await store.put(put, deadline=soon())

        assert await self.listed(store) == sorted(
            put, key=lambda x: (x.event.partition, x.event.sequence_number)
        )
        assert await store.delete([found.id for found in put]) == 303

    @pytest.mark.parametrize(
        "names", [("orders2", GROUP), (HUB, "others"), ("order", "s" + GROUP), (HUB, GROUP + SUFFIX)]
    )
    async def test_hubs_and_consumer_groups_are_apart(self, place, store, names):
        other = place.store(*names)
        await other.open()
        theirs = dead_letter(1, hub=names[0], group=names[1])
        await store.put([dead_letter(1)], deadline=soon())
        await other.put([theirs], deadline=soon())

        assert await self.listed(store) == [dead_letter(1)]
        assert await self.listed(other) == [theirs]
        assert await other.delete([dead_letter(1).id]) == 0
        assert await store.get(dead_letter(1).id) == dead_letter(1)


class MemoryPlace:
    def __init__(self):
        self.stores = {}

    def store(self, hub, consumer_group):
        return self.stores.setdefault((hub, consumer_group), MemoryDeadLetterStore())


class TestMemory(DeadLetterStoreContract):
    @pytest.fixture
    async def place(self):
        return MemoryPlace()


class TestSqlite(OnSqlite, DeadLetterStoreContract):
    async def test_a_letter_of_an_earlier_claim_that_comes_between_two_statements_does_not_stay(
        self, place, store
    ):
        early, late = (structs.replace(dead_letter(1), epoch=epoch) for epoch in (4, 5))
        between = [early]

        def work(connection):
            def execute(*arguments):
                result = connection.execute(*arguments)
                if between:
                    put_letters(connection, store._scope, [between.pop()])
                return result

            put_letters(SimpleNamespace(execute=execute), store._scope, [late])

        await place.database.transact(work, again_on_conflict=1)

        assert await self.listed(store) == [late]

    @pytest.mark.parametrize(
        "change",
        [
            "DROP TABLE EventHubLease",
            "ALTER TABLE EventHubDeadLetter DROP COLUMN Epoch",
            "ALTER TABLE EventHubDeadLetter DROP COLUMN FirstFailure",
            "ALTER TABLE EventHubCheckpoint DROP COLUMN Origin",
        ],
    )
    async def test_a_dry_run_reads_what_is_there_of_a_database_that_a_start_would_complete(
        self, place, store, tmp_path, change
    ):
        await store.put([dead_letter(1)], deadline=soon())
        await SqlCheckpointStore(place.database, store._scope).put(Checkpoint("0", 5, "320"), deadline=soon())
        await place.database.transact(lambda on: on.exec_driver_sql(change))
        database = SqlDatabase(f"sqlite:///{tmp_path}/tidemark.db", tables=TABLES, read_only=True)
        letters = SqlDeadLetterStore(database, store._scope)

        await letters.open()
        assert await self.listed(letters) == [dead_letter(1)] == [await letters.get(dead_letter(1).id)]
        found = await SqlCheckpointStore(database, store._scope).load_all(deadline=soon())
        assert found["0"].sequence_number == 5
        await database.release()
        await database.release()


@pytest.mark.wire
class TestPostgres(OnPostgres, DeadLetterStoreContract):
    async def test_a_letter_that_is_stored_after_its_caller_gave_up_replaces_none_that_the_caller_stored_since(
        self, place, store, monkeypatch
    ):
        await store.put([dead_letter(2)], deadline=soon())
        gate, held, check = threading.Event(), [True], place.database.check_tables

        def wait_once(tables):
            if held and held.pop():
                gate.wait(10)
            check(tables)

        monkeypatch.setattr(place.database, "check_tables", wait_once)
        early, late = (structs.replace(dead_letter(1), epoch=4, attempts=n) for n in (1, 2))
        with pytest.raises(UnavailableError, match="deadline"):
            await store.put([early], deadline=asyncio.get_running_loop().time() + 0.1)
        await store.put([late], deadline=soon())
        running = set(place.database._running)
        gate.set()
        if running:
            await asyncio.wait(running)

        assert await self.listed(store) == [late, dead_letter(2)]


# the SDKs hand aiohttp a body of over 1 MB as bytes, about which it warns
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.wire
class TestBlob(OnBlob, DeadLetterStoreContract):
    async def test_a_blob_that_cannot_be_deleted_is_told_and_not_tried_for_ever(
        self, place, store, monkeypatch
    ):
        monkeypatch.setattr(blob_letters, "_PAUSE", 0)
        parked = structs.replace(dead_letter(1), epoch=1)
        await store.put([parked], deadline=soon())
        container = place.container()
        async for blob in container.list_blobs():
            await container.get_blob_client(blob.name).create_snapshot()

        with pytest.raises(UnavailableError, match="Snapshot"):
            async with asyncio.timeout(10):
                await store.delete([parked.id], epoch=1)


class ContainerConnection:
    def __init__(self, connection_string):
        self.settings = {"Cosmos": connection_string}
        self.stores = []

    def store(self, hub, consumer_group):
        self.stores.append(
            CosmosDeadLetterStore(
                self.settings, "Cosmos", "telemetry", "letters", Stream("", hub, consumer_group)
            )
        )
        return self.stores[-1]

    async def aclose(self):
        for store in self.stores:
            await store.aclose()


# the SDKs hand aiohttp a body of over 1 MB as bytes, about which it warns
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.wire
class TestCosmos(DeadLetterStoreContract):
    @pytest.fixture
    async def place(self):
        async with CosmosServer() as server:
            # a letter of 1 MB takes 7,000 request units
            server.create_container("telemetry", "letters", "/partition", throughput=10_000)
            place = ContainerConnection(server.connection_string)
            yield place
            await place.aclose()

    async def test_a_container_that_is_gone_is_told_and_not_tried_for_ever(self, place, store):
        async with CosmosClient.from_connection_string(place.settings["Cosmos"]) as client:
            await client.get_database_client("telemetry").delete_container("letters")

        with pytest.raises(UnavailableError, match="404"):
            async with asyncio.timeout(10):
                await store.put([structs.replace(dead_letter(1), epoch=1)], deadline=soon())
