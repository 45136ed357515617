"""Many targets of one subscription cost a few requests: lists, one client, one token. Over real sockets."""

import asyncio
from collections import Counter

import msgspec
import pytest

from devstack.servers.faults import Fault
from scaling.calls.limiter import urgent
from scaling.ports import ScalerError
from scaling.scalers.app_service.scaler import AppServicePlanScaler
from scaling.scalers.cosmos.scaler import CosmosThroughputScaler
from scaling.scalers.resource.scaler import AzureResourceScaler
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager

pytestmark = pytest.mark.wire

NOW = 1_700_000_000.0
APPS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.App/containerApps"
APP = {"location": "westeurope", "properties": {"template": {"scale": {"minReplicas": 2, "maxReplicas": 9}}}}


class World:
    def __init__(self, server, plans: int, apps: int = 0) -> None:
        self.server = server
        self.plan_ids = [
            server.add_plan(SUBSCRIPTION, "rg", f"plan{n}", sku="S1", capacity=2) for n in range(plans)
        ]
        for n in range(apps):
            server.add_resource(f"{APPS}/app{n}", APP)
        settings = arm_settings(server)
        self.plans = [
            AppServicePlanScaler(AppServicePlanScaler.Params(resource_id=each), settings)
            for each in self.plan_ids
        ]
        options = {"kind": "container_app_minimum"}
        self.apps = [
            AzureResourceScaler(AzureResourceScaler.Params(resource_id=f"{APPS}/app{n}", **options), settings)
            for n in range(apps)
        ]
        AppServicePlanScaler.together([*self.plans, *self.apps])

    async def read(self, now: float) -> list[int | str]:
        """All capacities of one collection."""

        async def one(scaler):
            try:
                return (await scaler.current("t", now=now)).current
            except ScalerError as error:
                return str(error)

        return await asyncio.gather(*map(one, [*self.plans, *self.apps]))

    def asked(self) -> Counter[str]:
        """Requests since the last look, by their last part; those of tokens left out."""
        paths = [entry.path.partition("?")[0] for entry in self.server.ledger]
        self.server.ledger.clear()
        return Counter(path.rpartition("/")[2].rstrip("0123456789") for path in paths)

    async def aclose(self) -> None:
        for each in [*self.plans, *self.apps]:
            await each.aclose()


@pytest.fixture
async def world(tmp_path_factory, monkeypatch):
    async with resource_manager(tmp_path_factory, monkeypatch) as server:
        world = World(server, plans=12, apps=5)
        yield world
        await world.aclose()


async def test_all_targets_of_a_subscription_are_read_by_one_list_of_each_type(world):
    assert await world.read(NOW) == [2] * 17
    assert world.asked() == {"serverfarms": 1, "containerApps": 1, "autoscalesettings": 1}

    assert await world.read(NOW + 60) == [2] * 17
    assert world.asked() == {"serverfarms": 1, "containerApps": 1}


async def test_what_a_list_says_of_a_change_is_asked_of_the_target_itself(world):
    await world.read(NOW)
    world.asked()
    world.server.plan(world.plan_ids[3]).set_capacity(5)

    assert (await world.read(NOW + 60)).count(5) == 1
    assert world.asked() == {"serverfarms": 1, "containerApps": 1, "plan": 1}


async def test_for_a_change_the_target_itself_is_read(world):
    await world.read(NOW)
    world.asked()

    with urgent():
        assert (await world.plans[3].current("t", now=NOW + 1)).current == 2
        assert (await world.apps[3].current("t", now=NOW + 1)).current == 2

    assert world.asked() == {"plan": 1, "app": 1}


async def test_who_may_not_list_the_subscription_lists_the_group(world):
    world.server.faults.add(
        Fault("arm.list_plans", "error", status=403, condition="AuthorizationFailed", count=1)
    )

    assert await world.read(NOW) == [2] * 17
    assert world.asked() == {"serverfarms": 2, "containerApps": 1, "autoscalesettings": 1}
    assert await world.read(NOW + 60) == [2] * 17
    assert world.asked() == {"serverfarms": 1, "containerApps": 1}


async def test_where_no_list_can_be_had_each_is_read_by_itself_and_the_list_is_left_alone_for_a_while(
    world, caplog
):
    world.server.faults.add(
        Fault("arm.list_plans", "error", status=403, condition="AuthorizationFailed", count=2)
    )

    assert await world.read(NOW) == [2] * 17
    assert world.asked()["plan"] == 12
    assert (
        "serverfarms of /subscriptions/11111111-2222-3333-4444-555555555555 cannot be listed" in caplog.text
    )

    assert await world.read(NOW + 60) == [2] * 17
    assert (found := world.asked())["plan"] == 12
    assert found["serverfarms"] == 0
    world.server.faults.add(
        Fault("arm.list_plans", "error", status=403, condition="AuthorizationFailed", count=2)
    )
    await world.read(NOW + 601)
    assert world.asked()["serverfarms"] == 2
    assert caplog.text.count("cannot be listed") == 2  # of the subscription, and of the group
    await world.read(NOW + 1202)
    assert world.asked() == {"serverfarms": 1, "containerApps": 1, "autoscalesettings": 1}


async def test_a_list_that_is_throttled_is_not_made_up_for_by_single_reads(world):
    world.server.faults.add(
        Fault(
            "arm.list_plans", "error", status=429, condition="SubscriptionRequestsThrottled", retry_after=40
        )
    )

    read = await world.read(NOW)

    assert all("A fault was asked for" in str(each) or "asked to wait" in str(each) for each in read[:12])
    assert world.asked()["plan"] == 0


async def test_a_plan_that_the_list_lacks_is_read_by_itself(world):
    world.server.add_plan("22222222-2222-3333-4444-555555555555", "rg", "plan0", sku="S1", capacity=7)
    elsewhere = AppServicePlanScaler(
        AppServicePlanScaler.Params(resource_id=world.plan_ids[0].replace("plan0", "gone")),
        arm_settings(world.server),
    )
    world.plans.append(elsewhere)
    AppServicePlanScaler.together(world.plans)

    read = await world.read(NOW)

    assert "not found" in read[12]
    assert world.asked()["gone"] == 1


async def test_a_few_targets_are_read_each_by_itself_by_one_client_with_one_token(
    tmp_path_factory, monkeypatch
):
    async with resource_manager(tmp_path_factory, monkeypatch) as server:
        world = World(server, plans=2, apps=2)
        cosmos = msgspec.convert({"connection": "C", "database": "d"}, CosmosThroughputScaler.Params)
        by_key = CosmosThroughputScaler(cosmos, {"C": "AccountEndpoint=https://localhost/;AccountKey=AA==;"})
        AppServicePlanScaler.together([by_key, *world.plans, *world.apps])

        assert await world.read(NOW) == [2] * 4
        assert world.asked() == {"plan": 2, "app": 2, "autoscalesettings": 1}
        assert len({id(each._arm) for each in [*world.plans, *world.apps]}) == 1
        await world.aclose()
        await by_key.aclose()
