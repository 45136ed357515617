"""The collector of the consumer's own rows, on Azurite: what all collectors promise, and what is its own."""

from collections.abc import AsyncIterator
from uuid import uuid4

import msgspec
import pytest
from azure.data.tables.aio import TableServiceClient

from scaling.collectors.consumer_telemetry import ConsumerTelemetryCollector
from scaling.ports import CollectError
from tidemark.foundation.consumer_stats import ConsumerStats, to_row

NOW = 1_700_000_000.0
IDLE = ConsumerStats(consumer="flights", instance="a", at=NOW - 5, rate_limit=1000)


class World:
    """A table of this test alone, and the collector of the consumer `flights`."""

    def __init__(self, connection: str, service: TableServiceClient, table: str) -> None:
        self.connection = connection
        self.service = service
        self.table = table
        self.collector = self.new_collector()

    def new_collector(self, connection: str | None = None, **options) -> ConsumerTelemetryCollector:
        params = ConsumerTelemetryCollector.Params(
            connection="Stats", consumer="flights", table=self.table, **options
        )
        return ConsumerTelemetryCollector(params, {"Stats": connection or self.connection})

    async def write(self, stats: ConsumerStats = IDLE, **change) -> None:
        row = to_row(msgspec.structs.replace(stats, **change))
        await self.service.get_table_client(self.table).upsert_entity(row, mode="replace")

    async def values(self, now: float = NOW):
        return (await self.collector.collect(now=now)).values


@pytest.fixture
async def world(azurite) -> AsyncIterator[World]:
    async with TableServiceClient.from_connection_string(azurite) as service:
        table = f"Stats{uuid4().hex[:12]}"
        await service.create_table(table)
        world = World(azurite, service, table)
        yield world
        await world.collector.aclose()


pytestmark = pytest.mark.wire


async def test_all_live_instances_count_together(world):
    await world.write(
        instance="a",
        throttled_share=0.1,
        written_per_s=900.0,
        ru_per_record=6.0,
        ru_per_s=5400.0,
        backlog_count=10,
        oldest_age_s=3.0,
        dead_letters_total=2,
    )
    await world.write(
        instance="b",
        at=NOW - 59,
        rate_limit=500,
        throttled_share=0.4,
        written_per_s=100.0,
        ru_per_record=16.0,
        ru_per_s=1600.0,
        backlog_count=5,
        oldest_age_s=8.0,
        dead_letters_total=1,
    )

    reading = await world.collector.collect(now=NOW)

    assert reading.at == NOW
    assert reading.values == {
        "throttled_share": 0.4,
        "ru_per_record": 7.0,
        "ru_per_s": 7000.0,
        "written_per_s": 1000.0,
        "rate_limit": 1500.0,
        "rate_per_consumer": 1000.0,
        "consumers": 2.0,
        "backlog": 15.0,
        "oldest_age": 8.0,
        "dead_letters": 3.0,
    }
    assert set(reading.values) == set(ConsumerTelemetryCollector.COUNTS)


async def test_rows_of_the_dead_and_of_other_consumers_do_not_count(world):
    await world.write(backlog_count=1)
    await world.write(instance="dead", at=NOW - 61, backlog_count=100)
    await world.write(consumer="flights2", backlog_count=1000)

    values = await world.values()

    assert (values["consumers"], values["backlog"]) == (1.0, 1.0)


async def test_no_fresh_row_is_unknown_not_zero(world):
    with pytest.raises(
        CollectError, match=r"consumer 'flights'.*no instance has reported within the last 60 s"
    ):
        await world.values()

    await world.write(at=NOW - 61)
    with pytest.raises(CollectError, match="no instance has reported"):
        await world.values()


async def test_how_old_a_row_may_be_is_an_option(world):
    await world.write(at=NOW - 80)
    patient = world.new_collector(stale_after="90s")

    reading = await patient.collect(now=NOW)
    await patient.aclose()

    assert reading.values["consumers"] == 1.0


async def test_the_charge_stays_as_learned_while_nothing_is_written(world):
    await world.write()
    assert "ru_per_record" not in await world.values()  # nothing learned yet, and nothing made up

    await world.write(written_per_s=10.0, ru_per_record=6.0)
    assert (await world.values())["ru_per_record"] == 6.0

    await world.write()
    assert (await world.values())["ru_per_record"] == 6.0


async def test_a_new_collector_learns_the_charge_from_what_the_instances_remember(world):
    await world.write(instance="a", last_ru_per_record=6.0)
    await world.write(instance="b", last_ru_per_record=7.5)

    assert (await world.values())["ru_per_record"] == 7.5


async def test_a_rate_that_one_instance_does_not_limit_is_not_told(world):
    await world.write(instance="a", rate_limit=1000.0)
    await world.write(instance="b", rate_limit=0.0)

    assert not {"rate_limit", "rate_per_consumer"} & set(await world.values())


async def test_an_instance_from_the_future_is_named(world):
    await world.write(at=NOW + 3600)

    with pytest.raises(CollectError, match="instance 'a' reports from 3600 s ahead; check its clock"):
        await world.values()


async def test_a_row_of_a_newer_release_is_an_error_that_names_the_instance(world):
    row = {**to_row(IDLE), "Schema": 2}
    await world.service.get_table_client(world.table).upsert_entity(row)

    with pytest.raises(CollectError, match=r"instance 'a'.*schema 2"):
        await world.values()


async def test_a_missing_table_is_an_error_that_names_it(world):
    await world.service.delete_table(world.table)

    with pytest.raises(CollectError, match=f"{world.table}.*does not exist"):
        await world.values()


async def test_a_wrong_key_is_an_error_that_names_the_role_and_hides_the_key(world):
    stranger = world.new_collector(world.connection.replace("AccountKey=", "AccountKey=AAAA"))

    with pytest.raises(CollectError, match="Storage Table Data Reader") as raised:
        await stranger.collect(now=NOW)
    await stranger.aclose()

    assert "AAAA" not in str(raised.value)


async def test_closing_twice_or_unused_is_allowed(world):
    await world.collector.aclose()
    await world.collector.aclose()


@pytest.mark.parametrize("value", ["soon", 0, "0s", -1])
def test_a_stale_after_that_means_nothing_is_refused(value):
    params = ConsumerTelemetryCollector.Params(connection="c", consumer="f", stale_after=value)

    assert "stale_after" in params.problems()
