"""The doctor's checks of a consumer against the local stack: all is well, then each is made to fail, and says what to do."""

import asyncio
import re
from pathlib import Path

import psycopg
import pytest
from azure.eventhub import EventData, EventHubProducerClient

from consumer.definition.loading import find_hub, load_definition
from consumer.doctor import checks, trials
from consumer.model import Checkpoint
from consumer.running.assembly import Parts
from consumer.stores.sql.tables import EVENTS, TABLES
from devstack.servers.faults import Fault
from devstack.stack.supervisor import ANY_PORTS, CONSUMER_GROUP, EVENT_HUB, EVENT_HUB_PARTITIONS, Stack
from scaling.doctor.running import run
from tests.support.servers.postgres import running_server
from tests.support.servers.threaded import running_in_thread
from tidemark.foundation.checkup import Verdict
from tidemark.foundation.sql.database import ddl

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.wire, pytest.mark.timeout(120)]

NAMED = {
    "EVENTHUB_NAME": EVENT_HUB,
    "EVENTHUB_CONSUMERGROUP": CONSUMER_GROUP,
    "COSMOS_DATABASE": "flights",
    "COSMOS_CONTAINER": "flights",
}


def put_position(settings, partition, sequence_number):
    """As a consumer of the hub with this name did, before it was created anew."""
    definition = find_hub(load_definition(settings), None)

    async def put():
        store = Parts(definition.config, settings, definition).checkpoints()
        await store.put(
            Checkpoint(partition, sequence_number, "o"), deadline=asyncio.get_running_loop().time() + 20
        )
        await store.aclose()

    asyncio.run(put())


@pytest.fixture(scope="module")
def stack():
    with running_in_thread(lambda: Stack(ANY_PORTS)) as running:
        settings = running.call(running.server.settings)
        with EventHubProducerClient.from_connection_string(
            settings["EventHubConnection"], eventhub_name=EVENT_HUB
        ) as producer:
            producer.send_batch([EventData("{}")], partition_id="1")  # the first one is empty
        running.settings = {**settings, **NAMED}
        yield running


def examined(stack, **changed):
    """(check, subject) -> finding."""
    settings = {name: value for name, value in {**stack.settings, **changed}.items() if value is not None}
    checkup = asyncio.run(run(checks.checks_of(settings, ROOT)))
    return {(finding.check, finding.subject): finding for finding in checkup.findings}


def only_bad(found):
    (told,) = (each for each in found.values() if each.verdict.is_bad)
    return told


def test_a_consumer_in_order_is_healthy_and_nothing_is_left_behind(stack):
    found = examined(stack)
    again = examined(stack)

    assert [each.line for each in found.values() if each.verdict is not Verdict.OK] == []
    assert found["receive", f"hub {EVENT_HUB}, group {CONSUMER_GROUP}"].found == "an event was read"
    assert {check for check, _ in found} == {
        *(
            "configuration",
            "receive",
            "write",
            "checkpoints",
            "dead letters",
            "storage",
            "positions",
            "parked",
        ),
    }
    stores = {
        name: each.found
        for name, each in again.items()
        if name[0] in {"checkpoints", "dead letters", "storage"}
    }
    assert all(store.startswith("not there yet") for store in stores.values())


def test_a_consumer_at_work_is_not_disturbed(stack):
    hubs = stack.call(lambda: stack.server.event_hubs)
    owners = stack.call(
        lambda: [hubs.steal(EVENT_HUB, str(each), 0, CONSUMER_GROUP) for each in range(EVENT_HUB_PARTITIONS)]
    )
    found = examined(stack)
    stack.call(lambda: [owner.release() for owner in owners])

    assert found["receive", f"hub {EVENT_HUB}, group {CONSUMER_GROUP}"].found == "a consumer receives"


def test_a_hub_that_is_not_there(stack):
    told = only_bad(examined(stack, EVENTHUB_NAME="nowhere"))

    assert (told.check, told.verdict) == ("receive", Verdict.FAILED)
    assert "create it: event hub 'nowhere'" in told.remedy


def test_a_consumer_group_that_is_not_there(stack, monkeypatch):
    monkeypatch.setattr(trials, "LISTENING", 2.0)
    told = only_bad(examined(stack, EVENTHUB_CONSUMERGROUP="nobody"))

    assert (told.check, told.verdict) == ("receive", Verdict.UNKNOWN)
    assert "the consumer group 'nobody' exists" in told.remedy


def test_events_that_may_not_be_received(stack):
    wrong = re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=d3Jvbmc=", stack.settings["EventHubConnection"])
    told = only_bad(examined(stack, EventHubConnection=wrong))

    assert (told.check, told.verdict) == ("receive", Verdict.FAILED)
    assert "'Azure Event Hubs Data Receiver'" in told.remedy


