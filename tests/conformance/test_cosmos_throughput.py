"""The throughput scaler over the wire: by key with azure-cosmos against the local Cosmos DB, by managed identity against the local
Resource Manager, whose account is the same; and azure-mgmt-cosmosdb.
"""

from collections.abc import AsyncIterator

import msgspec
import pytest
from azure.mgmt.cosmosdb.aio import CosmosDBManagementClient

from devstack.cosmos.server import CosmosServer
from devstack.cosmos.store.throughput import Level
from devstack.resource_manager import ResourceManagerServer
from devstack.servers.faults import Fault
from scaling.model import EffectOutcome
from scaling.ports import ScalerError
from scaling.scalers.arm import clients as arm
from scaling.scalers.carrying_out import TargetRefusedError
from scaling.scalers.cosmos import planes as cosmos_planes
from scaling.scalers.cosmos.scaler import CosmosThroughputScaler
from tests.conformance.test_scalers import NOW, action
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager
from tests.support.virtual_time import Clock

pytestmark = pytest.mark.wire


class World:
    """An account whose time is set by the test and passes when somebody sleeps, and scalers of what is in it."""

    def __init__(self, server: CosmosServer, clock: Clock) -> None:
        self.server = server
        self.account = server.account
        self.clock = clock
        self.slept: list[float] = []
        self.scalers: list[CosmosThroughputScaler] = []

    def add(self, container: str = "flights", ru: int = 1000, *, autoscale: bool = False):
        """The offer of a new container in `demo`."""
        database = self.account.databases.get("demo") or self.account.create_database("demo")
        document = {"id": container, "partitionKey": {"paths": ["/id"], "kind": "Hash"}}
        return self.account.create_container(database, document, Level(ru, autoscale)).offer

    def scaler(self, container: str | None = "flights", **options) -> CosmosThroughputScaler:
        """Of a container, or of the database."""
        params = msgspec.convert({**self.params(container), **options}, CosmosThroughputScaler.Params)
        scaler = CosmosThroughputScaler(params, self.settings(), sleep=self._sleep, monotonic=self.clock)
        self.scalers.append(scaler)
        return scaler

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.now += seconds


class KeyWorld(World):
    UNKNOWN = "no throughput of its own"
    MOST = None
    BUSY = ((423, ""), (429, "3200"))

    def __init__(self, server: CosmosServer, clock: Clock) -> None:
        super().__init__(server, clock)
        self._orders: list[int] = []
        self._replace, self.account.replace_offer = self.account.replace_offer, self._replaced

    def _replaced(self, offer, level) -> None:
        self._orders.append(level.ru)
        self._replace(offer, level)

    def orders(self) -> list[int]:
        return self._orders

    def settings(self) -> dict[str, str]:
        return {"Flights": self.server.connection_string}

    def params(self, container: str | None) -> dict[str, object]:
        return {"connection": "Flights", "database": "demo"} | ({"container": container} if container else {})

    def refuse(self, status: int, condition: str, retry_after: float) -> None:
        self.server.inject(
            Fault("offers.replace", "error", status=status, condition=condition, retry_after=retry_after)
        )


class IdentityWorld(World):
    UNKNOWN = "not found"
    MOST = 1_000_000
    BUSY = ((423, "Locked"), (429, "TooManyRequests"), (409, "Conflict"))

    def __init__(self, server: CosmosServer, clock: Clock, manager: ResourceManagerServer) -> None:
        super().__init__(server, clock)
        self.manager = manager
        self.account_id = manager.add_cosmos_account(
            SUBSCRIPTION, "rg", "account", server.account, poll_after=0
        )

    def orders(self) -> list[int]:
        return [entry.capacity for entry in self.manager.ledger if entry.method == "PUT"]

    def settings(self) -> dict[str, str]:
        return arm_settings(self.manager, TIDEMARK_CALL_BUDGETS="management_reads=9999/1")

    def params(self, container: str | None) -> dict[str, object]:
        path = f"demo/containers/{container}" if container else "demo"
        return {"resource_id": f"{self.account_id}/sqlDatabases/{path}", "poll_interval_seconds": 0.05}

    def refuse(self, status: int, condition: str, retry_after: float) -> None:
        self.fault("error", status=status, condition=condition, retry_after=retry_after)

    def fault(self, kind: str, **options) -> None:
        self.manager.faults.add(Fault("arm.put_throughput", kind, **options))


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
async def server(clock) -> AsyncIterator[CosmosServer]:
    async with CosmosServer(clock=clock, split_delay=3600.0) as server:
        yield server


