"""The unmodified SDKs send to and receive from the local Event Hubs."""

import asyncio
import json
import subprocess
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest
from azure.eventhub import CloseReason, EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.aio import EventHubProducerClient as AsyncProducer
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    ConnectionLostError,
    EventDataSendError,
)

from devstack.event_hubs import EventHubsServer, HubExistsError
from devstack.processes.node import ensure_node, ensure_packages
from devstack.stack.supervisor import Stack
from tests.support.servers.event_hubs import GROUP, HUB, producing, receiving
from tests.support.servers.threaded import running_in_thread
from tests.support.waiting import until

pytestmark = pytest.mark.wire


def bodies(server, partition):
    return [stored.message for stored in server.events(HUB, partition)]


async def test_batches_go_to_the_partition_asked_for_or_to_that_of_their_key_or_take_turns(server):
    async with producing(server) as producer:
        for options in ({"partition_id": "1"}, {"partition_key": "k"}, {"partition_key": "k"}, {}, {}):
            batch = await producer.create_batch(**options)
            batch.add(EventData("a"))
            batch.add(EventData("b"))
            await producer.send_batch(batch)

    counts = [server.last_sequence_number(HUB, partition) + 1 for partition in ("0", "1")]
    keyed = [
        partition
        for partition in ("0", "1")
        for event in server.events(HUB, partition)
        if b"x-opt-partition-key" in event.message
    ]
    assert sum(counts) == 10
    assert len(keyed) == 4
    assert len(set(keyed)) == 1
    expected = {"0": 2, "1": 4}  # asked for, and in turn
    expected[keyed[0]] += 4
    assert counts == [expected["0"], expected["1"]]


async def test_the_management_node_knows_hubs_and_partitions(server):
    server.append(HUB, "1", ["a", "b", "c"])
    server.expire(HUB, "1", 1)

    async with producing(server) as producer:
        hub = await producer.get_eventhub_properties()
        empty = await producer.get_partition_properties("0")
        used = await producer.get_partition_properties("1")

    assert (hub["eventhub_name"], hub["partition_ids"]) == (HUB, ["0", "1"])
    assert abs((hub["created_at"] - datetime.now(UTC)).total_seconds()) < 60
    assert (empty["is_empty"], empty["last_enqueued_sequence_number"], empty["last_enqueued_offset"]) == (
        True,
        -1,
        "-1",
    )
    assert (
        used["is_empty"],
        used["beginning_sequence_number"],
        used["last_enqueued_sequence_number"],
        used["last_enqueued_offset"],
    ) == (False, 1, 2, server.log(HUB, "1").last_offset)


async def test_all_kinds_of_events_arrive_as_they_were_sent(server):
    properties = {b"number": 1, b"text": "x", b"float": 0.5, b"bytes": b"\0"}
    event = EventData(b"\0\xff")
    event.properties = properties
    event.message_id, event.content_type = "m", "application/json"
    async with producing(server) as producer:
        await producer.send_batch([event], partition_id="0")
        await producer.send_event(EventData("alone"), partition_key="k")
        for body in ({"value_body": {"a": [1, None]}}, {"sequence_body": [[1, "2"], [b"3"]]}):
            await producer.send_batch([AmqpAnnotatedMessage(**body)], partition_id="0")

    async with receiving(server, partition=None) as received:
        await received.take(4)

    events = [event for _, event in received.events]  # in order within a partition, and only there
    first, value, sequence = (event for event in events if event.partition_key is None)
    [alone] = (event for event in events if event.partition_key is not None)
    assert (b"".join(first.body), first.properties, first.message_id, first.content_type) == (
        b"\0\xff",
        {key: value.encode() if isinstance(value, str) else value for key, value in properties.items()},
        "m",
        "application/json",
    )
    assert (alone.body_as_str(), alone.partition_key) == ("alone", b"k")
    assert value.raw_amqp_message.body == {b"a": [1, None]}
    assert list(sequence.raw_amqp_message.body) == [[1, b"2"], [b"3"]]


async def test_events_larger_than_a_frame_go_both_ways_and_too_large_ones_are_refused(server):
    async with producing(server, retry_total=0) as producer:
        await producer.send_batch([EventData("x" * 900_000)], partition_id="0")
        with pytest.raises(EventDataSendError, match="1048576"):
            await producer.send_event(EventData("x" * 1_048_577), partition_id="0")

    async with receiving(server) as received:
        [event] = await received.take(1)

    assert event.body_as_str() == "x" * 900_000
    assert server.last_sequence_number(HUB, "0") == 0


