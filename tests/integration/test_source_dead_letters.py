"""The data source "dead_letters" over each of the consumer's stores."""

import asyncio
import json
import uuid
from contextlib import aclosing

import pytest

from consumer.config import read_config
from consumer.model import DeadLetter, Event, Rejection
from consumer.running.assembly import Parts
from devstack.cosmos import CosmosServer
from spark_jobs.sources.dead_letters import DEAD_LETTERS, DeadLetterReader, DeadLetterSource
from tests.support.servers.threaded import running_in_thread
from tidemark.analysis.errors import InputError, JobError

pytestmark = pytest.mark.wire

HUB = "Endpoint=sb://orders.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"


@pytest.fixture(scope="module")
def cosmos():
    with running_in_thread(CosmosServer) as threaded:
        threaded.call(lambda: threaded.server.create_database("db"))
        yield threaded.server


@pytest.fixture(params=["blob", "cosmos", "sql"])
def settings(request, azurite, cosmos, tmp_path):
    return {
        "EventHubConnection": HUB,
        "EVENTHUB_NAME": "orders",
        "AzureWebJobsStorage": azurite,
        "CosmosConnection": cosmos.connection_string,
        "COSMOS_DATABASE": "db",
        "COSMOS_CONTAINER": "orders",
        "CONSUMER_SQL_URL": f"sqlite:///{tmp_path}/letters.db",
        "CONSUMER_DEAD_LETTERS": request.param,
        "CONSUMER_DEAD_LETTER_CONTAINER": f"letters-{uuid.uuid4().hex[:12]}",
    }


def letter(partition, number, reason="json", group="$Default"):
    event = Event(partition, number, str(number * 8), 1_795_000_000.25, b'{"a":')
    return DeadLetter("orders", group, event, Rejection(reason, "ends early"), 2, 1_795_000_100.5)


def put(settings, letters):
    async def work():
        store = Parts(read_config(settings), settings).dead_letters()
        async with aclosing(store):
            await store.open()
            await store.put(letters, deadline=asyncio.get_running_loop().time() + 60)

    asyncio.run(work())


def rows_of(settings, partitions=""):
    reader = DeadLetterReader({"secretSettings": json.dumps(settings), "partitions": partitions})
    return [
        [row for batch in reader.read(partition) for row in batch.to_pylist()]
        for partition in reader.partitions()
    ]


def test_every_letter_of_the_consumer_is_read_once_with_its_reason(settings):
    put(settings, [letter("0", n) for n in range(5)] + [letter("1", 7, "id"), letter("1", 7, "id")])
    put({**settings, "EVENTHUB_CONSUMERGROUP": "others"}, [letter("0", 99, group="others")])
    [rows] = rows_of(settings)

    assert [(row["partition"], row["sequence_number"], row["reason"]) for row in rows] == [
        *(("0", n, "json") for n in range(5)),
        ("1", 7, "id"),
    ]
    assert {
        **rows[0],
        "enqueued_at": rows[0]["enqueued_at"].timestamp(),
        "failed_at": rows[0]["failed_at"].timestamp(),
    } == {
        "hub": "orders",
        "consumer_group": "$Default",
        "partition": "0",
        "sequence_number": 0,
        "offset": "0",
        "enqueued_at": 1_795_000_000.25,
        "reason": "json",
        "detail": "ends early",
        "attempts": 2,
        "failed_at": 1_795_000_100.5,
        "size": 5,
        "parked": False,
        "records": None,
        "of": 1,
    }
    assert list(rows[0]) == DEAD_LETTERS.fieldNames()


def test_partitions_of_the_hub_can_be_partitions_of_spark(settings):
    put(settings, [letter("0", 1), letter("1", 2), letter("2", 3)])

    assert [[row["sequence_number"] for row in rows] for rows in rows_of(settings, "2, 0")] == [[3], [1]]


def test_no_letters_are_no_rows(settings):
    assert rows_of(settings) == [[]]


def test_settings_at_fault_are_named():
    with pytest.raises(InputError, match="EVENTHUB_NAME"):
        DeadLetterReader({"secretSettings": "{}"})
    with pytest.raises(InputError, match="no JSON object"):
        DeadLetterReader({"secretSettings": "[1]"})


def test_a_store_that_does_not_answer_is_an_error_and_not_no_letters(tmp_path):
    settings = {
        "EventHubConnection": HUB,
        "EVENTHUB_NAME": "orders",
        "COSMOS_DATABASE": "db",
        "COSMOS_CONTAINER": "orders",
        "CONSUMER_DEAD_LETTERS": "sql",
        "CONSUMER_SQL_URL": f"sqlite:///{tmp_path}/no/such/folder/letters.db",
    }

    with pytest.raises(JobError):
        rows_of(settings)


def test_the_source_is_known_by_its_name():
    assert DeadLetterSource.name() == "dead_letters"
