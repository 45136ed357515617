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
from consumer.errors import PositionError
from consumer.running.assembly import Parts
from consumer.running.process import ConsumerProcess
from tests.support.consumer.stack import HUB, consumer_world, flight
from tidemark.foundation.errors import SettingsError

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
        monkeypatch.setattr(
            support, "open_parts", lambda root, _hub=None, **_: Parts(read_config(merged), merged)
        )
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

    assert "partition 0: 59 -> 49: 10 events written again" in result.output
    world.produce(1, first=60, partitions=1)
    async with world.consuming() as again:
        await world.until(lambda: len(world.ids()) == 61)
    assert again.driver.statistics().totals.attempts == 11


async def test_an_order_says_what_it_does_and_is_kept_with_the_position(world, tidemark):
    """Over the saves of the consumer that goes on there, and over the next orders, of which the last three are kept."""
    world.produce(40, partitions=1)
    async with world.consuming():
        await world.until(lambda: len(world.ids()) == 40)
    dry = await tidemark("checkpoints", "set", "--at", "0=9", "--dry-run")
    assert "partition 0: 39 -> 9: 30 events written again" in dry.output
    assert "nothing was changed" in dry.output
    [row] = json.loads((await tidemark("checkpoints", "show", "--json")).output)
    assert (row["checkpoint"]["sequence_number"], row["checkpoint"]["origin"].get("seeks")) == (39, None)

    offset = world.event_hubs.events("flights", "0")[20].offset
    result = await tidemark("checkpoints", "set", "--partition", "0", "--offset", str(offset), "--yes")
    assert "partition 0: 39 -> 19: 20 events written again" in result.output
    result = await tidemark("checkpoints", "set", "--all", "--latest", "--yes")
    assert "partition 0: 19 -> 39: 20 events skipped" in result.output
    for _ in range(2):
        await tidemark("checkpoints", "set", "--at", "0=9", "--yes")
    async with world.consuming(CONSUMER_CHECKPOINT_EVERY="0.2"):
        await asyncio.sleep(1.5)

    [row] = json.loads((await tidemark("checkpoints", "show", "--json")).output)
    seeks = row["checkpoint"]["origin"]["seeks"]
    assert [(each["before"], each["after"]) for each in seeks] == [(19, 39), (39, 9), (9, 9)]
    assert row["checkpoint"]["sequence_number"] == 39
    told = (await tidemark("checkpoints", "show")).output
    assert f"set from 39 to 9 by {seeks[0]['by']} at 20" in " ".join(told.split())


async def until(world, position, **more):
    """A run that ends by itself: how many events it wrote."""
    settings = {**world.settings, "CONSUMER_UNTIL": position, **more}
    process = ConsumerProcess(read_config(settings), settings)
    async with asyncio.timeout(30):
        statistics = await process.run(asyncio.Event())
    return statistics.totals.attempts


async def test_a_consumer_stops_at_a_position_and_a_restart_does_nothing(world, tidemark):
    world.produce(30, partitions=1)
    await asyncio.sleep(0.2)
    moment = datetime.now(UTC).isoformat()
    await asyncio.sleep(0.2)
    world.produce(20, first=30, partitions=1)

    assert [await until(world, "0=9"), await until(world, "0=9")] == [10, 0]
    assert [await until(world, moment), await until(world, moment)] == [20, 0]
    assert len(world.ids()) == 30
    [row] = json.loads((await tidemark("checkpoints", "show", "--json")).output)
    assert (row["checkpoint"]["sequence_number"], row["lag"]) == (29, 20)
    assert [await until(world, "latest"), await until(world, "latest")] == [20, 0]
    for wrong in ("1=5", "0=5,1=7", "soon", "2999-01-01"):
        with pytest.raises(SettingsError, match="CONSUMER_UNTIL"):
            await until(world, wrong)


