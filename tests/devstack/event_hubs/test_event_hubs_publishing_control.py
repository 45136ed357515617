"""What a test in another process sees and sets of idempotent publishing."""

import aiohttp
import pytest

from devstack.event_hubs import Idempotence
from devstack.event_hubs.storage.idempotence import Asked
from tests.support.servers.event_hubs import HUB

pytestmark = pytest.mark.wire


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


async def call(http, server, name, **arguments):
    async with http.post(f"{server.control_url}/control", json={"call": name, **arguments}) as response:
        return response.status, await response.json()


async def publishing(http, server):
    async with http.get(f"{server.control_url}/control") as response:
        [hub] = await response.json()
        return hub["partitions"][0]["publishing"]


async def test_the_state_of_producers_is_shown_and_they_are_fenced_and_forgotten_on_request(http, server):
    producer = server.publishers(HUB, "0").attach(Asked())
    shown = {"id": producer.producer_id, "epoch": 0, "number": 0, "published": False}
    assert await publishing(http, server) == {"producers": [shown]}

    await call(http, server, "FenceProducers", hub=HUB, partition="0")
    assert await publishing(http, server) == {"producers": [{**shown, "epoch": 1}]}

    await call(http, server, "ForgetProducers", hub=HUB, partition="0")
    assert await publishing(http, server) == {"producers": []}


async def test_how_a_hub_publishes_idempotently_is_set_on_request(http, server):
    settings = {"offered": False, "first_number": "after", "echo": False}

    assert await call(http, server, "SetIdempotence", hub=HUB, settings=settings) == (200, None)

    assert server.hubs.hub(HUB).idempotence == Idempotence(offered=False, first_number="after", echo=False)


@pytest.mark.parametrize("settings", [{"remembered_batches": -1}, {"first_number": "other"}, {"unknown": 1}])
async def test_settings_that_make_no_sense_are_refused(http, server, settings):
    status, answer = await call(http, server, "SetIdempotence", hub=HUB, settings=settings)

    assert status == 400
    assert next(iter(settings)) in answer["error"]
