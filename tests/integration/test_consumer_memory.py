"""What a consumer process takes while every write is refused, and that it recovers."""

import asyncio
import sys
import time
from functools import partial

import psutil
import pytest

from devstack.processes.child import ChildProcess
from devstack.servers.faults import Fault
from tests.support.consumer.stack import consumer_world

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

EVENTS, HELD = 12_000, 4_000
WARM_UP, THROTTLED = 4.0, 7.0  # seconds; `make soak` takes five minutes
GROWTH = 2_000_000  # bytes; what is held takes 20 MB, and 0.1 MB was measured


async def test_total_throttling_costs_a_bounded_amount_of_memory_and_no_record(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path) as world:
        world.produce(EVENTS)
        world.cosmos.inject(Fault("op.upsert.*", "error", count=None, status=429, retry_after=0.02))
        settings = {**world.settings, "CONSUMER_HIGH_EVENTS": str(HELD)}
        child = ChildProcess("consumer", [sys.executable, "-m", "consumer", "--root", tmp_path], env=settings)
        child.start()
        try:
            await world.until(lambda: world.cosmos.stats().requests.get("docs.bulk", 0) > 10)
            await asyncio.sleep(WARM_UP)
            sizes = await resident(child, THROTTLED)
            third = len(sizes) // 3
            assert max(sizes[-third:]) - max(sizes[:third]) < GROWTH
            assert not world.ids()

            world.cosmos.faults.clear()
            count = partial(world.cosmos.document_count, "db", "flights")
            await world.until(lambda: count() == EVENTS, within=120.0)
        finally:
            await child.stop_async(grace_s=20.0)


async def resident(child, seconds):
    """Bytes, ten times a second."""
    process = psutil.Process(child.pid)
    until = time.monotonic() + seconds
    sizes = []
    while time.monotonic() < until:
        assert child.running, child.output_tail()
        sizes.append(process.memory_info().rss)
        await asyncio.sleep(0.1)
    return sizes