@pytest.fixture
async def by_key(server, clock) -> AsyncIterator[KeyWorld]:
    world = KeyWorld(server, clock)
    yield world
    for scaler in world.scalers:
        await scaler.aclose()


@pytest.fixture
async def by_identity(server, clock, tmp_path_factory, monkeypatch) -> AsyncIterator[IdentityWorld]:
    async with resource_manager(tmp_path_factory, monkeypatch, clock=clock) as manager:
        world = IdentityWorld(server, clock, manager)
        yield world
        for scaler in world.scalers:
            await scaler.aclose()


class ThroughputConformance:
    """Subclasses give `world`."""

    async def test_current_tells_throughput_floor_and_what_is_instant(self, world):
        world.add(ru=12_000).highest = 100_000

        capacity = await world.scaler().current("flights", now=NOW)

        assert (capacity.current, capacity.at) == (12_000, NOW)
        assert (capacity.floor, capacity.ceiling, capacity.pending) == (1000, 20_000, False)

    async def test_manual_throughput_is_set_once_up_and_down(self, world):
        offer, scaler = world.add(), world.scaler()

        up = await scaler.apply(action(1000, 6000), now=NOW)
        again = await scaler.apply(action(1000, 6000), now=NOW)
        down = await scaler.apply(action(6000, 400), now=NOW)

        assert [effect.outcome for effect in (up, again, down)] == [
            EffectOutcome.APPLIED,
            EffectOutcome.ALREADY_THERE,
            EffectOutcome.APPLIED,
        ]
        assert (up.reached, down.reached, offer.level.ru) == (6000, 400, 400)
        assert (up.detail, down.detail) == (
            "",
            "",
        )  # nothing went wrong on the way that reading back made good
        assert (world.orders(), offer.updates) == ([6000, 400], 2)

    async def test_the_maximum_of_autoscale_is_the_capacity_in_steps_of_1000(self, world):
        offer, scaler = world.add(ru=4000, autoscale=True), world.scaler()

        capacity = await scaler.current("flights", now=NOW)
        limited = await scaler.apply(action(4000, 6300), now=NOW)
        exact = await scaler.apply(action(7000, 9000), now=NOW)

        assert (capacity.current, capacity.floor, capacity.step) == (4000, 1000, 1000)
        assert capacity.ceiling == 10_000
        assert (limited.outcome, limited.reached) == (EffectOutcome.LIMITED, 7000)
        assert "steps of 1000" in limited.detail
        assert (exact.outcome, exact.reached) == (EffectOutcome.APPLIED, 9000)
        assert offer.level.autoscale

    async def test_throughput_shared_by_a_database_is_set_too(self, world):
        world.account.create_database("demo", Level(1000))
        scaler = world.scaler(None)

        capacity = await scaler.current("flights", now=NOW)
        effect = await scaler.apply(action(1000, 1500), now=NOW)

        assert (capacity.current, capacity.ceiling) == (1000, 10_000)
        assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 1500)

    @pytest.mark.parametrize(
        ("shared", "container"), [(Level(1000), "shared"), (Level(1000), "nowhere"), (None, None)]
    )
    async def test_what_has_no_throughput_of_its_own_is_refused_clearly(self, world, shared, container):
        database = world.account.create_database("demo", shared)
        if shared is not None:
            document = {"id": "shared", "partitionKey": {"paths": ["/id"], "kind": "Hash"}}
            world.account.create_container(database, document)
        words = world.UNKNOWN if container == "nowhere" else "no throughput of its own"
        scaler = world.scaler(container)

        with pytest.raises(TargetRefusedError, match=f"'{container or 'demo'}'.*{words}"):
            await scaler.current("flights", now=NOW)
        effect = await scaler.apply(action(1000, 2000), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, None)
        assert words in effect.detail

    async def test_below_the_floor_the_floor_is_asked_for(self, world):
        world.add(ru=5000).highest = 200_000

        effect = await world.scaler().apply(action(5000, 400), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 2000)
        assert "no less than 2000" in effect.detail

    async def test_a_floor_above_what_there_is_turns_no_decrease_into_an_increase(self, world):
        world.add().highest = 200_000  # as if the data had grown since

        effect = await world.scaler().apply(action(1000, 500), now=NOW)

        assert (effect.outcome, world.orders()) == (EffectOutcome.REFUSED, [])
        assert "no less than 2000" in effect.detail

    async def test_nothing_above_the_instant_maximum_is_asked_for_unless_splits_are_allowed(self, world):
        offer, scaler = world.add(), world.scaler()

        guarded = await scaler.apply(action(1000, 24_000), now=NOW)
        at_the_limit = await scaler.apply(action(10_000, 24_000), now=NOW)

        assert (guarded.outcome, guarded.reached) == (EffectOutcome.LIMITED, 10_000)
        assert (at_the_limit.outcome, at_the_limit.reached) == (EffectOutcome.REFUSED, 10_000)
        assert "allow_split" in guarded.detail
        assert offer.pending is None
        assert world.orders() == [10_000]

    async def test_a_split_is_accepted_and_pending_until_the_partitions_are_there(self, world):
        world.add()
        scaler = world.scaler(allow_split=True)

        effect = await scaler.apply(action(1000, 24_000), now=NOW)
        during = await scaler.current("flights", now=NOW)
        again = await scaler.apply(action(1000, 24_000), now=NOW)
        world.clock.now += 3601
        after = await scaler.current("flights", now=world.clock.now)

        assert (effect.outcome, effect.reached) == (EffectOutcome.ACCEPTED, 1000)
        assert (during.current, during.pending) == (1000, True)
        assert again.outcome is EffectOutcome.ACCEPTED
        assert (after.current, after.pending, after.ceiling) == (24_000, False, world.MOST)
        assert world.orders() == [24_000]

    async def test_a_writer_at_the_same_time_is_recognised_when_reading_back(self, world):
        offer = world.add()
        replace = offer.replace

        def replaced_at_once(level, now):
            replace(level, now)
            replace(msgspec.structs.replace(level, ru=2500), now)

        offer.replace = replaced_at_once
        effect = await world.scaler().apply(action(1000, 6000), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.EXTERNAL_CHANGE, 2500)
        assert "asked for 6000 RU/s, found 2500" in effect.detail

    async def test_a_busy_or_throttling_service_is_waited_for_as_told(self, world):
        for status, condition in world.BUSY:
            offer = world.add(f"container-{status}")
            world.refuse(status, condition, retry_after=2.0)

            effect = await world.scaler(f"container-{status}").apply(action(1000, 6000), now=NOW)

            assert (effect.outcome, offer.level.ru) == (EffectOutcome.APPLIED, 6000)
        assert world.slept == [2.0] * len(world.BUSY)

    async def test_a_wait_beyond_the_life_of_the_action_is_a_refusal(self, world):
        world.add(ru=6000)
        world.refuse(*world.BUSY[1], retry_after=14_000)

        effect = await world.scaler().apply(action(6000, 1000), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, 6000)
        assert "not before 14000 s" in effect.detail

    async def test_after_25_updates_of_an_account_the_next_one_is_put_off(self, world):
        offer = world.add()
        for step in range(25):
            world.account.replace_offer(offer, Level(1000 + 100 * step))

        with pytest.raises(ScalerError, match="throughput updates within 300 seconds") as raised:
            await world.scaler().apply(action(3400, 5000), now=NOW)

        assert (raised.value.retry_after, offer.level.ru) == (300, 3400)

    async def test_a_refusal_that_names_the_range_is_asked_again_within_it(self, world):
        offer = world.add(ru=5000)
        told = offer.minimum
        offer.minimum = lambda *, autoscale=None: told() if autoscale is None else 1200  # more than it tells

        effect = await world.scaler().apply(action(5000, 400), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 1200)
        assert "accepts 1200 to 1000000" in effect.detail
        assert world.orders() == [400, 1200]


