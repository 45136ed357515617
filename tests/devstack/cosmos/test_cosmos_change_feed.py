"""Change feed, time to live, unique keys and patches of the local Cosmos DB, through the SDK."""

from datetime import UTC, datetime, timedelta

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import (
    CosmosBatchOperationError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)

from devstack.cosmos import CosmosServer
from devstack.cosmos.store.container import ANY
from tests.support.virtual_time import Clock

pytestmark = pytest.mark.wire

START = 1_800_000_000.0
UNIQUE = {"uniqueKeys": [{"paths": ["/tail", "/seat/row"]}, {"paths": ["/ticket"]}]}


@pytest.fixture
def clock():
    return Clock(START)


@pytest.fixture
async def server(clock):
    async with CosmosServer(clock=clock) as running:
        running.create_container("flights", "flights", "/origin", throughput=30_000)
        yield running


async def make(client, name, **options):
    database = client.get_database_client("flights")
    return await database.create_container(name, PartitionKey("/origin"), **options)


async def fill(container, first, count):
    for number in range(first, first + count):
        await container.upsert_item({"id": str(number), "origin": f"o{number % 7}", "delay": 0})


async def changes(container, **options):
    """Ids in the order they come, and where to go on."""
    feed = container.query_items_change_feed(**options)
    found = [item["id"] async for item in feed]
    return found, container.client_connection.last_response_headers["etag"]


# -- change feed ------------------------------------------------------------------------------------------


async def test_the_feed_from_the_beginning_has_every_document_once_and_then_only_what_changed(container):
    await fill(container, 0, 30)
    await container.upsert_item({"id": "3", "origin": "o3", "delay": 1})

    found, continuation = await changes(container, start_time="Beginning")
    assert sorted(found, key=int) == [str(number) for number in range(30)]

    nothing, continuation = await changes(container, continuation=continuation)
    assert nothing == []
    await fill(container, 30, 2)
    await container.patch_item("5", "o5", [{"op": "set", "path": "/delay", "value": 9}])
    await container.delete_item("6", "o6")
    found, _ = await changes(container, continuation=continuation)
    assert sorted(found, key=int) == ["5", "30", "31"]


async def test_the_changes_of_a_partition_come_in_the_order_they_happened(container):
    for name in ("a", "b", "c"):
        await container.upsert_item({"id": name, "origin": "JFK"})
    await container.upsert_item({"id": "a", "origin": "JFK", "delay": 1})

    found, _ = await changes(container, partition_key="JFK", start_time="Beginning")

    assert found == ["b", "c", "a"]


async def test_the_feed_from_now_begins_with_what_comes_next(container):
    await fill(container, 0, 20)
    found, continuation = await changes(container)  # now is the default
    assert found == []

    await fill(container, 20, 3)
    found, _ = await changes(container, continuation=continuation)
    assert sorted(found) == ["20", "21", "22"]


async def test_the_feed_from_a_time_has_what_changed_since(container, clock):
    await fill(container, 0, 5)
    clock.now += 3600
    await fill(container, 5, 5)

    since = datetime.fromtimestamp(START, UTC) + timedelta(minutes=30)
    found, _ = await changes(container, start_time=since)

    assert sorted(found) == ["5", "6", "7", "8", "9"]


async def test_the_feeds_of_all_ranges_together_have_everything_once(container, server):
    await fill(container, 0, 30)
    ranges = [each async for each in container.read_feed_ranges()]
    assert len(ranges) == len(server.container("flights", "flights").map) > 1

    found = [(await changes(container, feed_range=each, start_time="Beginning"))[0] for each in ranges]

    assert sorted((name for each in found for name in each), key=int) == [str(n) for n in range(30)]
    assert sum(map(bool, found)) > 1


async def test_pages_are_of_the_size_asked_for(container):
    for number in range(7):
        await container.upsert_item({"id": str(number), "origin": "JFK"})
    feed = container.query_items_change_feed(partition_key="JFK", start_time="Beginning", max_item_count=3)

    pages = [[item["id"] async for item in page] async for page in feed.by_page()]

    assert [page for page in pages if page] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


async def test_a_feed_goes_on_over_a_split_and_a_merge(container, server):
    await fill(container, 0, 30)
    _, continuation = await changes(container, start_time="Beginning")
    await fill(container, 30, 10)
    server.split("flights", "flights")

    found, continuation = await changes(container, continuation=continuation)
    assert sorted(found) == [str(number) for number in range(30, 40)]

    server.merge("flights", "flights")
    await fill(container, 40, 5)
    found, _ = await changes(container, continuation=continuation)
    assert sorted(found) == [str(number) for number in range(40, 45)]


async def test_a_feed_of_all_versions_and_deletes_is_refused_and_not_answered_with_something_else(container):
    with pytest.raises(CosmosHttpResponseError, match="Full-Fidelity Feed") as caught:
        await changes(container, mode="AllVersionsAndDeletes")
    assert caught.value.status_code == 400