async def test_a_job_takes_no_position_of_a_hub_of_before_for_its_own(world):
    world.produce(50, partitions=1)
    assert await until(world, "latest") == 50
    world.event_hubs.recreate_hub(HUB)
    world.produce(30, first=100, partitions=1)

    for position in ("latest", "0=9"):
        with pytest.raises(PositionError, match="CONSUMER_ON_FOREIGN_CHECKPOINT"):
            await until(world, position)
    assert await until(world, "latest", CONSUMER_ON_FOREIGN_CHECKPOINT="earliest") == 30
    assert await until(world, "latest") == 0


async def test_several_instances_stop_once_every_partition_is_settled(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path, partitions=4) as world:
        world.produce(100, partitions=4)
        found = await asyncio.gather(*(until(world, "latest") for _ in range(3)))
        assert (len(world.ids()), sum(found) >= 100) == (100, True)
        assert await until(world, "latest") == 0


async def test_a_job_ends_where_the_hub_lacks_the_number_it_stops_at(azurite, tmp_path):
    """As after a compaction or a failover: the time's last number, 14, is none that was given, as is 12."""
    async with consumer_world(azurite, tmp_path, partitions=4) as world:
        world.produce(40, partitions=4)
        await asyncio.sleep(0.2)
        moment = datetime.now(UTC).isoformat()
        await asyncio.sleep(0.2)
        for partition in "0123":
            world.event_hubs.skip_sequence_numbers(HUB, partition, 5)
        world.produce(40, first=40, partitions=4)

        numbers = "0=12,1=12,2=12,3=12"
        await asyncio.gather(*(until(world, numbers) for _ in range(2)))
        assert len(world.ids()) == 40
        assert [await until(world, numbers), await until(world, moment)] == [0, 0]
        assert await until(world, "latest") == 40


async def test_letters_are_written_once_the_cause_is_repaired(world, tidemark):
    late = {key: value for key, value in flight(7).items() if key != "id"}
    world.produce(2, partitions=1)
    world.event_hubs.append("flights", "0", [b"{", json.dumps({**late, "number": "f7"}).encode()])
    async with world.consuming():
        await world.until(lambda: len(world.ids()) == 2)
    listed = json.loads((await tidemark("dead-letters", "list", "--json")).output)
    assert [dead_letter["sequence_number"] for dead_letter in listed] == [2, 3]

    result = await tidemark("dead-letters", "replay", "--all", "--yes", CONSUMER_ID="field:number")

    assert (result.exit_code, "1 dead letter remains" in result.stderr) == (1, True)
    assert world.ids() == {"f0", "f1", "f7"}
    gone = await tidemark("dead-letters", "purge", "--all", "--yes")
    assert "deleted 1 dead letter" in gone.output
    assert "0 dead letters" in (await tidemark("dead-letters", "list")).output


async def test_a_dry_run_reads_what_the_guard_would_leave_alone(world, tidemark):
    late = [
        {**{key: value for key, value in flight(n).items() if key != "id"}, "number": f"f{n}"} for n in (0, 9)
    ]
    world.event_hubs.append("flights", "0", [json.dumps(each).encode() for each in late] + [b"{"])
    world.produce(2, partitions=1)
    async with world.consuming(COSMOS_GUARD="number"):
        await world.until(lambda: world.ids() == {"f0", "f1"})
        await asyncio.sleep(1.0)  # until the letters are stored
    settings = {"CONSUMER_ID": "field:number", "COSMOS_GUARD": "number"}

    dry = await tidemark("dead-letters", "replay", "--all", "--dry-run", **settings)

    told = " ".join(dry.output.split())
    assert "1 would be superseded 1 would be written 3 dead letters; dry run" in told.replace(
        "1 would be rejected: json ", ""
    )
    assert "1 would be rejected: json" in told
    assert "The version guard leaves alone what later events made" in told
    assert world.ids() == {"f0", "f1"}
    result = await tidemark("dead-letters", "replay", "--all", "--yes", **settings)
    assert "superseded 1" in " ".join(result.output.split())
    assert world.ids() == {"f0", "f1", "f9"}