class TestByKey(ThroughputConformance):
    @pytest.fixture
    def world(self, by_key) -> KeyWorld:
        return by_key

    async def test_a_container_made_anew_is_found_again(self, world):
        world.add(ru=3000)
        scaler = world.scaler()
        await scaler.current("flights", now=NOW)
        del world.account.databases["demo"].containers["flights"]
        world.add("airports", 700)
        world.add(ru=5000)

        assert (await scaler.current("flights", now=NOW)).current == 5000

    async def test_without_a_read_of_the_offer_the_refusal_tells_the_floor(self, world, monkeypatch):
        world.add(ru=5000).highest = 120_000
        monkeypatch.setattr(cosmos_planes.DataPlane, "_offer_headers", _nothing)

        effect = await world.scaler().apply(action(5000, 400), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 1200)
        assert "accepts 1200 to 1000000" in effect.detail

    async def test_a_switch_to_autoscale_meanwhile_changes_nothing(self, world, monkeypatch):
        offer = world.add(ru=4000, autoscale=True)
        write = cosmos_planes.DataPlane.write

        async def switched(plane, value, seen):
            offer.level = msgspec.structs.replace(offer.level, autoscale=False)
            await write(plane, value, seen)

        monkeypatch.setattr(cosmos_planes.DataPlane, "write", switched)

        with pytest.raises(ScalerError, match="switched between manual and autoscale"):
            await world.scaler().apply(action(4000, 7000), now=NOW)

        assert offer.level.ru == 4000

    async def test_a_wrong_key_is_an_error_that_hides_the_key(self, world):
        world.add()
        scaler = world.scaler()
        scaler._plane._key = "AAAA" + scaler._plane._key[4:]

        with pytest.raises(ScalerError, match="account key") as raised:
            await scaler.current("flights", now=NOW)

        assert "AAAA" not in str(raised.value)


