"""A process that forwards to a queue is frozen until its partitions have moved, and wakes up with events to send."""

import json
import re
import signal
from collections import Counter

import pytest

from devstack.servers.faults import Fault
from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tests.faults.consumer_processes import QUICK_LEASES, Stores, consumer_process
from tests.support.consumer.messaging import decoded
from tests.support.consumer.stack import consumer_world
from tests.support.servers.event_hubs import HUB
from tests.support.waiting import until

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]

EVENTS = 400
"""Of each partition."""
FILE = f"""version = 1
[hubs.h]
hub = "{HUB}"
[[hubs.h.routes]]
to = "orders"
[sinks.orders]
type = "service_bus"
queue = "orders"
connection = "Orders"
"""


@pytest.mark.parametrize("window", [3600.0, None], ids=["duplicates are detected", "and are not"])
async def test_a_frozen_process_whose_partitions_have_moved_doubles_in_a_queue_what_it_had_begun_at_most(
    azurite, tmp_path, window
):
    async with (
        consumer_world(azurite, tmp_path, partitions=2, throughput=20_000) as world,
        ServiceBusServer(ca_dir=tmp_path) as queues,
    ):
        queues.create_queue("orders", QueueSettings(limits=STANDARD, duplicate_window=window))
        file = tmp_path / "consumer.toml"
        file.write_text(FILE)
        more = {"CONSUMER_FILE": str(file), "Orders": queues.connection_string}
        settings = {**world.settings, **QUICK_LEASES, **more, "CONSUMER_BATCH_OPERATIONS": "20"}

        def send(first):
            for partition in range(2):
                bodies = [json.dumps({"n": first + partition * EVENTS + n}).encode() for n in range(EVENTS)]
                world.event_hubs.append(HUB, str(partition), bodies)

        def stored():
            messages = queues.broker.queues["orders"].peek(0, 1_000_000)
            return Counter(json.loads(b"".join(decoded(one.sent.bare).data))["n"] for one in messages)

        def consumer():
            return consumer_process(settings, tmp_path / "consumers")

        async with Stores({**settings, "EVENTHUB_NAME": HUB}) as stores, consumer() as zombie:
            queues.faults.add(Fault("send:orders", "latency", count=None, seconds=0.05))
            send(0)
            await until(lambda: len(stored()) >= 50, what=zombie.said)
            zombie.signal(signal.SIGSTOP)
            queues.faults.clear()
            before = set(stored())
            assert len(before) < 2 * EVENTS
            async with consumer() as heir:
                await until(lambda: len(stored()) == 2 * EVENTS, within=60, what=heir.said)
                zombie.signal(signal.SIGCONT)
                send(2 * EVENTS)
                await until(lambda: len(stored()) == 4 * EVENTS, within=60, what=heir.said)
                fenced = re.compile("taken by|somebody else|took over|belongs to")
                await until(lambda: fenced.search(zombie.said()), what=zombie.said)
                assert await zombie.stop() == 0, zombie.said()
                assert await heir.stop() == 0, heir.said()
            checkpoints = await stores.checkpoints()

    found = stored()
    assert sorted(found) == list(range(4 * EVENTS))
    assert {each.sequence_number for each in checkpoints.values()} == {2 * EVENTS - 1}
    if window is not None:
        assert set(found.values()) == {1}
    else:  # each at most as often as processes began to send it
        assert max(found.values()) <= 2
        assert {n for n, times in found.items() if times > 1} <= set(range(2 * EVENTS))