# -- time to live -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "own", "lives"),
    [
        (None, None, None),
        (None, 5, None),  # off: what a document says is not looked at
        (-1, None, None),
        (-1, 5, 5),
        (60, None, 60),
        (60, 5, 5),
        (60, -1, None),
    ],
)
async def test_a_document_lives_as_long_as_it_or_its_container_says(
    client, server, clock, default, own, lives
):
    container = await make(client, "aging", default_ttl=default)
    await container.create_item({"id": "1", "origin": "JFK", **({} if own is None else {"ttl": own})})

    clock.now += (lives or 10_000_000) - 1
    assert (await container.read_item("1", "JFK"))["id"] == "1"
    if lives is None:
        return
    clock.now += 1
    with pytest.raises(CosmosResourceNotFoundError):
        await container.read_item("1", "JFK")
    assert [item async for item in container.query_items("SELECT * FROM c", partition_key="JFK")] == []
    assert await changes(container, partition_key="JFK", start_time="Beginning")
    assert server.documents("flights", "aging") == []
    await container.create_item({"id": "1", "origin": "JFK"})  # the id is free again


async def test_each_write_begins_the_time_anew_and_a_new_default_holds_for_what_is_there(client, clock):
    container = await make(client, "aging", default_ttl=60)
    await container.create_item({"id": "1", "origin": "JFK"})
    clock.now += 50
    await container.upsert_item({"id": "1", "origin": "JFK"})
    clock.now += 50
    await container.read_item("1", "JFK")

    database = client.get_database_client("flights")
    await database.replace_container(container, PartitionKey("/origin"), default_ttl=51)
    await container.read_item("1", "JFK")
    clock.now += 1
    with pytest.raises(CosmosResourceNotFoundError):
        await container.read_item("1", "JFK")


@pytest.mark.parametrize("ttl", [0, -2, "5", 2**31, 1.5])
async def test_a_time_to_live_that_is_none_is_refused(client, ttl):
    container = await make(client, "aging", default_ttl=-1)

    with pytest.raises(CosmosHttpResponseError, match="ttl") as caught:
        await container.create_item({"id": "1", "origin": "JFK", "ttl": ttl})
    assert caught.value.status_code == 400


async def test_a_containers_time_to_live_that_is_none_is_refused(client):
    with pytest.raises(CosmosHttpResponseError, match="defaultTtl") as caught:
        await make(client, "aging", default_ttl=0)
    assert caught.value.status_code == 400


# -- unique keys ------------------------------------------------------------------------------------------


def seat(name, origin="JFK", tail="N1", row=1, ticket=None):
    return {"id": name, "origin": origin, "tail": tail, "seat": {"row": row}, "ticket": ticket or name}


@pytest.fixture
async def seats(client):
    container = await make(client, "seats", unique_key_policy=UNIQUE)
    await container.create_item(seat("1"))
    return container


async def test_a_second_document_with_the_same_unique_key_is_a_conflict_however_it_is_written(seats):
    with pytest.raises(CosmosResourceExistsError, match="Unique index constraint"):
        await seats.create_item(seat("2"))
    with pytest.raises(CosmosResourceExistsError):
        await seats.upsert_item(seat("2", row=2, ticket="1"))
    await seats.create_item(seat("2", row=2))
    with pytest.raises(CosmosResourceExistsError):
        await seats.patch_item("2", "JFK", [{"op": "set", "path": "/seat/row", "value": 1}])
    with pytest.raises(CosmosResourceExistsError):
        await seats.replace_item("2", seat("2", row=1))
    assert (await seats.read_item("2", "JFK"))["seat"] == {"row": 2}


async def test_other_partitions_other_values_and_the_document_itself_are_no_conflict(seats):
    await seats.create_item(seat("2", origin="LGA", ticket="1"))
    await seats.create_item(seat("3", row="1"))  # a text is no number
    await seats.upsert_item(seat("1"))
    await seats.replace_item("1", {**seat("1"), "note": "same"})
    await seats.delete_item("1", "JFK")
    await seats.create_item(seat("4", ticket="1"))


async def test_a_value_that_is_missing_is_unique_too(seats):
    await seats.create_item({"id": "5", "origin": "JFK"})

    with pytest.raises(CosmosResourceExistsError):
        await seats.create_item({"id": "6", "origin": "JFK"})


async def test_a_batch_that_fails_leaves_unique_keys_as_they_were(seats):
    with pytest.raises(CosmosBatchOperationError):
        await seats.execute_item_batch(
            [("delete", ("1",)), ("create", (seat("7", row=7),)), ("create", (seat("7", row=8),))], "JFK"
        )

    with pytest.raises(CosmosResourceExistsError):
        await seats.create_item(seat("8", ticket="other"))
    await seats.create_item(seat("9", row=7))


async def test_an_expired_document_keeps_no_unique_key(client, clock):
    container = await make(client, "both", unique_key_policy=UNIQUE, default_ttl=10)
    await container.create_item(seat("1"))
    clock.now += 10
    await container.create_item(seat("2", ticket="1"))


async def test_a_policy_that_is_none_is_refused(client):
    with pytest.raises(CosmosHttpResponseError, match="uniqueKeyPolicy") as caught:
        await make(client, "seats", unique_key_policy={"uniqueKeys": [{"paths": ["tail"]}]})
    assert caught.value.status_code == 400


# -- patches ----------------------------------------------------------------------------------------------


async def test_a_patch_may_be_a_bare_list_of_operations(container, server):
    """As clients without conditions send it."""
    await container.create_item({"id": "1", "origin": "JFK", "delay": 1})
    holder = server.container("flights", "flights")
    patch = b' [{"op": "incr", "path": "/delay", "value": 2}]'

    holder.patch(holder.partition('["JFK"]'), "1", patch, ANY, START)

    assert (await container.read_item("1", "JFK"))["delay"] == 3