async def _nothing(*_args: object) -> dict[str, str]:
    return {}


class TestByIdentity(ThroughputConformance):
    @pytest.fixture
    def world(self, by_identity) -> IdentityWorld:
        return by_identity

    async def test_an_operation_that_fails_is_left_to_a_later_delivery(self, world):
        world.add()
        world.fault("failed_operation")

        with pytest.raises(ScalerError, match="nothing was changed"):
            await world.scaler().apply(action(1000, 6000), now=NOW)

    async def test_the_scalers_of_an_account_together_keep_to_25_updates_in_5_minutes(self, world):
        scalers = [world.scaler(name) for name in ("flights", "airports") if world.add(name)]
        for index in range(24):
            here, there = (1000, 2000) if index // 2 % 2 == 0 else (2000, 1000)
            await scalers[index % 2].apply(action(here, there), now=NOW)
        await scalers[0].apply(action(1000, 2000), now=NOW)

        with pytest.raises(
            ScalerError, match=r"budget of cosmos_updates for \w+ \(25 calls in 300 s\) is used up"
        ) as raised:
            await scalers[1].apply(action(1000, 2000), now=NOW)

        assert raised.value.retry_after == 300
        assert len(world.orders()) == 25
        world.clock.now += 300
        assert (await scalers[1].apply(action(1000, 2000), now=NOW)).outcome is EffectOutcome.APPLIED

    async def test_a_missing_role_is_named(self, world):
        world.add()
        world.fault("error", status=403, condition="AuthorizationFailed")

        effect = await world.scaler().apply(action(1000, 6000), now=NOW)

        assert effect.outcome is EffectOutcome.REFUSED
        assert "Cosmos DB Operator" in effect.detail

    async def test_the_local_resource_manager_migrates_between_manual_and_autoscale(self, world):
        offer, settings = world.add(ru=2000), world.settings()
        async with CosmosDBManagementClient(
            arm.identity_of(settings),
            SUBSCRIPTION,
            base_url=world.manager.base_url,
            credential_scopes=[arm.scope(settings)],
            connection_verify=settings["TIDEMARK_CA_BUNDLE"],
            polling_interval=0.05,
        ) as client:
            path = ("rg", "account", "demo", "flights")
            poller = await client.sql_resources.begin_migrate_sql_container_to_autoscale(*path)
            autoscale = (await poller.result()).properties.resource
            poller = await client.sql_resources.begin_migrate_sql_container_to_manual_throughput(*path)
            manual = (await poller.result()).properties.resource

        assert autoscale.autoscale_settings.max_throughput == 2000
        assert (manual.throughput, manual.autoscale_settings) == (2000, None)
        assert not offer.level.autoscale


async def test_what_resource_manager_sets_is_what_the_data_plane_has(by_key, by_identity):
    by_key.add()

    effect = await by_identity.scaler().apply(action(1000, 6000), now=NOW)

    assert effect.outcome is EffectOutcome.APPLIED
    assert (await by_key.scaler().current("flights", now=NOW)).current == 6000


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


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        ({}, "connection", "is missing"),
        ({"connection": "c"}, "database", "is missing"),
        ({"resource_id": "/subscriptions/x"}, "resource_id", "databaseAccounts"),
        ({"resource_id": "x", "database": "d"}, "resource_id", "not both"),
    ],
)
def test_options_that_name_no_throughput_are_refused(options, option, words):
    problems = CosmosThroughputScaler.Params(**options).problems()

    assert words in problems[option]
