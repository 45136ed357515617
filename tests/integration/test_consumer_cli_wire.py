"""`tidemark checkpoints` and `tidemark dead-letters` on a real consumer's stores, with the real SDKs."""

import asyncio
import json
import time
from datetime import UTC, datetime

import pytest
import typer
from typer.testing import CliRunner

from consumer.cli import support
from consumer.cli.commands import mount
from consumer.config import read_config
from consumer.running.assembly import Parts
from tests.support.consumer.stack import consumer_world, flight

pytestmark = [pytest.mark.wire, pytest.mark.timeout(90)]


@pytest.fixture
async def world(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path, partitions=1) as world:
        yield world


@pytest.fixture
def tidemark(world, monkeypatch):
    async def run(*arguments, **settings):
        """Runs in a thread, because a command has a loop of its own and the servers are on this one."""
        app = typer.Typer()
        merged = {**world.settings, **settings}
        mount(app)
        monkeypatch.setattr(support, "open_parts", lambda root, _hub=None: Parts(read_config(merged), merged))
        return await asyncio.to_thread(CliRunner().invoke, app, arguments, catch_exceptions=False)

    return run


async def test_a_consumer_goes_back_to_the_moment_it_is_told(world, tidemark):
    world.produce(50, partitions=1)
    await asyncio.sleep(0.2)
    moment = time.time()
    await asyncio.sleep(0.2)
    world.produce(10, first=50, partitions=1)
    async with world.consuming():
        await world.until(lambda: len(world.ids()) == 60)
    [row] = json.loads((await tidemark("checkpoints", "show", "--json")).output)
    assert (row["checkpoint"]["sequence_number"], row["lag"]) == (59, 0)

    told = datetime.fromtimestamp(moment, UTC).isoformat()
    result = await tidemark("checkpoints", "set", "--partition", "0", "--time", told, "--yes")

    assert "partition 0: 59 -> 49" in result.output
    world.produce(1, first=60, partitions=1)
    async with world.consuming() as again:
        await world.until(lambda: len(world.ids()) == 61)
    assert again.driver.statistics().totals.attempts == 11


async def test_letters_are_written_once_the_cause_is_repaired(world, tidemark):
    late = {key: value for key, value in flight(7).items() if key != "id"}
    world.produce(2, partitions=1)
    world.event_hubs.append("flights", "0", [b"{", json.dumps({**late, "number": "f7"}).encode()])
    async with world.consuming():
        await world.until(lambda: len(world.ids()) == 2)
    listed = json.loads((await tidemark("dead-letters", "list", "--json")).output)
    assert [dead_letter["sequence_number"] for dead_letter in listed] == [2, 3]

    result = await tidemark("dead-letters", "replay", "--all", "--yes", CONSUMER_ID="field:number")

    assert (result.exit_code, "1 dead letters remain" in result.stderr) == (1, True)
    assert world.ids() == {"f0", "f1", "f7"}
    gone = await tidemark("dead-letters", "purge", "--all", "--yes")
    assert "deleted 1 dead letters" in gone.output
    assert "0 dead letters" in (await tidemark("dead-letters", "list")).output