def test_a_schema_registry_that_may_be_read_or_not(stack, monkeypatch):
    which = {"CONSUMER_SCHEMA_REGISTRY": "SchemaRegistry"}
    name = "schemas", "registry SchemaRegistry"
    faults = stack.server.schema_registry.faults

    assert examined(stack, **which)[name].found == "schemas may be read"
    stack.call(lambda: faults.add(Fault("registry.get", "error", None, status=403, condition="Forbidden")))
    told = only_bad(examined(stack, **which))
    stack.call(faults.clear)
    assert (told.verdict, "'Schema Registry Reader' role" in told.remedy) == (Verdict.FAILED, True)
    other = {"CONSUMER_DECODER": "confluent", "ConfluentRegistry": stack.server.schema_registry.base_url}
    trusted = {"TIDEMARK_TRUSTED_HOSTS": "localhost"}
    assert examined(stack, **other, **trusted)["schemas", "registry ConfluentRegistry"].verdict is Verdict.OK
    stack.call(lambda: faults.add(Fault("confluent.get", "error", None, status=401)))
    told = only_bad(examined(stack, **other, **trusted))
    stack.call(faults.clear)
    assert (told.verdict, "user name and password" in told.remedy) == (Verdict.FAILED, True)
    told = only_bad(examined(stack, **which, SchemaRegistry__fullyQualifiedNamespace=None))
    assert "no schema registry connection 'SchemaRegistry'" in told.found


def test_documents_that_may_not_be_written(stack):
    wrong = re.sub("AccountKey=[^;]{4}", "AccountKey=AAAA", stack.settings["CosmosConnection"])
    told = only_bad(examined(stack, CosmosConnection=wrong))

    assert (told.check, told.verdict) == ("write", Verdict.FAILED)
    assert "'Cosmos DB Built-in Data Contributor'" in told.remedy


def test_documents_that_may_be_read_and_not_written(stack):
    """What a reader's role is in Azure."""
    refusal = Fault("docs.delete", "error", count=None, status=403, condition="5300")
    stack.call(lambda: stack.server.cosmos.faults.add(refusal))
    told = only_bad(examined(stack))
    stack.call(stack.server.cosmos.faults.clear)

    assert (told.check, told.verdict) == ("write", Verdict.FAILED)
    assert "'Cosmos DB Built-in Data Contributor'" in told.remedy


def test_a_container_that_is_not_there(stack):
    told = only_bad(examined(stack, COSMOS_CONTAINER="nowhere", CONSUMER_DEAD_LETTERS="cosmos"))

    assert (told.check, told.found) == ("write", "is not there")
    assert "create container 'nowhere'" in told.remedy


@pytest.mark.parametrize(
    ("container", "settings", "verdict", "said"),
    [
        ({"version": 1}, {}, Verdict.WARNING, "hash version 1"),
        ({"version": 2}, {"COSMOS_TTL": "30d"}, Verdict.FAILED, "no defaultTtl, and COSMOS_TTL is 30d"),
        ({"version": 2}, {"COSMOS_GUARD": "number"}, Verdict.WARNING, "tombstones"),
    ],
)
def test_what_a_container_is_bad_at_is_said_before_anything_is_written(
    stack, container, settings, verdict, said
):
    name = f"c{container['version']}{len(settings)}{said[:2]}".replace(" ", "")
    stack.call(lambda: stack.server.cosmos.create_container("flights", name, "/dest", **container))
    found = examined(stack, COSMOS_CONTAINER=name, **settings)
    (told,) = (each for each in found.values() if each.verdict is not Verdict.OK)

    assert (told.check, told.verdict) == ("write", verdict)
    assert said in told.found
    assert told.remedy


def test_a_container_with_a_default_time_to_live_and_three_levels_is_in_order(stack):
    cosmos = stack.server.cosmos
    stack.call(lambda: cosmos.create_container("flights", "deep", ["/a", "/b", "/c"], default_ttl=-1))
    found = examined(stack, COSMOS_CONTAINER="deep", COSMOS_TTL="30d", COSMOS_GUARD="number")

    assert [each.line for each in found.values() if each.verdict is not Verdict.OK] == []


STORES = (
    ("checkpoints", "container eventhub-checkpoints", "Storage Blob Data Contributor"),
    ("dead letters", "container dead-letters", "Storage Blob Data Contributor"),
    ("storage", "table ConsumerStats", "Storage Table Data Contributor"),
    ("storage", "table ConsumerControls", "Storage Table Data Contributor"),
)


def test_storage_that_refuses(stack):
    wrong = re.sub("AccountKey=[^;]{8}", "AccountKey=AAAAAAAA", stack.settings["AzureWebJobsStorage"])
    found = examined(stack, AzureWebJobsStorage=wrong)

    for check, subject, role in STORES:
        assert found[check, subject].verdict is Verdict.FAILED, subject
        assert role in found[check, subject].remedy


