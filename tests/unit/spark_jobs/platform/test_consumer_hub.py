"""Which hub and container of a consumer's file a Spark job is about, and what it makes of the hub's events."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from consumer.model import DeadLetter, Event, Rejection
from spark_jobs.backfill.run import BackfillSettings, _checkpoint_group
from spark_jobs.backfill.target import CountedDeadLetters, read_target
from spark_jobs.platform.consumer_hub import (
    MADE_BY,
    cosmos_options,
    for_executors,
    has_other_sinks,
    hub_on_cosmos,
    run_facts,
)
from spark_jobs.reconciliation.keys import _keyed, event_columns, identity_of, may_be_several
from spark_jobs.reconciliation.schemas import Identity
from spark_jobs.sources.dead_letters import _are_of_others
from tests.support.consumer.decoding import descriptors
from tidemark.analysis.errors import InputError

ROOT = Path(__file__).parents[4]
SHARED_KEY = "Endpoint=sb://orders.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=s"
SETTINGS = {
    "HubOfOrders": SHARED_KEY,
    "AccountOfOrders": "AccountEndpoint=https://orders.documents.azure.com/;AccountKey=c2VjcmV0;",
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "CONSUMER_SINK": "sql",
    "CONSUMER_SQL_URL": "sqlite://",
    "PATH": "/bin",
}
FILE = """
version = 1
[sinks.orders]
type = "cosmos"
connection = "AccountOfOrders"
database = "shop"
container = "orders"
guard = "number"
[sinks.totals]
type = "cosmos"
connection = "AccountOfOrders"
database = "shop"
container = "totals"
if_missing = "ignore"
[sinks.hook]
type = "http"
url = "https://example.com/hook"
[hubs.orders]
connection = "HubOfOrders"
hub = "orders"
steps = [{ split = "/orders" }, { filter = "amount > 0" }]
[[hubs.orders.routes]]
to = "hook"
when = "kind == 'alert'"
[[hubs.orders.routes]]
to = "totals"
also = true
operation = "patch"
id = "/customer"
patch = ["increment /total from /amount"]
[[hubs.orders.routes]]
to = "orders"
[hubs.plain]
connection = "HubOfOrders"
hub = "plain"
[[hubs.plain.routes]]
to = "orders"
[hubs.hooked]
connection = "HubOfOrders"
hub = "hooked"
[[hubs.hooked.routes]]
to = "hook"
[hubs.avro]
connection = "HubOfOrders"
hub = "avro"
[hubs.avro.decode]
format = "cloudevents"
[[hubs.avro.routes]]
to = "orders"
"""


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "consumer.toml"
    path.write_text(FILE)
    return {**SETTINGS, "CONSUMER_FILE": str(path)}


def keys_of(hub, *bodies):
    row = {
        "partition": "0",
        "enqueued_at": datetime(2026, 11, 27, tzinfo=UTC),
        "file": "f",
        "offset": "",
        "properties": None,
    }
    rows = [
        {**row, "sequence_number": number, "body": json.dumps(body).encode()}
        for number, body in enumerate(bodies)
    ]
    [batch] = _keyed([pa.RecordBatch.from_pylist(rows)], hub, ["/id"], None)
    return batch.to_pylist()


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({}, "--hub: is missing; the file has the hubs orders, plain, hooked, avro"),
        ({"hub": "others"}, "--hub: found 'others'; accepted: orders, plain, hooked, avro"),
        (
            {"hub": "orders"},
            "--sink is missing; accepted, of the hub 'orders' into Cosmos DB: orders, totals",
        ),
        ({"hub": "orders", "sink": "hook"}, "--sink is 'hook'; accepted, .*: orders, totals"),
        ({"hub": "plain", "sink": "totals"}, "--sink is 'totals'; accepted, .*'plain'.*: orders"),
        ({"hub": "hooked"}, r"the hub 'hooked' has the sinks hook \(http\); a backfill writes to one of the"),
        ({"hub": "avro"}, "the format of the hub 'avro' is cloudevents"),
    ],
)
def test_a_hub_or_sink_that_the_job_cannot_be_about_is_refused_by_its_option(settings, named, told):
    with pytest.raises(InputError, match=told):
        read_target(settings, **named)


def test_a_name_of_the_file_is_refused_where_there_is_no_file():
    with pytest.raises(InputError, match="--hub is 'orders', and CONSUMER_FILE is not set"):
        hub_on_cosmos({}, "a backfill writes to", hub="orders")
    with pytest.raises(InputError, match="--sink is 'orders', and CONSUMER_FILE is not set"):
        hub_on_cosmos({}, "a backfill writes to", sink="orders")


def test_what_is_wrong_in_the_file_is_told_with_its_line(settings, tmp_path):
    (tmp_path / "consumer.toml").write_text(FILE.replace("guard =", "gard ="))

    with pytest.raises(InputError, match=r"consumer\.toml:\d+ sinks\.orders.*gard"):
        read_target(settings, hub="plain")


def test_of_several_sinks_the_writes_of_one_are_looked_for_and_an_event_of_others_is_dropped(settings):
    hub = hub_on_cosmos(settings, "a reconciliation reads", hub="orders", sink="orders")
    order = {"id": "a", "amount": 3, "customer": "c", "kind": "order"}
    alert = {**order, "id": "b", "kind": "alert"}
    keys = keys_of(
        hub,
        {"orders": [order]},
        {"orders": [alert]},
        {"orders": [order, alert, {**order, "id": "x", "amount": 0}]},
        {"orders": [{**order, "id": None}]},
        {"orders": "none"},
    )

    assert [(key["document_id"], key["writes"], key["rejection"]) for key in keys] == [
        ("a", None, None),
        (None, 0, None),
        ("a", None, None),
        (None, None, "id"),
        (None, None, "step"),
    ]
    assert has_other_sinks(hub)
    assert may_be_several(hub)
    assert identity_of(hub) is Identity.META
    assert {"body", "properties", "system_properties"} <= {*event_columns(hub)}


def test_a_run_notes_the_namespace_and_the_container_that_it_is_about(settings):
    """Else a table of what one container lacks would be written to another."""
    noted = [
        run_facts(hub_on_cosmos(settings, "a backfill writes to", hub="orders", sink=sink))
        for sink in ("orders", "totals")
    ]

    names = ("hub", "topic", "target", "account")
    hub = {"hub": "orders", "topic": "orders.servicebus.windows.net/orders"}
    account = {"account": "https://orders.documents.azure.com/"}
    assert [{name: facts[name] for name in names} for facts in noted] == [
        {**hub, "target": f"shop/{sink}", **account} for sink in ("orders", "totals")
    ]


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('filter = "amount > 0"', 'filter = "amount > 1"', "mapping"),
        ('to = "hook"', 'to = "totals"', "mapping"),
        ('guard = "number"', 'guard = "number"\nttl = "7d"', "writing"),
        (
            'hub = "orders"',
            'hub = "orders"\ntransform = "tests.unit.spark_jobs.platform.test_consumer_hub:as_it_is"',
            "mapping",
        ),
        (
            'hub = "orders"',
            'hub = "orders"\ndecode = { format = "json", unpack = "none", arrays = true }',
            "bodies",
        ),
        ("orders.documents.azure.com", "others.documents.azure.com", "account"),
    ],
)
def test_a_run_notes_how_documents_are_made(tmp_path, settings, old, new, fact):
    """Else a backfill of what was missing then would write by other routes than those by which it was found missing."""

    def noted(change):
        path = tmp_path / "changed.toml"
        path.write_text(change(FILE))
        changed = {name: change(value) for name, value in settings.items()} | {"CONSUMER_FILE": str(path)}
        return run_facts(hub_on_cosmos(changed, "a backfill writes to", hub="orders", sink="orders"))

    before, after = noted(str), noted(lambda text: text.replace(old, new, 1))

    assert {name for name in before if before[name] != after[name]} == {fact}
    assert after.keys() - before.keys() <= {"code"}
    assert noted(str) == before
    assert "c2VjcmV0" not in str(before)


@pytest.mark.parametrize(("file", "fact"), [("shop_documents.py", "code"), ("shop.desc", "schemas")])
def test_a_run_notes_the_code_of_the_transform_and_the_files_of_schemas(
    tmp_path, settings, monkeypatch, file, fact
):
    """Settings only name them, and stay as they are when a file is changed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_documents.py").write_text("def document_of(document, event):\n    return document\n")
    (tmp_path / "shop.desc").write_bytes(descriptors())
    schemas = (
        f'format = "protobuf", files = ["{tmp_path}/shop.desc"], message = "shop.Order", unpack = "none"'
    )
    added = f'hub = "orders"\ntransform = "shop_documents:document_of"\ndecode = {{ {schemas} }}'
    Path(settings["CONSUMER_FILE"]).write_text(FILE.replace('hub = "orders"', added, 1))
    hub = hub_on_cosmos(settings, "a job reads", hub="orders", sink="orders")

    def noted():
        facts = run_facts(hub)
        group = _checkpoint_group("c", hub, BackfillSettings(records_per_second=1), "events")
        return facts, group

    before, group = noted()
    assert noted() == (before, group)
    changed = {"code": b"def document_of(document, event):\n    return {}\n"}
    (tmp_path / file).write_bytes(changed.get(fact, descriptors() + b"\n\x00"))
    after, another = noted()

    assert {name for name in before if before[name] != after[name]} == {fact}
    assert fact in MADE_BY
    assert another != group


