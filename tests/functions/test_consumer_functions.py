"""The consumer's functions in Microsoft's worker library: off, in slices, and behind the trigger."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from devstack.function_host.event_hubs import trigger_metadata
from tests.functions.worker_harness import foreign, logged, run_worker
from tests.support.consumer.stack import HUB, consumer_world

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"COLLECT_SCHEDULE": "0 * * * * *", "VERIFY_SCHEDULE": "30 * * * * *"}

pytestmark = [pytest.mark.wire, pytest.mark.timeout(90)]


@pytest.fixture
async def world(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path, partitions=2) as world:
        yield world


def hosted_by(hosting):
    answer = run_worker(ROOT, settings={**SETTINGS, "CONSUMER_HOSTING": hosting})
    assert answer["error"] is None
    return {function["name"]: function for function in answer["functions"]}


def delivery(*bodies, partition="0", first=0, offsets=None, **replaced):
    """A batch as the host delivers it."""
    enqueued = datetime(2026, 11, 21, 9, 0, 0, 123456, tzinfo=UTC)
    batch = [
        SimpleNamespace(
            offset=str(100 * n) if offsets is None else offsets[n],
            sequence_number=first + n,
            enqueued_time=enqueued,
            partition_key=None,
            properties={b"kind": b"test"},
        )
        for n in range(len(bodies))
    ]
    context = SimpleNamespace(
        fully_qualified_namespace="ns", eventhub_name=HUB, consumer_group="$Default", partition_id=partition
    )
    metadata = trigger_metadata(batch, context) | replaced
    return {"function": "consume_events", "events": list(bodies), "metadata": metadata}


def flight(name):
    return json.dumps({"id": name, "origin": "JFK"})


def test_slices_add_one_timer_and_the_trigger_one_function_that_is_retried_for_ever():
    (added,) = set(sliced := hosted_by("slices")) - set(others := hosted_by("off"))
    assert added == "consume_slice"
    assert sliced[added]["bindings"] == [
        {
            "direction": "IN",
            "type": "timerTrigger",
            "name": "timer",
            "schedule": "%CONSUME_SCHEDULE%",
            "runOnStartup": False,
            "useMonitor": True,
        }
    ]
    (added,) = set(triggered := hosted_by("trigger")) - set(others)
    assert added == "consume_events"
    assert triggered[added]["bindings"] == [
        {
            "direction": "IN",
            "type": "eventHubTrigger",
            "name": "events",
            "eventHubName": "%EVENTHUB_NAME%",
            "consumerGroup": "%EVENTHUB_CONSUMERGROUP%",
            "connection": "EventHubConnection",
            "cardinality": "MANY",
            "dataType": "BINARY",
        }
    ]
    retry = triggered[added]["retry"]
    assert (retry["max_retry_count"], retry["delay_interval"]) == ("-1", "0:00:05")


async def test_the_trigger_settles_every_event_of_the_hosts_batches(world):
    first = delivery(flight("a"), "poison", flight("b"))
    system = json.loads(first["metadata"]["SystemPropertiesArray"])
    of_amqp = [{**each, "content-type": "text/x", "content-encoding": 7} for each in system]
    first["metadata"]["SystemPropertiesArray"] = json.dumps(of_amqp)
    requests = [
        first,
        delivery(flight("c"), partition="1"),
        delivery(flight("d"), first=3, offsets=["0:opaque:1"]),  # geo-replicated: told as -1, and as it is
        delivery("poison", flight("e"), first=7, offsets=["0:opaque:2", "0:opaque:3"]),
    ]
    settings = {**SETTINGS, **world.settings, "CONSUMER_HOSTING": "trigger"}

    answer = await asyncio.to_thread(run_worker, ROOT, requests, settings)

    assert [invocation["ok"] for invocation in answer["invocations"]] == [True] * 4, answer["invocations"]
    assert world.ids() == {"a", "b", "c", "d", "e"}
    stored = await dead_letters(settings)
    assert [(each.event.sequence_number, each.event.offset) for each in stored] == [
        (1, "100"),
        (7, "0:opaque:2"),
    ]
    assert stored[0].event.enqueued_at == datetime(2026, 11, 21, 9, 0, 0, 123456, tzinfo=UTC).timestamp()
    assert stored[0].event.properties == {"kind": "test"}
    assert (stored[0].event.content_type, stored[0].event.content_encoding) == ("text/x", None)


async def test_what_the_trigger_cannot_settle_raises_and_says_why(world):
    opaque = [{"SequenceNumber": 0, "Offset": "0:opaque:1", "EnqueuedTimeUtc": "2026-11-21T09:00:00"}]
    requests = [
        delivery(flight("a"), PartitionContext="null"),
        delivery(flight("a"), SystemPropertiesArray=json.dumps([{"Offset": 1}])),
        delivery(flight("a"), SystemPropertiesArray=json.dumps(opaque)),
    ]
    settings = {**SETTINGS, **world.settings, "CONSUMER_HOSTING": "trigger"}

    answer = await asyncio.to_thread(run_worker, ROOT, requests, settings)

    by_hand, unnumbered, older_host = answer["invocations"]
    assert "no PartitionContext.PartitionId" in by_hand["error"]
    assert "event 0 of partition 0 has no sequence number" in unnumbered["error"]
    assert "cannot convert value" in older_host["error"]  # the worker's library, before our function
    assert world.ids() == set()


@pytest.mark.parametrize(
    ("hosting", "settings", "story"),
    [
        ("sometimes", {}, "CONSUMER_HOSTING is 'sometimes'; accepted: off, slices, trigger"),
        ("slices", {}, "EVENTHUB_NAME is not set"),
        ("trigger", {"COSMOS_WRITE": "false"}, "COSMOS_WRITE is false"),
    ],
)
async def test_a_wrong_setting_is_told_by_the_consumers_function_alone(world, hosting, settings, story):
    if hosting == "trigger":
        request, settings = delivery(flight("a")), {**world.settings, **settings}
    else:
        request = {"function": "consume_slice", "timer": {"IsPastDue": False}}
    settings = {**SETTINGS, **settings, "CONSUMER_HOSTING": hosting}

    answer = await asyncio.to_thread(
        run_worker, ROOT, [request, {"function": "dashboard", "http": {}}], settings
    )

    consumer, dashboard = answer["invocations"]
    assert not consumer["ok"]
    assert story in consumer["error"]
    assert dashboard["ok"]


async def test_a_slice_in_the_worker_consumes_ends_in_time_and_logs_its_own_lines_and_no_other(world):
    world.produce(50, partitions=2)
    settings = {**SETTINGS, **world.settings, "CONSUMER_HOSTING": "slices", "CONSUMER_SLICE": "4"}

    tick = {"function": "consume_slice", "timer": {"IsPastDue": False}}

    for _ in range(5):  # a busy machine needs more than one slice to claim both partitions
        answer = await asyncio.to_thread(run_worker, ROOT, [tick], settings)
        lines = logged(answer)
        assert lines
        assert foreign(lines) == []
        if len(world.ids()) == 50:
            break

    assert len(world.ids()) == 50


async def dead_letters(settings):
    from consumer.config import read_config  # noqa: PLC0415
    from consumer.running.assembly import Parts  # noqa: PLC0415 - the tests of bindings need none of it

    store = Parts(read_config(settings), settings).dead_letters()
    await store.open()
    try:
        return [dead_letter async for dead_letter in store.list()]
    finally:
        await store.aclose()