@pytest.mark.parametrize(
    ("start", "inclusive", "first"),
    [
        ("-1", False, 0),
        (3, False, 4),
        (3, True, 3),
        ("offset", False, 4),
        ("offset", True, 3),
        (datetime.fromtimestamp(1000.5, UTC), False, 1),
        ("@latest", False, 10),
    ],
)
async def test_a_consumer_starts_where_it_wants_to(server, start, inclusive, first):
    for number in range(10):
        server.append(HUB, "0", [f"event {number}"], enqueued_ms=1_000_000 + 1000 * number)
    start = server.events(HUB, "0")[3].offset if start == "offset" else start

    async with receiving(server, start=start, starting_position_inclusive=inclusive) as received:
        await until(lambda: server.consumers(HUB, "0"))
        server.append(HUB, "0", ["event 10"])
        await until(lambda: 10 in received.sequence_numbers())

    assert received.sequence_numbers() == list(range(first, 11))
    assert received.bodies() == [f"event {number}" for number in range(first, 11)]


async def test_a_consumer_goes_on_from_an_offset_that_is_no_number(server):
    server.delete_hub(HUB)
    server.create_hub(HUB, 1, opaque_offsets=True)
    server.append(HUB, "0", ["a", "b", "c"])
    async with receiving(server) as first:
        offset = (await first.take(3))[1].offset

    async with receiving(server, start=offset) as second:
        await second.take(1)

    assert not offset.isdecimal()
    assert second.sequence_numbers() == [2]


async def test_a_consumer_knows_how_far_its_partition_reaches(server):
    server.append(HUB, "0", ["a", "b", "c"])

    async with receiving(server, track_last_enqueued_event_properties=True) as received:
        await received.take(3)
        last = received.contexts["0"].last_enqueued_event_properties

    assert (last["sequence_number"], last["offset"]) == (2, server.log(HUB, "0").last_offset)


@pytest.mark.parametrize("prefetch", [50, 300])
async def test_a_consumer_that_is_busy_has_been_sent_what_it_asked_for_and_no_more(server, prefetch):
    server.append(HUB, "0", ["x"] * 2000)

    async with receiving(server, prefetch=prefetch, max_batch_size=1) as received:
        received.gate.clear()
        await received.take(1)
        [consumer] = server.consumers(HUB, "0")
        await until(lambda: consumer.next_sequence_number >= prefetch)
        sent = consumer.next_sequence_number
        received.gate.set()
        await until(lambda: len(received.events) == 2000)

    assert sent == prefetch
    assert received.sequence_numbers() == list(range(2000))


async def test_a_higher_owner_level_takes_a_partition_over_and_keeps_others_out(server):
    # Without retries the SDK tells at once; with them it tells when they are used up.
    once = {"client_options": {"retry_total": 0}}
    async with receiving(server, owner_level=0, **once) as old:
        await until(lambda: server.consumers(HUB, "0"))
        async with receiving(server, owner_level=1, **once) as new:
            await until(lambda: old.closed)
            async with receiving(server, **once) as shared:
                await until(lambda: shared.closed)
            server.append(HUB, "0", ["a"])
            await new.take(1)

    assert isinstance(old.errors[0], ConnectionLostError)
    assert "link:stolen" in str(old.errors[0])
    assert old.closed[0] == CloseReason.OWNERSHIP_LOST
    assert "epoch" in str(shared.errors[0])
    assert (old.events, shared.events) == ([], [])


async def test_consumer_groups_do_not_know_of_each_other_and_have_to_exist(server):
    server.append(HUB, "0", ["a"])

    async with (
        receiving(server, owner_level=1) as first,
        receiving(server, owner_level=1, group="tidemark") as second,
        receiving(server, group="nobody") as stranger,
    ):
        await first.take(1)
        await second.take(1)
        await until(lambda: server.refused)

    assert (server.refused[0].address, server.refused[0].condition) == (
        "flights/ConsumerGroups/nobody/Partitions/0",
        "amqp:not-found",
    )
    assert (stranger.events, stranger.errors) == ([], [])  # the SDK tries again for ever, and tells nobody


async def test_a_sixth_consumer_without_owner_level_is_refused(server):
    async with AsyncExitStack() as five:
        for _ in range(5):
            await five.enter_async_context(receiving(server))
        await until(lambda: len(server.consumers(HUB, "0")) == 5)
        async with receiving(server):
            await until(lambda: server.refused)

    assert server.refused[0].condition == "amqp:resource-limit-exceeded"


async def test_the_local_stack_has_the_hub_of_the_settings():
    async with Stack() as stack:
        client = AsyncProducer.from_connection_string(stack.settings()["EventHubConnection"])
        async with client:
            properties = await client.get_eventhub_properties()
        groups = stack.event_hubs.hubs.hub("flights").consumer_groups

    assert (properties["eventhub_name"], properties["partition_ids"]) == ("flights", ["0", "1", "2", "3"])
    assert list(groups.values()) == ["$Default", "tidemark"]