def as_it_is(document, _event):
    return document


def test_a_patch_that_may_leave_nothing_is_refused_where_an_event_asks_for_it(settings):
    hub = hub_on_cosmos(settings, "a reconciliation reads", hub="orders", sink="totals")
    assert identity_of(hub) is Identity.BODY

    with pytest.raises(InputError, match=r"event 0 of partition 0 asks for patch, and .*if_missing.*ignore"):
        keys_of(hub, {"orders": [{"id": "a", "amount": 3, "customer": "c"}]})


def test_a_hub_with_one_sink_is_as_its_settings_would_describe_it(settings):
    hub = read_target(settings, hub="plain")
    plain = {name: value for name, value in SETTINGS.items() if not name.startswith("CONSUMER_S")}
    described = read_target(
        {
            **plain,
            "EventHubConnection": SHARED_KEY,
            "CosmosConnection": SETTINGS["AccountOfOrders"],
            "EVENTHUB_NAME": "plain",
            "COSMOS_DATABASE": "shop",
            "COSMOS_CONTAINER": "orders",
            "COSMOS_GUARD": "number",
        }
    )
    bodies = {"id": "a"}, {"id": "b", "n": 1}, {"no": "id"}
    budget = BackfillSettings(records_per_second=1)

    assert not has_other_sinks(hub)
    assert keys_of(hub, *bodies) == keys_of(described, *bodies)
    assert _checkpoint_group("c", hub, budget, "e") == _checkpoint_group("c", described, budget, "e")


