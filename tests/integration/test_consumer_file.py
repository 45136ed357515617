"""One file, two hubs, two containers by route, on the local servers; and the file changed between two starts."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from consumer.definition.loading import find_hub, load_definition
from consumer.running.assembly import Parts
from consumer.running.hubs import Hubs
from devstack.demo.common.flights import flights
from tests.support.consumer.stack import consumer_world
from tests.support.servers.event_hubs import HUB

ROOT = Path(__file__).parents[2]
FILE = f"""
version = 1

[hubs.records]
hub = "{HUB}"
steps = [{{ split = "/records" }}, {{ filter = "kind != 'test'", drop = "test" }}, {{ mask = ["/card"], with = "*" }}]

[[hubs.records.routes]]
when = "gone"
to = "documents"
operation = "delete"
also = true

[[hubs.records.routes]]
when = "kind == 'flight' and (gone == null or not gone)"
to = "documents"

[[hubs.records.routes]]
when = "kind == 'alert'"
to = "alerts"
steps = [{{ set = {{ number = "@sequence_number" }} }}]

[hubs.gates]
hub = "gates"
poison_limit = 1

[[hubs.gates.routes]]
to = "alerts"

[sinks.documents]
type = "cosmos"
database = "db"
container = "flights"

[sinks.alerts]
type = "cosmos"
database = "db"
container = "alerts"
id = "position"
"""


@pytest.fixture
async def world(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path, partitions=2) as world:
        world.event_hubs.create_hub("gates", 1)
        world.cosmos.create_container("db", "alerts", "/kind", throughput=100_000)
        world.path = tmp_path / "consumer.toml"
        yield world


@asynccontextmanager
async def consuming(world, text=FILE):
    """The hubs of a file at work; stopped in order at the end."""
    world.path.write_text(text)
    names = {name: value for name, value in world.settings.items() if name != "EVENTHUB_NAME"}
    settings = {**names, "CONSUMER_FILE": str(world.path)}
    stop, hubs = asyncio.Event(), Hubs(load_definition(settings))
    running = asyncio.create_task(hubs.run(stop))
    hubs.stop = stop
    try:
        yield hubs
    finally:
        stop.set()
        hubs.totals = await asyncio.wait_for(running, 30)


async def letters(world, hub):
    found = find_hub(load_definition({**world.settings, "CONSUMER_FILE": str(world.path)}), hub)
    store = Parts(found.config, found.settings, found).dead_letters()
    await store.open()
    try:
        return [letter async for letter in store.list()]
    finally:
        await store.aclose()


def flight(number, **others):
    return {"id": f"f{number}", "origin": "LGA", "kind": "flight", "card": "4711", **others}


def send(world, partition, *bodies, hub=HUB):
    world.event_hubs.append(hub, partition, [json.dumps(body).encode() for body in bodies])


def documents(world, container="flights"):
    return {document["id"]: document for document in world.cosmos.documents("db", container)}


async def test_two_hubs_write_to_two_containers_by_route_with_deletes_drops_and_a_dead_letter(world):
    send(world, "0", {"records": [flight(1), flight(2), {"kind": "alert", "id": "x"}, {"kind": "test"}]})
    send(world, "0", {"records": [flight(1, gone=True), {"kind": "unknown"}]})
    send(world, "0", {"records": "none"})
    send(world, "1", {"records": []}, {"records": [flight(3)]})
    send(world, "0", {"kind": "gate"}, hub="gates")
    async with consuming(world) as hubs:
        await world.until(
            lambda: documents(world).keys() == {"f2", "f3"} and len(documents(world, "alerts")) == 2
        )
        await world.until(lambda: hubs._hubs[0].process.statistics.totals.dead_letters == 2)

    alerts = documents(world, "alerts")
    assert documents(world)["f2"]["card"] == "*"
    assert {(each["kind"], each.get("number")) for each in alerts.values()} == {("alert", 0), ("gate", None)}
    assert alerts.keys() == {f"{HUB}~0~0~2", "gates~0~0"}
    assert hubs.totals.dropped == {"test": 1, "no_elements": 1}
    assert sorted(letter.rejection.reason for letter in await letters(world, "records")) == [
        "no_route",
        "step",
    ]
    assert await letters(world, "gates") == []


async def test_what_fails_in_one_hub_ends_that_one_and_leaves_the_other_at_work(world):
    world.event_hubs.append("gates", "0", [b"no JSON"] * 2)
    async with consuming(world) as hubs:
        await world.until(lambda: "ended" in hubs._hubs[1].down)
        send(world, "0", {"records": [flight(1)]})
        await world.until(lambda: "f1" in documents(world))

        assert "CONSUMER_POISON_LIMIT is 1" in hubs._hubs[1].down


async def test_the_example_of_the_page_runs(world, tmp_path):
    sent = [*flights(300)]
    page = (ROOT / "docs/routes.md").read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    text = (
        page.replace("create = true", 'create = true\ncommit_every = "1s"')
        .replace(".devstack/late", str(tmp_path / "late"))
        .replace('"tidemark"', '"$Default"')
    )
    world.cosmos.create_container("flights", "flights", "/origin", throughput=1_000_000)
    world.settings["PLANE_KEY"] = "k" * 64
    send(world, "0", *sent)
    late = [flight for flight in sent if (flight["dep_delay"] or 0) > 60]
    flown = [flight for flight in sent if (flight["dep_delay"], flight["arr_delay"]) != (None, None)]
    async with consuming(world, text) as hubs:
        await world.until(lambda: hubs._hubs[0].process.statistics.totals.written >= 300 + len(late))

    stored = {document["id"]: document for document in world.cosmos.documents("flights", "flights")}
    assert {id_ for id_, document in stored.items() if "_deleted" not in document} == {
        each["id"] for each in flown
    }
    assert len(stored["flight-0"]["plane"]) == 64
    assert stored["flight-1"]["position"] == {"partition": "0", "number": 1}
    assert sorted(
        row["id"] for row in DeltaTable(str(tmp_path / "late")).to_pyarrow_table().to_pylist()
    ) == sorted(flight["id"] for flight in late)


async def test_a_file_that_changed_between_two_starts_goes_on_where_each_hub_was(world):
    send(world, "0", {"records": [flight(1), {"kind": "alert", "id": "x"}]})
    before, _, _ = FILE.partition("[hubs.gates]")
    async with consuming(world, before + "[sinks." + FILE.partition("[sinks.")[2]):
        await world.until(lambda: documents(world).keys() == {"f1"} and len(documents(world, "alerts")) == 1)
    send(world, "0", {"records": [flight(2), {"kind": "alert", "id": "y"}]})
    send(world, "0", {"kind": "gate"}, hub="gates")
    changed = FILE.replace("documents", "planes").replace("kind == 'alert'", "kind == 'alarm'")
    async with consuming(world, changed) as hubs:
        await world.until(
            lambda: documents(world).keys() == {"f1", "f2"} and len(documents(world, "alerts")) == 2
        )
        await world.until(lambda: hubs._hubs[0].process.statistics.totals.dead_letters == 1)

    assert hubs.totals.received == 2
    assert [letter.rejection.reason for letter in await letters(world, "records")] == ["no_route"]