async def test_a_wrong_key_and_an_unknown_hub_are_refused(server):
    wrong = server.connection_string(HUB).replace("SharedAccessKey=", "SharedAccessKey=A")
    async with AsyncProducer.from_connection_string(wrong, retry_total=0) as producer:
        with pytest.raises(AuthenticationError):
            await producer.send_event(EventData("a"), partition_id="0")
    unknown = server.connection_string("unknown")
    async with AsyncProducer.from_connection_string(unknown, retry_total=0) as producer:
        with pytest.raises(ConnectError, match="unknown"):
            await producer.get_eventhub_properties()


async def test_a_hub_created_again_begins_anew_and_refuses_positions_of_the_old_one(server):
    server.append(HUB, "0", ["old"] * 10)

    async with receiving(server, client_options={"retry_total": 0}) as old:
        await old.take(10)
        server.recreate_hub(HUB)
        await until(lambda: old.closed)
    server.append(HUB, "0", ["new"])
    async with receiving(server, start=9) as lost:
        await until(lambda: server.refused)
    async with receiving(server) as found:
        await found.take(1)

    assert server.refused[0].condition == "com.microsoft:argument-error"
    assert "The last sequence number in the system is '0'" in server.refused[0].description
    assert (lost.events, lost.errors) == ([], [])  # the SDK tries again for ever, and tells nobody
    assert found.bodies() == ["new"]
    with pytest.raises(HubExistsError):
        server.create_hub(HUB)


async def test_partitions_added_at_run_time_are_found_and_read(server):
    server.add_partitions(HUB, 1)
    server.append(HUB, "2", ["new"])

    async with receiving(server, partition=None) as received:
        await received.take(1)

    assert received.sequence_numbers("2") == [0]


@pytest.mark.parametrize("tls", [False, True])
def test_the_blocking_client_sends_and_receives_with_tls_and_without(tmp_path, tls):
    with running_in_thread(lambda: EventHubsServer(ca_dir=tmp_path)) as threaded:
        server = threaded.server
        threaded.call(lambda: server.create_hub(HUB, 1))
        connection = server.tls_connection_string(HUB) if tls else server.connection_string(HUB)
        options = server.tls_options() if tls else {}
        with EventHubProducerClient.from_connection_string(connection, **options) as producer:
            producer.send_batch([EventData(f"event {number}") for number in range(200)])

        received = []
        consumer = EventHubConsumerClient.from_connection_string(connection, GROUP, **options)

        def take(_context, events):
            received.extend(event.body_as_str() for event in events)
            if len(received) == 200:
                consumer.close()

        consumer.receive_batch(take, partition_id="0", starting_position="-1")

    assert received == [f"event {number}" for number in range(200)]


JAVASCRIPT = """
const { EventHubProducerClient, EventHubConsumerClient, earliestEventPosition } = require("@azure/event-hubs");
async function main(connection, hub) {
  const producer = new EventHubProducerClient(connection, hub);
  const batch = await producer.createBatch({ partitionId: "0" });
  batch.tryAdd({ body: { from: "JavaScript" }, properties: { n: 1 } });
  batch.tryAdd({ body: "second" });
  await producer.sendBatch(batch);
  await producer.sendBatch([{ body: "keyed" }], { partitionKey: "a key" });
  const ids = await producer.getPartitionIds();
  await producer.close();
  const consumer = new EventHubConsumerClient("$Default", connection, hub);
  const events = [];
  await new Promise((resolve, reject) => consumer.subscribe({
    processEvents: async (batch, context) => {
      for (const event of batch) {
        const { body, partitionKey, properties, sequenceNumber, lastEnqueued } = event;
        events.push([context.partitionId, sequenceNumber, body, partitionKey ?? null, properties ?? null]);
      }
      if (events.length >= 4) resolve();
    },
    processError: async (error) => reject(error),
  }, { startPosition: earliestEventPosition }));
  await consumer.close();
  console.log(JSON.stringify({ ids, events }));
}
main(...process.argv.slice(1));
"""


async def test_the_sdk_for_javascript_sends_and_receives(server):
    node = await asyncio.to_thread(ensure_node)
    packages = await asyncio.to_thread(ensure_packages, node)
    server.append(HUB, "0", ["from Python"])

    process = await asyncio.create_subprocess_exec(
        *(node, "-e", JAVASCRIPT, server.connection_string(), HUB),
        cwd=packages.parent,
        stdout=subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)

    answer = json.loads(output)
    assert answer["ids"] == ["0", "1"]
    [keyed] = [event for event in answer["events"] if event[3] is not None]
    assert keyed[2:] == ["keyed", "a key", None]
    events = sorted((event for event in answer["events"] if event is not keyed), key=lambda event: event[1])
    assert events[0][2] == {"type": "Buffer", "data": list(b"from Python")}
    assert events[1:] == [["0", 1, {"from": "JavaScript"}, None, {"n": 1}], ["0", 2, "second", None, None]]