def test_other_steps_routes_or_sinks_are_another_backfill(settings, tmp_path):
    budget, names = BackfillSettings(records_per_second=1), set()
    for text in (FILE, FILE.replace("amount > 0", "amount > 1"), FILE.replace("'alert'", "'alarm'")):
        (tmp_path / "consumer.toml").write_text(text)
        for sink in ("orders", "totals"):
            hub = hub_on_cosmos(settings, "a backfill writes to", hub="orders", sink=sink)
            names.add(_checkpoint_group("c", hub, budget, "e"))

    assert len(names) == 6


def test_a_task_needs_no_file_and_gets_no_other_secret(settings):
    hub = hub_on_cosmos(settings, "a backfill writes to", hub="orders", sink="orders")

    carried = for_executors(hub)

    assert "CONSUMER_FILE" not in carried
    assert "CONSUMER_SINK" not in carried  # the file's sink is another
    assert {"HubOfOrders", "AccountOfOrders", "AzureWebJobsStorage"} <= {*carried}
    assert "PATH" not in carried
    assert carried["EVENTHUB_NAME"] == "orders"
    assert (cosmos_options(hub).database, cosmos_options(hub).container) == ("shop", "orders")


def test_a_task_gets_the_identity_of_the_local_stack_and_not_that_of_the_drivers_machine(
    settings, monkeypatch
):
    """A schema registry takes identities only; without one its events wait for ever."""
    identity = {"IDENTITY_ENDPOINT": "https://localhost:8444/identity", "IDENTITY_HEADER": "header"}
    hub = hub_on_cosmos({**settings, **identity}, "a backfill writes to", hub="orders", sink="orders")

    assert identity.items() <= for_executors(hub).items()
    for name, value in identity.items():
        monkeypatch.setenv(name, value)
    assert identity.keys().isdisjoint(for_executors(hub))


def test_steps_and_routes_run_in_a_process_without_the_file(settings, tmp_path):
    hub = hub_on_cosmos(settings, "a reconciliation reads", hub="orders", sink="orders")
    (tmp_path / "hub").write_bytes(cloudpickle.dumps(hub))
    (tmp_path / "consumer.toml").unlink()
    code = """if True:
        import pickle, sys
        from tests.unit.spark_jobs.platform.test_consumer_hub import keys_of
        hub = pickle.load(open(sys.argv[1], "rb"))
        keys = keys_of(hub, {"orders": [{"id": "a", "amount": 3, "customer": "c", "kind": "order"}]})
        print(keys[0]["document_id"])
    """
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "hub")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert ran.stdout == "a\n", ran.stderr


@pytest.mark.parametrize(
    ("records", "of_others"),
    [
        ((), False),  # of the whole event
        (("hook:0",), True),
        (("hook:0", "totals:1"), True),
        (("hook:0", "orders:1"), False),
        (("0", "hook:0"), False),  # a route or a step rejected it, whose sink is not known
    ],
)
def test_a_dead_letter_of_other_sinks_alone_is_none_of_this_one(records, of_others):
    event = Event("0", 1, "1", 1.0, b"{}")
    letter = DeadLetter("orders", "$Default", event, Rejection("x", "y"), 1, 2.0, records, 2)

    assert _are_of_others(letter, "orders") is of_others


async def test_a_letter_of_a_backfill_into_one_of_several_sinks_is_about_its_whole_event():
    """It replaces the consumer's own, which may name what another sink lacks."""
    kept = []

    class Box:
        async def put(self, letters, *, deadline):
            kept.extend(letters)

    event = Event("0", 1, "1", 1.0, b"{}")
    letter = DeadLetter("orders", "$Default", event, Rejection("x", "y"), 1, 2.0, ("orders:1",), 3)
    for whole in (True, False):
        await CountedDeadLetters(Box(), whole=whole).put([letter], deadline=0.0)

    assert [(each.records, each.of) for each in kept] == [((), 1), (("orders:1",), 3)]
