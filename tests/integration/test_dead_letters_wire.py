"""Dead letters in Blob Storage and Cosmos DB: how they look there, and in bad weather."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from consumer.model import DeadLetter, Event, Rejection, Stream
from consumer.stores.cosmos.dead_letters import CosmosDeadLetterStore
from devstack.cosmos.server import CosmosServer
from devstack.servers.faults import Fault
from tests.support.servers.blobs import BlobPlace
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError

pytestmark = pytest.mark.wire


def soon(seconds=30.0):
    return asyncio.get_running_loop().time() + seconds


LETTER = DeadLetter(
    "orders", "readers", Event("0", 7, "448", 1.5, b'{"a":'), Rejection("not_json", "ends early"), 1, 2.5
)


@pytest.fixture
async def place(azurite):
    place = BlobPlace(azurite)
    yield place
    await place.aclose()


@pytest.fixture
async def server():
    async with CosmosServer() as running:
        running.create_database("telemetry")
        yield running


@pytest.fixture
async def make(server):
    stores = []

    def make(container="letters", database="telemetry", settings=None):
        settings = settings or {"Cosmos": server.connection_string}
        stores.append(
            CosmosDeadLetterStore(settings, "Cosmos", database, container, Stream("", "orders", "readers"))
        )
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


async def test_a_letter_is_a_readable_file_named_by_its_position(place):
    store = place.dead_letters("orders", "readers")
    await store.open()
    await store.put([LETTER], deadline=soon())

    name = "orders.servicebus.windows.net/orders/readers/dead-letter/0/00000000000000000007.json"
    blob = await place.container().get_blob_client(name).download_blob()
    document = json.loads(await blob.readall())
    assert (document["body"], document["reason"], document["detail"]) == ('{"a":', "not_json", "ends early")


async def test_a_file_that_is_no_letter_is_named(place):
    store = place.dead_letters("orders", "readers")
    await store.open()
    name = place.stream("orders", "readers").folder("dead-letter") + f"0/{1:020d}.json"
    await place.container().upload_blob(name, b"[]")

    told = r"dead-letter/0/0*1\.json' is no dead letter .* purge 'orders~readers~0~1'`"
    with pytest.raises(TidemarkError, match=told):
        [each async for each in store.list()]
    assert await store.delete(["orders~readers~0~1"]) == 1
    await place.container().upload_blob(name.replace(f"{1:020d}", "notes"), b"[]")
    with pytest.raises(
        TidemarkError, match=r"dead-letter/0/notes\.json' is no dead letter .*: move or delete it$"
    ):
        [each async for each in store.list()]


async def test_a_letter_that_cannot_be_stored_is_unavailable_not_lost(place):
    store = place.dead_letters("orders", "readers")  # not opened: there is no container

    with pytest.raises(UnavailableError, match=r"storing dead letters: .*404 ContainerNotFound"):
        await store.put([LETTER], deadline=soon())


async def test_a_name_no_container_can_have_is_a_wrong_setting(place):
    place.name = "UPPER_case"

    with pytest.raises(SettingsError, match="UPPER_case"):
        await place.dead_letters("orders", "readers").open()


async def test_a_document_is_readable_under_the_letters_id(make, server):
    store = make()
    await store.open()
    await store.put([LETTER], deadline=soon())

    [document] = server.documents("telemetry", "letters")
    assert (document["id"], document["partition"], document["body"]) == ("orders~readers~0~7", "0", '{"a":')


async def test_a_container_with_another_partition_key_is_refused(make, server):
    server.create_container("telemetry", "documents", ["/id"])

    with pytest.raises(
        SettingsError, match="/partition: name another container, or let the consumer create it"
    ):
        await make("documents").open()
    another = make("letters of orders")  # and so both are done
    await another.open()
    await another.put([LETTER], deadline=soon())

    assert [dead_letter.id async for dead_letter in another.list()] == [LETTER.id]


async def test_a_database_that_is_missing_is_a_wrong_setting(make):
    with pytest.raises(SettingsError, match=r"database 'nowhere'.*404; the database must exist"):
        await make(database="nowhere").open()


async def test_no_connection_setting_names_it(make):
    with pytest.raises(SettingsError, match="no Cosmos DB connection 'Cosmos'"):
        await make(settings={"Other": "x"}).open()


async def test_a_throttled_put_is_tried_again_until_the_letter_is_there(make, server):
    store = make()
    await store.open()
    server.inject(Fault("docs.upsert", "error", count=3, status=429, retry_after=0.01))

    await store.put([LETTER], deadline=soon())

    assert await store.get(LETTER.id) == LETTER


async def test_a_refused_put_is_unavailable(make, server):
    store = make()
    await store.open()
    server.inject(Fault("docs.upsert", "error", count=None, status=403))

    with pytest.raises(UnavailableError, match=r"storing dead letters in container 'letters'.*403"):
        await store.put([LETTER], deadline=soon())


async def test_a_letter_that_is_refused_keeps_no_other_out(make, server):
    store = make()
    await store.open()
    server.inject(Fault("docs.upsert", "error", count=1, status=403))
    dead_letters = [
        replace(LETTER, event=replace(LETTER.event, sequence_number=number)) for number in range(200)
    ]

    with pytest.raises(UnavailableError, match="403"):
        await store.put(dead_letters, deadline=soon())

    assert len(server.documents("telemetry", "letters")) == 199


async def test_a_put_that_is_not_answered_ends_at_the_deadline(make, server):
    store = make()
    await store.open()
    server.inject(Fault("docs.upsert", "hang", count=None))

    with pytest.raises(UnavailableError, match="no answer within the deadline, the outcome is unknown"):
        await store.put([LETTER], deadline=soon(0.2))
    server.drop_connections()


async def test_a_letter_too_large_for_a_document_names_the_stores_that_take_it(make):
    store = make()
    await store.open()
    huge = DeadLetter(
        "orders", "readers", Event("0", 8, "", 0.0, b"x" * 3_000_000), Rejection("r", ""), 1, 0.0
    )

    with (
        pytest.warns(ResourceWarning, match="Sending a large body"),  # of aiohttp, about the SDK
        pytest.raises(SettingsError, match="keep dead letters in blob storage or SQL"),
    ):
        await store.put([huge], deadline=soon())
