"""What every scaler promises, checked on the fake, and on App Service Plans and any other resource over the wire."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from devstack.resource_manager import ResourceManagerServer
from devstack.servers.faults import Fault
from scaling.model import EffectOutcome, ScaleAction
from scaling.ports import ScalerError
from scaling.scalers.app_service.scaler import AppServicePlanScaler
from scaling.scalers.resource.scaler import AzureResourceScaler
from tests.support.scaling.fakes_azure import FakePlatform, FakeScaler
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager

NOW = 1_700_000_000.0


def action(start: int, to: int, *, action_id: str = "plan@1") -> ScaleAction:
    return ScaleAction(
        action_id=action_id,
        target="plan",
        from_capacity=start,
        to_capacity=to,
        decided_at=NOW - 10,
        expires_at=NOW + 600,
        reason="scale_out" if to > start else "scale_in",
    )


class ScalerConformance:
    """Subclasses give `world`: `scaler`, and the platform behind it without going through the scaler."""

    CEILING: int

    async def test_current_tells_capacity_and_limits_at_the_given_time(self, world):
        await world.move(3)

        capacity = await world.scaler.current("plan", now=NOW)

        assert (capacity.current, capacity.at) == (3, NOW)
        assert (capacity.floor, capacity.ceiling) == (1, self.CEILING)
        assert (capacity.pending, capacity.held_by) == (False, None)

    @pytest.mark.parametrize(("start", "to"), [(1, 4), (4, 2), (2, 1)])
    async def test_an_action_moves_the_target_once(self, world, start, to):
        await world.move(start)

        effect = await world.scaler.apply(action(start, to), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, to)
        assert (effect.action_id, effect.target) == ("plan@1", "plan")
        assert (effect.from_capacity, effect.to_capacity) == (start, to)
        assert effect.at >= NOW
        assert await world.capacity() == to
        assert world.orders() == [to]

    async def test_the_same_action_again_changes_nothing(self, world):
        await world.scaler.apply(action(1, 3), now=NOW)
        again = await world.scaler.apply(action(1, 3), now=NOW + 30)

        assert (again.outcome, again.reached) == (EffectOutcome.ALREADY_THERE, 3)
        assert world.orders() == [3]

    async def test_a_target_somebody_else_moved_is_left_alone(self, world):
        await world.move(5)

        effect = await world.scaler.apply(action(1, 3), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.EXTERNAL_CHANGE, 5)
        assert "5" in effect.detail
        assert world.orders() == []

    async def test_another_controller_is_named_and_respected(self, world):
        await world.hold("night-shift")

        effect = await world.scaler.apply(action(1, 3), now=NOW)
        capacity = await world.scaler.current("plan", now=NOW)

        assert effect.outcome is EffectOutcome.EXTERNAL_CHANGE
        assert "night-shift" in effect.detail
        assert capacity.held_by == "night-shift"
        assert world.orders() == []

    async def test_more_than_the_ceiling_is_limited_to_it(self, world):
        effect = await world.scaler.apply(action(1, self.CEILING + 5), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, self.CEILING)
        assert effect.detail
        assert world.orders() == [self.CEILING]

    async def test_a_limited_action_delivered_again_is_still_limited_not_foreign(self, world):
        await world.scaler.apply(action(1, self.CEILING + 5), now=NOW)

        again = await world.scaler.apply(action(1, self.CEILING + 5), now=NOW)

        assert (again.outcome, again.reached) == (EffectOutcome.LIMITED, self.CEILING)
        assert world.orders() == [self.CEILING]

    async def test_nothing_is_asked_for_at_the_ceiling(self, world):
        await world.move(self.CEILING)

        effect = await world.scaler.apply(action(self.CEILING, self.CEILING + 5), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, self.CEILING)
        assert world.orders() == []

    async def test_a_capacity_below_one_is_never_asked_for(self, world):
        await world.move(2)

        effect = await world.scaler.apply(action(2, 0), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 1)
        assert world.orders() == [1]

    async def test_an_accepted_change_without_effect_is_reported_as_failed(self, world):
        await world.ignore_orders()

        effect = await world.scaler.apply(action(1, 3), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.FAILED, 1)

    async def test_a_lasting_conflict_is_left_to_a_later_delivery(self, world):
        await world.conflict()

        with pytest.raises(ScalerError) as raised:
            await world.scaler.apply(action(1, 3), now=NOW)

        assert raised.value.retry_after
        assert await world.capacity() == 1

    async def test_a_platform_that_does_not_answer_is_an_error_not_a_capacity(self, world):
        await world.silence()

        with pytest.raises(ScalerError):
            await world.scaler.current("plan", now=NOW)
        with pytest.raises(ScalerError):
            await world.scaler.apply(action(1, 3), now=NOW)


class PartialGrantConformance(ScalerConformance):
    """And of those whose platform may give a part: `world.offer` is how much there is."""

    async def test_part_of_what_was_asked_is_taken_when_servers_are_short(self, world):
        await world.offer(2)

        effect = await world.scaler.apply(action(1, 6), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 3)
        assert await world.capacity() == 3

    async def test_no_servers_at_all_is_a_refusal(self, world):
        await world.offer(0)

        effect = await world.scaler.apply(action(1, 6), now=NOW)

        assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, 1)
        assert effect.detail


class FakeWorld:
    def __init__(self) -> None:
        self.platform = FakePlatform()
        self.scaler = FakeScaler(self.platform)

    def orders(self) -> list[int]:
        return self.platform.ledger

    async def capacity(self) -> int:
        return self.platform.capacity

    async def move(self, capacity: int) -> None:
        self.platform.move(capacity)

    async def hold(self, name: str) -> None:
        self.platform.held_by = name

    async def offer(self, count: int) -> None:
        self.platform.available = count

    async def ignore_orders(self) -> None:
        self.platform.ignores = True

    async def conflict(self) -> None:
        self.platform.conflicts = 1

    async def silence(self) -> None:
        self.platform.unreachable = True


class TestFakeScaler(PartialGrantConformance):
    CEILING = 30

    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()


class PlanWorld:
    """A plan on the local Resource Manager, and the adapter that finds it through managed identity."""

    def __init__(self, server: ResourceManagerServer, **options: Any) -> None:
        self.server = server
        self.plan_id = server.add_plan(SUBSCRIPTION, "rg", "plan", sku="S1")
        params = {"resource_id": self.plan_id, "deadline_seconds": 3, "poll_interval_seconds": 0.05}
        self.scaler = AppServicePlanScaler(
            AppServicePlanScaler.Params(**{**params, **options}),
            arm_settings(server),
        )

    @property
    def plan(self):
        return self.server.plan(self.plan_id)

    def orders(self) -> list[int]:
        return [
            entry.capacity for entry in self.server.ledger if entry.method == "PUT" and entry.status < 400
        ]

    async def capacity(self) -> int:
        return self.plan.capacity

    async def move(self, capacity: int) -> None:
        self.plan.set_capacity(capacity)

    async def hold(self, name: str) -> None:
        self.server.add_autoscale_setting(self.plan_id, name)

    async def offer(self, count: int) -> None:
        self.plan.available_workers = count

    async def ignore_orders(self) -> None:
        self.server.faults.add(Fault("arm.put_plan", "ignored_capacity"))

    async def conflict(self) -> None:
        self.plan.conflict_retry_after = 60
        self.server.faults.add(Fault("arm.put_plan", "conflict", count=None))

    async def silence(self) -> None:
        self.server.faults.add(Fault("arm.get_plan", "drop_connection", count=None))


@pytest.fixture
async def plan_world(tmp_path_factory, monkeypatch) -> AsyncIterator[PlanWorld]:
    async with resource_manager(tmp_path_factory, monkeypatch) as server:
        world = PlanWorld(server)
        yield world
        await world.scaler.aclose()


@pytest.mark.wire
class TestAppServicePlanOnTheWire(PartialGrantConformance):
    CEILING = 10

    @pytest.fixture
    def world(self, plan_world) -> PlanWorld:
        return plan_world


class ResourceWorld:
    """A pool of nodes on the local Resource Manager: a resource of which nothing is known but what the configuration says."""

    def __init__(self, server: ResourceManagerServer) -> None:
        self.server = server
        self.id = (
            f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.ContainerService"
            "/managedClusters/cluster/agentPools/pool"
        )
        self.pool = server.add_resource(self.id, {"properties": {"count": 1, "mode": "User"}})
        params = AzureResourceScaler.Params(
            resource_id=self.id,
            api_version="2024-09-01",
            path="properties.count",
            method="put",
            least=1,
            most=10,
            unit="nodes",
            deadline_seconds=3,
            poll_interval_seconds=0.05,
        )
        self.scaler = AzureResourceScaler(params, arm_settings(server))

    def orders(self) -> list[int]:
        return [
            entry.capacity for entry in self.server.ledger if entry.method == "PUT" and entry.status < 400
        ]

    async def capacity(self) -> int:
        return self.pool.value("properties.count")

    async def move(self, capacity: int) -> None:
        self.pool.set("properties.count", capacity)

    async def hold(self, name: str) -> None:
        self.server.add_autoscale_setting(self.id, name)

    async def ignore_orders(self) -> None:
        self.server.faults.add(Fault("arm.put_resource", "ignored_change"))

    async def conflict(self) -> None:
        self.pool.conflict_retry_after = 60
        self.server.faults.add(Fault("arm.put_resource", "conflict", count=None))

    async def silence(self) -> None:
        self.server.faults.add(Fault("arm.get_resource", "drop_connection", count=None))


@pytest.mark.wire
class TestAnyResourceOnTheWire(ScalerConformance):
    CEILING = 10

    @pytest.fixture
    async def world(self, tmp_path_factory, monkeypatch) -> AsyncIterator[ResourceWorld]:
        async with resource_manager(tmp_path_factory, monkeypatch) as server:
            world = ResourceWorld(server)
            yield world
            await world.scaler.aclose()
