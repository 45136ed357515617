"""The data source "cosmos" against the local Cosmos DB."""

import json
import pickle
from datetime import UTC, datetime

import pytest
from azure.cosmos import CosmosClient
from msgspec import UNSET

from devstack.cosmos import CosmosServer
from devstack.servers.faults import Fault
from spark_jobs.sources.cosmos import (
    CosmosDataSource,
    CosmosReader,
    FeedRange,
    canonical_key,
    pause,
    query_text,
)
from tests.support.servers.threaded import running_in_thread
from tidemark.analysis.errors import InputError

pytestmark = pytest.mark.wire


@pytest.fixture
def cosmos():
    with running_in_thread(CosmosServer) as threaded:
        yield threaded


def fill(cosmos, documents, paths="/dest", name="flights", throughput=20_000):
    """A container of two physical partitions, unless told otherwise, with these documents."""

    def work():
        cosmos.server.create_container("db", name, paths, throughput=throughput)

    cosmos.call(work)
    url, _, key = cosmos.server.connection_string.removeprefix("AccountEndpoint=").partition(";AccountKey=")
    with CosmosClient(url, key.rstrip(";")) as client:
        container = client.get_database_client("db").get_container_client(name)
        for document in documents:
            container.upsert_item(document)


def options(cosmos, **more):
    given = {
        "secretConnectionString": cosmos.server.connection_string,
        "database": "db",
        "container": "flights",
    }
    return {**given, **more}


def reader(**given):
    return CosmosReader({name.lower(): value for name, value in given.items()})


def rows_of(given):
    """What the reader gives without Spark, by partition."""
    made = reader(**given)
    return [
        [row for batch in made.read(partition) for row in batch.to_pylist()]
        for partition in made.partitions()
    ]


def flights(count):
    return [
        {"id": f"f{n}", "dest": f"D{n % 17}", "flight": {"number": n, "tail": None}, "text": "x" * 50}
        for n in range(count)
    ]


def test_an_empty_container_has_no_rows(cosmos):
    fill(cosmos, [])

    assert rows_of(options(cosmos)) == [[], []]


def test_documents_written_earlier_can_be_left_out(cosmos):
    fill(cosmos, flights(5))
    now = datetime.now(UTC).timestamp()

    assert sum(map(len, rows_of(options(cosmos, modifiedSince=str(now - 600))))) == 5
    assert sum(map(len, rows_of(options(cosmos, modifiedSince=str(now + 600))))) == 0


def test_partition_keys_of_all_kinds_and_levels_are_as_cosmos_has_them(cosmos):
    fill(
        cosmos,
        [
            {"id": "1", "tenant": 7.0, "dest": "LGA"},
            {"id": "2", "tenant": 7.5, "dest": None},
            {"id": "3", "tenant": True, "dest": "JFK"},
        ],
        paths=["/tenant", "/dest"],
    )
    found = {row["id"]: row["partition_key"] for part in rows_of(options(cosmos)) for row in part}

    assert found == {"1": '[7,"LGA"]', "2": "[7.5,null]", "3": '[true,"JFK"]'}


def test_throttling_and_lost_connections_neither_lose_nor_repeat_a_document(cosmos):
    fill(cosmos, flights(60))
    for kind in (
        {"kind": "error", "status": 429, "condition": "3200", "retry_after": 0.01, "count": 12},
        {"kind": "drop_connection", "count": 1},
        {"kind": "error", "status": 503, "count": 1},
    ):
        given = dict(kind)
        cosmos.call(lambda given=given: cosmos.server.inject(Fault("docs.query", given.pop("kind"), **given)))
        found = sorted(row["id"] for part in rows_of(options(cosmos, pageSize="7")) for row in part)

        assert found == sorted(f"f{n}" for n in range(60))


def test_the_partitions_of_a_container_that_split_meanwhile_still_cover_it(cosmos):
    fill(cosmos, flights(80))
    made = reader(**options(cosmos, pageSize="10"))
    planned = made.partitions()
    ranges = cosmos.server.container("db", "flights").map.ranges
    cosmos.call(lambda: cosmos.server.split("db", "flights", ranges[0].id))
    found = [row["id"] for each in planned for batch in made.read(each) for row in batch.to_pylist()]

    assert sorted(found) == sorted(f"f{n}" for n in range(80))


def test_the_budget_is_shared_by_the_partitions_and_waited_for(cosmos):
    fill(cosmos, flights(4))
    shares = [partition.budget for partition in reader(**options(cosmos, ruPerSecond="100")).partitions()]

    assert shares == [50.0, 50.0]
    assert pause(charged=100.0, elapsed=0.5, budget=50.0) == 1.5
    assert pause(charged=10.0, elapsed=0.5, budget=50.0) == 0.0


def test_what_is_not_there_is_named(cosmos):
    fill(cosmos, [])

    with pytest.raises(InputError, match=r"there is no container 'nowhere' in database 'db'"):
        reader(**options(cosmos, container="nowhere")).partitions()
    with pytest.raises(InputError, match="option database is missing"):
        reader(**{**options(cosmos), "database": " "})
    with pytest.raises(InputError, match="option fields has 'number'"):
        reader(**options(cosmos, fields="number"))


@pytest.mark.parametrize("text", ["0", "-1", "many", "nan", "inf"])
def test_a_budget_that_is_none_is_refused(text):
    given = {"secretConnectionString": "x", "database": "db", "container": "c", "ruPerSecond": text}

    with pytest.raises(InputError, match="option ruPerSecond"):
        reader(**given)


def test_settings_of_an_app_are_another_way_to_connect(cosmos):
    fill(cosmos, flights(3))
    given = options(cosmos, secretSettings=json.dumps({"Telemetry": cosmos.server.connection_string}))
    del given["secretConnectionString"]

    assert sum(map(len, rows_of({**given, "connection": "Telemetry"}))) == 3
    with pytest.raises(InputError, match="no Cosmos DB connection 'CosmosConnection'"):
        rows_of(given)


def test_names_in_paths_are_quoted_in_the_query():
    assert (
        query_text(["/a"], {"x": '/"b]\\"/c'})
        == 'SELECT c.id, c._ts, c["a"] AS k0, c["b]\\\\"]["c"] AS f0 FROM c'
    )


def test_whole_numbers_of_a_key_have_no_fraction_and_large_ones_are_doubles():
    assert (
        canonical_key([1.0, -0.0, 2**53 + 1, True, None, "1.0"]) == '[1,0,9007199254740992,true,null,"1.0"]'
    )
    assert canonical_key([1.5, UNSET]) == "[1.5,{}]"


def test_the_source_is_known_by_its_name_and_its_ranges_travel_to_tasks():
    each = pickle.loads(pickle.dumps(FeedRange({"Range": {"min": "", "max": "FF"}}, 2.0)))

    assert CosmosDataSource.name() == "cosmos"
    assert (each.value, each.budget) == ({"Range": {"min": "", "max": "FF"}}, 2.0)
