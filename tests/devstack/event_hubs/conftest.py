"""An Event Hubs with a hub, for the tests of this folder."""

import pytest

from tests.support.servers.event_hubs import running_server


@pytest.fixture
async def server(tmp_path):
    async with running_server(tmp_path) as running:
        yield running
