"""The throughput scaler by key, over the wire: azure-cosmos against the local Cosmos DB."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from azure.cosmos import PartitionKey, ThroughputProperties
from azure.cosmos.aio import CosmosClient

from devstack.cosmos.server import CosmosServer
from devstack.resource_manager import LocalAccount
from devstack.servers.faults import Fault
from scaling.model import EffectOutcome, ScaleAction
from scaling.ports import ScalerError
from scaling.scalers.carrying_out import TargetRefusedError
from scaling.scalers.cosmos import planes as cosmos_planes
from scaling.scalers.cosmos.scaler import CosmosThroughputScaler
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager
from tests.support.virtual_time import Clock

NOW = 1_700_000_000.0

pytestmark = pytest.mark.wire


def action(start: int, to: int) -> ScaleAction:
    return ScaleAction(
        action_id="flights@1",
        target="flights",
        from_capacity=start,
        to_capacity=to,
        decided_at=NOW - 10,
        expires_at=NOW + 600,
        reason="scale_out" if to > start else "scale_in",
    )


class World:
    """A server whose time is set by the test, a client that makes things, and scalers."""

    def __init__(self, server: CosmosServer, client: CosmosClient) -> None:
        self.server = server
        self.client = client
        self.slept: list[float] = []
        self.scalers: list[CosmosThroughputScaler] = []

    async def container(self, throughput: int | ThroughputProperties | None = 1000) -> CosmosThroughputScaler:
        database = await self.client.create_database("demo")
        await database.create_container("flights", PartitionKey("/id"), offer_throughput=throughput)
        return self.scaler(container="flights")

    def scaler(self, **options) -> CosmosThroughputScaler:
        params = {"connection": "Flights", "database": "demo", **options}
        scaler = CosmosThroughputScaler(
            msgspec.convert(params, CosmosThroughputScaler.Params),
            {"Flights": self.server.connection_string},
            sleep=self._sleep,
            monotonic=lambda: sum(self.slept),
        )
        self.scalers.append(scaler)
        return scaler

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def offer(self):
        return LocalAccount(self.server.account).find_offer("demo", "flights")


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
async def world(clock) -> AsyncIterator[World]:
    async with (
        CosmosServer(clock=clock, split_delay=3600.0) as server,
        CosmosClient.from_connection_string(server.connection_string) as client,
    ):
        world = World(server, client)
        yield world
        for scaler in world.scalers:
            await scaler.aclose()


async def test_current_tells_throughput_floor_and_what_is_instant(world):
    scaler = await world.container(12_000)
    world.offer().highest = 100_000

    capacity = await scaler.current("flights", now=NOW)

    assert (capacity.current, capacity.floor, capacity.ceiling) == (12_000, 1000, 20_000)
    assert (capacity.at, capacity.pending) == (NOW, False)


async def test_manual_throughput_is_set_once_up_and_down(world):
    scaler = await world.container()

    up = await scaler.apply(action(1000, 6000), now=NOW)
    again = await scaler.apply(action(1000, 6000), now=NOW)
    down = await scaler.apply(action(6000, 400), now=NOW)

    assert [effect.outcome for effect in (up, again, down)] == [
        EffectOutcome.APPLIED,
        EffectOutcome.ALREADY_THERE,
        EffectOutcome.APPLIED,
    ]
    assert (world.offer().level.ru, world.offer().updates) == (400, 2)


async def test_the_maximum_of_autoscale_is_the_capacity(world):
    scaler = await world.container(ThroughputProperties(auto_scale_max_throughput=4000))

    capacity = await scaler.current("flights", now=NOW)
    effect = await scaler.apply(action(4000, 7000), now=NOW)

    assert (capacity.current, capacity.floor, capacity.step) == (4000, 1000, 1000)
    assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 7000)
    assert world.offer().level.autoscale


async def test_throughput_shared_by_a_database_is_set_too(world):
    await world.client.create_database("demo", offer_throughput=1000)
    scaler = world.scaler()

    capacity = await scaler.current("flights", now=NOW)
    effect = await scaler.apply(action(1000, 1500), now=NOW)

    assert (capacity.current, capacity.ceiling) == (1000, 10_000)
    assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 1500)


@pytest.mark.parametrize("container", ["shared", "nowhere"])
async def test_what_has_no_throughput_of_its_own_is_refused_clearly(world, container):
    database = await world.client.create_database("demo", offer_throughput=1000)
    await database.create_container("shared", PartitionKey("/id"))
    scaler = world.scaler(container=container)

    with pytest.raises(TargetRefusedError, match=f"'{container}'.*no throughput of its own"):
        await scaler.current("flights", now=NOW)
    effect = await scaler.apply(action(1000, 2000), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, None)


async def test_nothing_above_the_instant_maximum_is_asked_for_unless_splits_are_allowed(world):
    scaler = await world.container()

    effect = await scaler.apply(action(1000, 24_000), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 10_000)
    assert world.offer().pending is None


async def test_a_split_is_accepted_and_pending_until_the_partitions_are_there(world, clock):
    await world.container()
    scaler = world.scaler(container="flights", allow_split=True)

    effect = await scaler.apply(action(1000, 24_000), now=NOW)
    during = await scaler.current("flights", now=NOW)
    clock.now += 3601
    after = await scaler.current("flights", now=NOW + 3601)

    assert (effect.outcome, effect.reached) == (EffectOutcome.ACCEPTED, 1000)
    assert (during.current, during.pending) == (1000, True)
    assert (after.current, after.pending) == (24_000, False)


async def test_a_container_made_anew_is_found_again(world):
    scaler = await world.container(3000)
    await scaler.current("flights", now=NOW)
    database = world.client.get_database_client("demo")
    await database.delete_container("flights")
    await database.create_container("airports", PartitionKey("/id"), offer_throughput=700)
    await database.create_container("flights", PartitionKey("/id"), offer_throughput=5000)

    assert (await scaler.current("flights", now=NOW)).current == 5000


async def test_without_a_read_of_the_offer_the_refusal_tells_the_floor(world, monkeypatch):
    scaler = await world.container(5000)
    world.offer().highest = 120_000
    monkeypatch.setattr(cosmos_planes.DataPlane, "_offer_headers", _nothing)

    effect = await scaler.apply(action(5000, 400), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 1200)
    assert "accepts 1200 to 1000000" in effect.detail


async def _nothing(*_args: object) -> dict[str, str]:
    return {}


@pytest.mark.parametrize(("status", "substatus"), [(423, ""), (429, "3200")])
async def test_a_busy_or_throttling_service_is_waited_for_as_told(world, status, substatus):
    scaler = await world.container()
    world.server.inject(Fault("offers.replace", "error", status=status, condition=substatus, retry_after=7.0))

    effect = await scaler.apply(action(1000, 6000), now=NOW)

    assert (effect.outcome, world.slept) == (EffectOutcome.APPLIED, [7.0])


async def test_a_switch_to_autoscale_meanwhile_changes_nothing(world, monkeypatch):
    scaler = await world.container(ThroughputProperties(auto_scale_max_throughput=4000))
    write = cosmos_planes.DataPlane.write

    async def switched(plane, value, seen):
        offer = world.offer()
        offer.level = msgspec.structs.replace(offer.level, autoscale=False)
        await write(plane, value, seen)

    monkeypatch.setattr(cosmos_planes.DataPlane, "write", switched)

    with pytest.raises(ScalerError, match="switched between manual and autoscale"):
        await scaler.apply(action(4000, 7000), now=NOW)

    assert world.offer().level.ru == 4000


async def test_a_wrong_key_is_an_error_that_hides_the_key(world):
    await world.container()
    scaler = world.scaler(container="flights")
    scaler._plane._key = "AAAA" + scaler._plane._key[4:]

    with pytest.raises(ScalerError, match="account key") as raised:
        await scaler.current("flights", now=NOW)

    assert "AAAA" not in str(raised.value)


async def test_what_resource_manager_sets_is_what_the_data_plane_has(world, tmp_path_factory, monkeypatch):
    by_key = await world.container()
    async with resource_manager(tmp_path_factory, monkeypatch) as manager:
        account = manager.add_cosmos_account(
            SUBSCRIPTION, "rg", "tidemark", LocalAccount(world.server.account)
        )
        by_identity = CosmosThroughputScaler(
            CosmosThroughputScaler.Params(
                resource_id=f"{account}/sqlDatabases/demo/containers/flights", poll_interval_seconds=0.05
            ),
            arm_settings(manager),
        )
        effect = await by_identity.apply(action(1000, 6000), now=NOW)
        await by_identity.aclose()

    assert (effect.outcome, (await by_key.current("flights", now=NOW)).current) == (
        EffectOutcome.APPLIED,
        6000,
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("", "no Cosmos DB connection 'Flights'"),
        ("AccountEndpoint=https://a.documents.azure.com:443/;", "is not a Cosmos DB connection string"),
        ("AccountEndpoint=ftp://a;AccountKey=secret", "is not a Cosmos DB connection string"),
    ],
)
def test_a_connection_that_cannot_work_is_refused_without_its_value(setting, words):
    params = CosmosThroughputScaler.Params(connection="Flights", database="demo")

    with pytest.raises(ValueError, match=words) as raised:
        CosmosThroughputScaler(params, {"Flights": setting})

    assert "secret" not in str(raised.value)
