"""What the tables of the consumer's rows and rate orders do, in memory and in Table Storage."""

import uuid

import pytest

from consumer.telemetry.rate_orders import RateOrder, RateOrderError, TableRateStore, Unit
from consumer.telemetry.shared_budget import Part
from consumer.telemetry.stats_store import TableStatsStore
from tests.support.consumer.telemetry import MemoryRateStore, MemoryStatsStore
from tidemark.foundation.azure.connections import ConnectionSettingsError
from tidemark.foundation.azure.tables import Table
from tidemark.foundation.consumer_stats import ConsumerStats, PartitionStats
from tidemark.foundation.errors import StoreUnavailableError

T0 = 1_795_000_000.0
BACKENDS = ["memory", pytest.param("azurite", marks=pytest.mark.wire)]


@pytest.fixture(params=BACKENDS)
def backend(request):
    """None for memory, else a connection string."""
    return None if request.param == "memory" else request.getfixturevalue("azurite")


@pytest.fixture
async def orders(backend):
    name = f"Controls{uuid.uuid4().hex}"
    made = TableRateStore({"Store": backend}, "Store", table=name) if backend else MemoryRateStore()
    yield made
    await made.aclose()


@pytest.fixture
async def rows(backend):
    name = f"Stats{uuid.uuid4().hex}"
    made = TableStatsStore({"Store": backend}, "Store", table=name) if backend else MemoryStatsStore()
    yield made
    await made.aclose()


async def test_a_consumer_without_an_order_has_none(orders):
    assert await orders.load("flights") is None
    assert await orders.load_all() == {}


async def test_the_newest_order_replaces_the_one_before(orders):
    await orders.save("flights/ü", RateOrder(fleet_rate=1000.0, by="ann", at=T0))
    await orders.save("flights/ü", RateOrder(rate=0.5, by="Zoë", at=T0 + 1))
    await orders.save("other", RateOrder(by="dan", at=T0))

    assert await orders.load("flights/ü") == RateOrder(rate=0.5, by="Zoë", at=T0 + 1)
    assert await orders.load_all() == {
        "flights/ü": RateOrder(rate=0.5, by="Zoë", at=T0 + 1),
        "other": RateOrder(by="dan", at=T0),
    }


async def test_a_row_is_replaced_and_rows_older_than_asked_for_are_left_out(rows):
    old = ConsumerStats(consumer="flights", instance="vm-1", at=T0 - 100)
    new = ConsumerStats(
        consumer="flights", instance="vm-1", at=T0, lag=(PartitionStats("0", 10, 9, 8, 1, 1),)
    )
    gone = ConsumerStats(consumer="flights", instance="vm-0", at=T0 - 500)
    for stats in (old, new, gone):
        await rows.put(stats)

    assert await rows.load_all(T0 - 200) == [new]


async def test_pruning_removes_old_rows_of_that_consumer_only(rows):
    kept = ConsumerStats(consumer="flights", instance="vm-1", at=T0)
    other = ConsumerStats(consumer="other", instance="vm-0", at=T0 - 500)
    for stats in (kept, other, ConsumerStats(consumer="flights", instance="vm-0", at=T0 - 500)):
        await rows.put(stats)
    await rows.prune("flights", T0 - 100)
    await rows.prune("flights", T0 - 100)

    found = await rows.load_all(0.0)
    assert sorted(found, key=lambda stats: stats.at) == [other, kept]


@pytest.mark.wire
async def test_an_order_of_a_newer_release_is_refused_by_name_and_hides_no_other(azurite):
    name = f"Controls{uuid.uuid4().hex}"
    table, store = (
        Table({"Store": azurite}, "Store", name),
        TableRateStore({"Store": azurite}, "Store", table=name),
    )
    try:
        await table.put(
            [{"PartitionKey": "flights", "RowKey": "rate", "Name": "flights", "Schema": 2, "rate": 1.0}]
        )
        await store.save("other", RateOrder(rate=5.0))

        with pytest.raises(RateOrderError, match=r"consumer 'flights'.* has schema 2; this release reads 1"):
            await store.load("flights")
        assert list(await store.load_all()) == ["other"]
    finally:
        await table.aclose()
        await store.aclose()


@pytest.mark.wire
async def test_parts_of_a_budget_stand_beside_orders_of_both_units_and_are_removed(azurite):
    store = TableRateStore({"Store": azurite}, "Store", table=f"Controls{uuid.uuid4().hex}")
    try:
        await store.save("flights", RateOrder(rate=5.0))
        await store.save("flights", RateOrder(fleet_rate=900.0), Unit.REQUEST_UNITS)
        for beat in (1.0, 2.0):
            await store.save_part("flights", Part("backfill~1", 300.0, 150.0, beat))
        await store.save_part("other", Part("backfill~2", 1.0, 1.0, 1.0))

        assert await store.load("flights") == RateOrder(rate=5.0)
        assert await store.load_all(Unit.REQUEST_UNITS) == {"flights": RateOrder(fleet_rate=900.0)}
        assert await store.parts("flights") == [Part("backfill~1", 300.0, 150.0, 2.0)]
        for _ in range(2):
            await store.remove_part("flights", "backfill~1")
        assert await store.parts("flights") == []
    finally:
        await store.aclose()


async def test_an_account_that_cannot_be_reached_is_unavailable():
    nowhere = (
        "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;TableEndpoint=http://127.0.0.1:1/a;"
    )
    store = TableRateStore({"Store": nowhere}, "Store", retry_total=0)
    try:
        with pytest.raises(StoreUnavailableError, match="ConsumerControls"):
            await store.load("flights")
    finally:
        await store.aclose()


def test_a_missing_connection_is_told_at_once():
    with pytest.raises(ConnectionSettingsError, match="Store"):
        TableStatsStore({}, "Store")