def test_a_slice_that_the_host_would_end(stack):
    fits = examined(stack, CONSUMER_HOSTING="slices")
    long = only_bad(examined(stack, CONSUMER_HOSTING="slices", CONSUMER_SLICE="9m", CONSUMER_SHUTDOWN="50s"))

    assert fits["schedule", "a slice"].found == "lasts 80 s at the most"
    assert (long.check, long.verdict) == ("schedule", Verdict.FAILED)
    assert "after 10 min" in long.found
    assert (
        long.remedy
        == "make CONSUMER_SLICE or CONSUMER_SHUTDOWN shorter, or functionTimeout in host.json longer"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("{}", None), ('{"functionTimeout": "-1"}', None), ('{"functionTimeout": "01:02:03"}', 3723.0)],
)
def test_how_long_the_host_waits(tmp_path, text, seconds):
    path = tmp_path / "host.json"
    assert checks.function_timeout(path) is None

    path.write_text(text)
    assert checks.function_timeout(path) == seconds


@pytest.mark.parametrize(
    ("decision", "verdict", "outcome"),
    [
        ("fail", Verdict.FAILED, "The next start refuses them"),
        ("earliest", Verdict.WARNING, "The next start reads everything that the hub has"),
        ("latest", Verdict.WARNING, "The next start begins at the latest event"),
    ],
)
def test_positions_of_a_hub_that_was_created_anew(stack, decision, verdict, outcome):
    hub = f"anew-{decision}"
    stack.call(lambda: stack.server.event_hubs.create_hub(hub, 2))
    named = {"EVENTHUB_NAME": hub, "CONSUMER_ON_FOREIGN_CHECKPOINT": decision}
    settings = {**stack.settings, **named}
    put_position(settings, "0", 41)

    found = {name: finding for (name, _), finding in examined(stack, **named).items()}["positions"]

    assert (found.verdict, found.found) == (
        verdict,
        f"1 of 1 position not of this hub: partition 0: it reaches to 41, the hub's last event is -1. {outcome}",
    )
    assert "CONSUMER_ON_FOREIGN_CHECKPOINT" in found.remedy


def test_the_host_keeps_the_positions_of_a_trigger_and_the_consumer_which_hub_they_are_of(stack):
    found = {check for check, _ in examined(stack, CONSUMER_HOSTING="trigger")}

    assert "checkpoints" not in found
    assert "known hub" in found


def sql(stack, url, **changed):
    settings = {**stack.settings, "CONSUMER_SINK": "sql", "CONSUMER_SQL_URL": url, **changed}
    (finding,) = asyncio.run(
        run([check for check in checks.checks_of(settings, ROOT) if check.name == "write"])
    ).findings
    return finding


RIGHTS = {
    "EventHubCheckpoint": "UPDATE",
    "EventHubDeadLetter": "DELETE",
    "EventHubLease": "UPDATE, DELETE",
}


def test_a_file_of_sqlite_is_not_made_by_looking(stack, tmp_path):
    told = sql(stack, f"sqlite:///{tmp_path}/none.db")

    assert told.verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_may_be_read_and_not_written(stack):
    with running_server() as url:
        missing = sql(stack, url)
        allowed = sql(stack, url, CONSUMER_SQL_CREATE_TABLES="true")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(ddl([*TABLES, EVENTS], "postgresql"))
            connection.execute(
                "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"
            )
        fine = sql(stack, url)
        refused = sql(stack, url.replace("postgres@", "reader@"))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE own (id int GENERATED ALWAYS AS IDENTITY, n bigint)")
            connection.execute("CREATE ROLE writer LOGIN; GRANT INSERT, SELECT ON own TO writer")
            for table, rights in RIGHTS.items():
                connection.execute(f'GRANT SELECT, INSERT, {rights} ON "{table}" TO writer')
        as_writer = url.replace("postgres@", "writer@")
        least = sql(stack, as_writer, CONSUMER_SQL_TABLE="own", CONSUMER_SQL_COLUMNS="n=@sequence_number")
        no_column = sql(stack, as_writer, CONSUMER_SQL_TABLE="own", CONSUMER_SQL_COLUMNS="m=$.m")

    assert (missing.verdict, fine.verdict, allowed.verdict) == (Verdict.FAILED, Verdict.OK, Verdict.OK)
    assert "CONSUMER_SQL_CREATE_TABLES" in missing.remedy
    assert "without the tables EventHubCheckpoint" in missing.found
    assert "not there yet" in allowed.found
    assert (least.verdict, least.found) == (Verdict.OK, "there; reading and writing are allowed")
    assert "has no column 'm'" in no_column.found
    assert refused.verdict is Verdict.FAILED
    assert "INSERT, UPDATE and DELETE" in refused.remedy
    assert "permission denied" in refused.found
