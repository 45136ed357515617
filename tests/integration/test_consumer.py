"""The real consumer, with the real SDKs, between local servers."""

import pytest

from tests.support.consumer.stack import consumer_world

pytestmark = [pytest.mark.wire, pytest.mark.timeout(90)]


@pytest.fixture
async def world(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path) as world:
        yield world


async def test_every_event_becomes_a_document(world):
    world.produce(2_000)

    async with world.consuming():
        await world.until(lambda: len(world.ids()) == 2_000)

    assert world.ids() == {f"f{n}" for n in range(2_000)}


async def test_a_restart_writes_nothing_again(world):
    world.produce(1_000)
    async with world.consuming():
        await world.until(lambda: len(world.ids()) == 1_000)
    written = world.cosmos.stats()
    world.produce(100, first=1_000)

    async with world.consuming() as again:
        await world.until(lambda: len(world.ids()) == 1_100)

    assert written
    assert again.driver.statistics().totals.attempts == 100
