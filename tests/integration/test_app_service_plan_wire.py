"""Every refusal and mishap of Resource Manager, over real sockets, as the App Service scaler meets it."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from devstack.resource_manager import BucketSize, OperationStyle, ResourceManagerServer
from devstack.servers.faults import Fault
from scaling.calls.limiter import limiter_of
from scaling.model import EffectOutcome, ScaleAction
from scaling.ports import ScalerError
from scaling.scalers.app_service.scaler import AppServicePlanScaler
from scaling.scalers.carrying_out import TargetRefusedError
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager

pytestmark = pytest.mark.wire

NOW = 1_700_000_000.0


class World:
    """A server, and plans with a scaler each; what the scaler sleeps is recorded and shortened."""

    def __init__(self, server: ResourceManagerServer) -> None:
        self.server = server
        self.slept: list[float] = []
        self.on_sleep = lambda: None
        self.pace = 0.0
        self._scalers: list[AppServicePlanScaler] = []
        # What is slept here has passed for the ledger, too.
        limiter_of({})._clock = lambda: time.monotonic() + sum(self.slept)

    def settings(self, **more: str) -> dict[str, str]:
        return arm_settings(self.server, **more)

    def scaler(self, plan_id: str, *, settings: dict[str, str] | None = None, **options):
        params = {"resource_id": plan_id, "deadline_seconds": 60, "poll_interval_seconds": 0.05, **options}
        scaler = AppServicePlanScaler(
            msgspec.convert(params, AppServicePlanScaler.Params),
            settings or self.settings(),
            sleep=self._sleep,
        )
        self._scalers.append(scaler)
        return scaler

    def plan(self, **options):
        """A plan of 2 instances and its scaler."""
        plan_id = self.server.add_plan(SUBSCRIPTION, "rg", "plan", **{"sku": "S1", "capacity": 2, **options})
        return self.server.plan(plan_id), self.scaler(plan_id)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.on_sleep()
        await asyncio.sleep(self.pace)

    def fault(self, point: str, kind: str, **options) -> None:
        self.server.faults.add(Fault(f"arm.{point}", kind, **options))

    def puts(self) -> list[int]:
        return [entry.capacity for entry in self.server.ledger if entry.method == "PUT"]

    async def aclose(self) -> None:
        for scaler in self._scalers:
            await scaler.aclose()


@pytest.fixture
async def world(tmp_path_factory, monkeypatch) -> AsyncIterator[World]:
    async with resource_manager(tmp_path_factory, monkeypatch) as server:
        world = World(server)
        yield world
        await world.aclose()


def action(start: int = 2, to: int = 4) -> ScaleAction:
    return ScaleAction("plan@1", "plan", start, to, NOW, NOW + 600, "scale_out")


@pytest.mark.parametrize("style", list(OperationStyle))
async def test_a_long_running_change_is_followed_to_its_end(world, style):
    plan, scaler = world.plan(operation_seconds=0.3, operation_style=style, poll_after=0)

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached, effect.detail) == (EffectOutcome.APPLIED, 4, "")
    assert effect.at >= NOW + 0.3
    assert plan.capacity == 4
    assert world.puts() == [4]
    assert {entry.method for entry in world.server.ledger} == {"GET", "PUT"}


@pytest.mark.parametrize("status", [409, 429])
async def test_another_operation_is_waited_for_as_long_as_told(world, status):
    plan, scaler = world.plan(conflict_status=status, conflict_retry_after=7)
    world.fault("put_plan", "conflict", count=2)

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 4)
    assert world.slept == [7.0, 7.0]
    assert plan.capacity == 4


@pytest.mark.parametrize("status", [409, 429])
async def test_a_plan_that_stays_busy_is_left_to_a_later_delivery_after_twenty_seconds(world, status):
    plan, scaler = world.plan(conflict_status=status, conflict_retry_after=7)
    world.fault("put_plan", "conflict", count=None)

    with pytest.raises(ScalerError, match="in progress") as raised:
        await scaler.apply(action(), now=NOW)

    assert raised.value.retry_after == 7.0
    assert world.slept == [7.0, 7.0]
    assert plan.capacity == 2


async def test_a_locked_plan_is_refused_with_what_to_do_and_not_waited_for(world):
    _, scaler = world.plan()
    world.fault("put_plan", "error", status=409, condition="ScopeLocked")

    effect = await scaler.apply(action(), now=NOW)

    assert effect.outcome is EffectOutcome.REFUSED
    assert "a lock forbids the change" in effect.detail
    assert world.slept == []


async def test_an_operation_of_somebody_else_that_moves_the_plan_meanwhile_is_respected(world):
    plan, scaler = world.plan()
    world.fault("put_plan", "conflict")
    world.on_sleep = lambda: plan.set_capacity(7)

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.EXTERNAL_CHANGE, 7)
    assert world.puts() == [4]


async def test_throttling_is_waited_out_within_the_deadline(world):
    _, scaler = world.plan()
    world.fault("put_plan", "error", status=429, condition="SubscriptionRequestsThrottled", retry_after=11)

    effect = await scaler.apply(action(), now=NOW)

    assert effect.outcome is EffectOutcome.APPLIED
    assert world.slept == [11.0]


async def test_throttling_beyond_the_deadline_is_left_to_a_later_delivery(world):
    _, scaler = world.plan()
    world.fault("put_plan", "error", status=429, condition="SubscriptionRequestsThrottled", retry_after=300)

    with pytest.raises(ScalerError, match="A fault was asked for") as raised:
        await scaler.apply(action(), now=NOW)

    assert raised.value.retry_after == 300
    assert world.slept == []


async def test_a_throttled_reading_tells_when_to_come_back(world):
    plan, _ = world.plan()
    world.fault("get_plan", "error", status=429, retry_after=42)
    scaler = world.scaler(plan.id)

    with pytest.raises(ScalerError, match="429") as raised:
        await scaler.current("plan", now=NOW)

    assert raised.value.retry_after == 42


async def test_a_maximum_that_was_lowered_meanwhile_is_learnt_from_the_refusal(world, monkeypatch):
    """The refusal has no number: the plan, read again, tells it."""
    plan, scaler = world.plan()
    read = scaler._ask

    async def read_before(now):
        found = await read(now)
        plan.own_maximum = 6
        return found

    monkeypatch.setattr(scaler, "_ask", read_before)

    effect = await scaler.apply(action(to=9), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 6)
    assert world.puts()[0] == 9


async def test_a_limit_of_the_plan_below_that_of_its_sku_is_its_ceiling(world):
    plan, scaler = world.plan(own_maximum=6)

    capacity = await scaler.current("plan", now=NOW)
    effect = await scaler.apply(action(to=9), now=NOW)

    assert (plan.sku.maximum, capacity.ceiling) == (10, 6)
    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 6)
    assert world.puts() == [6]


@dataclasses.dataclass(frozen=True)
class AfterThePut(Fault):
    """Reading the plan fails once a change has been asked for."""

    where: str = "arm.get_plan"
    kind: str = "error"
    count: int | None = None
    world: World | None = None

    def matches(self, where: str) -> bool:
        return super().matches(where) and bool(self.world.puts())


async def test_scarce_servers_are_taken_as_far_as_they_go(world):
    plan, scaler = world.plan(available_workers=3)

    effect = await scaler.apply(action(to=8), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 5)
    assert "Not enough available reserved instance servers" in effect.detail
    assert world.puts() == [8, 5]
    assert plan.capacity == 5


async def test_an_asynchronous_scale_out_is_accepted_until_the_platform_is_done(world):
    plan, scaler = world.plan(available_workers=3, async_scaling_enabled=True)

    effect = await scaler.apply(action(to=8), now=NOW)
    capacity = await scaler.current("plan", now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.ACCEPTED, 5)
    assert effect.detail == "the platform has 5 of 8 and is still changing"
    assert (capacity.current, capacity.pending) == (5, True)

    plan.offer_workers(3)
    done = await scaler.apply(action(to=8), now=NOW)

    assert (done.outcome, done.reached) == (EffectOutcome.ALREADY_THERE, 8)
    assert world.puts() == [8]


async def test_an_asynchronous_scale_out_that_has_nothing_yet_is_not_waited_for(world):
    _, scaler = world.plan(available_workers=0, async_scaling_enabled=True)

    effect = await scaler.apply(action(to=8), now=NOW)
    again = await scaler.apply(action(to=8), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.ACCEPTED, 2)
    assert (again.outcome, world.puts(), world.slept) == (EffectOutcome.ACCEPTED, [8], [])


async def test_a_second_delivery_finds_what_was_asked_for_within_the_ceiling(world):
    plan, scaler = world.plan(available_workers=3, async_scaling_enabled=True)
    await scaler.apply(action(to=12), now=NOW)  # the SKU has 10

    again = await world.scaler(plan.id).apply(action(to=12), now=NOW)

    assert (again.outcome, again.reached, world.puts()) == (EffectOutcome.ACCEPTED, 5, [10])


async def test_a_second_delivery_finds_an_asynchronous_scale_out_under_way_and_no_external_change(world):
    """The first one died before it could record anything."""
    plan, scaler = world.plan(available_workers=3, async_scaling_enabled=True)
    await scaler.apply(action(to=8), now=NOW)

    again = await world.scaler(plan.id).apply(action(to=8), now=NOW)
    other = await world.scaler(plan.id).apply(action(to=9), now=NOW)

    assert (again.outcome, again.reached) == (EffectOutcome.ACCEPTED, 5)
    assert other.outcome is EffectOutcome.EXTERNAL_CHANGE
    assert world.puts() == [8]


async def test_the_hourly_limit_of_changes_is_a_refusal(world):
    plan, scaler = world.plan(changes_per_hour=1)
    await scaler.apply(action(to=3), now=NOW)

    effect = await scaler.apply(action(start=3, to=4), now=NOW)

    assert effect.outcome is EffectOutcome.REFUSED
    assert "scale changes within the past hour" in effect.detail
    assert plan.capacity == 3


@pytest.mark.parametrize("status", [401, 403])
async def test_a_forbidden_change_names_the_role_that_is_missing(world, status):
    plan, scaler = world.plan()
    world.fault("put_plan", "error", status=status, condition="AuthorizationFailed")

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, 2)
    assert "Web Plan Contributor" in effect.detail
    assert "Web Plan Contributor" in effect.detail
    assert plan.capacity == 2


async def test_a_forbidden_reading_names_the_role_that_is_missing(world):
    _, scaler = world.plan()
    world.fault("get_plan", "error", status=403, condition="AuthorizationFailed", count=2)

    with pytest.raises(ScalerError, match="'Reader' role"):
        await scaler.current("plan", now=NOW)
    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, None)


async def test_a_missing_plan_is_a_refusal_that_names_it(world):
    plan, scaler = world.plan()
    world.server.add_plan(SUBSCRIPTION, "rg", "other")
    world.server.remove_plan(plan.id)

    with pytest.raises(ScalerError, match="plan 'plan': not found"):
        await scaler.current("plan", now=NOW)
    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, None)
    assert "not found" in effect.detail


@pytest.mark.parametrize(
    ("sku", "options", "words"),
    [
        ("EP1", {}, "Elastic Premium"),
        ("F1", {"capacity": 1}, "move it to Basic"),
        ("D1", {"capacity": 1}, "move it to Basic"),
        ("P1v3", {"elastic_scale_enabled": True}, "turn it off"),
    ],
)
async def test_plans_whose_instances_cannot_be_set_are_refused_with_advice(world, sku, options, words):
    _, scaler = world.plan(sku=sku, **options)

    with pytest.raises(TargetRefusedError, match=words):
        await scaler.current("plan", now=NOW)
    effect = await scaler.apply(action(), now=NOW)

    assert effect.outcome is EffectOutcome.REFUSED
    assert words in effect.detail
    assert world.puts() == []


async def test_a_change_whose_answer_was_lost_is_found_by_reading_back(world):
    plan, scaler = world.plan()
    world.fault("put_plan", "drop_ack", count=2)  # the HTTP client sends a PUT again on a broken connection

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 4)
    assert "read back after" in effect.detail
    assert world.puts() == [4, 4]
    assert plan.capacity == 4


async def test_a_change_sent_twice_by_the_http_client_is_one_change(world):
    plan, scaler = world.plan()
    world.fault("put_plan", "drop_ack")

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached, world.puts()) == (EffectOutcome.APPLIED, 4, [4, 4])
    assert [capacity for _, capacity in plan.history] == [2, 4]


async def test_a_change_that_is_in_its_own_way_when_sent_twice_is_called_applied(world):
    """The first PUT's answer is lost, the second is refused because of the first."""
    _, scaler = world.plan(operation_seconds=0.2)
    world.pace = 0.3
    world.fault("put_plan", "drop_ack")

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached, world.puts()) == (EffectOutcome.APPLIED, 4, [4, 4])


async def test_a_long_change_whose_answer_was_lost_is_waited_for(world):
    plan, scaler = world.plan(operation_seconds=0.2, poll_after=0)
    world.pace = 0.05
    world.fault("put_plan", "drop_connection")
    world.fault("put_plan", "drop_ack")

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 4)
    assert plan.capacity == 4


async def test_a_change_that_never_arrived_is_left_to_a_later_delivery(world):
    plan, scaler = world.plan()
    world.fault("put_plan", "drop_connection", count=2)

    with pytest.raises(ScalerError, match="nothing was changed"):
        await scaler.apply(action(), now=NOW)

    assert plan.capacity == 2


async def test_a_server_error_is_left_to_a_later_delivery(world):
    _, scaler = world.plan()
    world.fault("put_plan", "error", status=503, retry_after=9)

    with pytest.raises(ScalerError, match="nothing was changed: 503") as raised:
        await scaler.apply(action(), now=NOW)

    assert raised.value.retry_after == 9


async def test_an_outcome_that_cannot_be_read_back_is_called_unknown(world):
    _, scaler = world.plan()
    await scaler.current("plan", now=NOW)
    world.fault("put_plan", "drop_ack", count=2)
    world.server.faults.add(AfterThePut(world=world))

    with pytest.raises(ScalerError, match="outcome is unknown") as raised:
        await scaler.apply(action(), now=NOW)

    assert raised.value.unknown


async def test_a_change_that_outlives_the_deadline_is_the_platforms_and_its_effect_is_for_the_checks(world):
    plan, _ = world.plan(poll_after=0)
    scaler = world.scaler(plan.id, deadline_seconds=1)
    world.fault("put_plan", "stuck_operation")

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.ACCEPTED, 2)
    assert "still in progress after 1 s" in effect.detail
    assert world.puts() == [4]


async def test_a_change_the_platform_gave_up_is_reported_as_failed(world):
    plan, scaler = world.plan(operation_seconds=0.1, poll_after=0)
    world.fault("put_plan", "failed_operation")

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.FAILED, 2)
    assert "The operation to change" in effect.detail
    assert plan.capacity == 2


async def test_an_operation_that_may_not_be_polled_is_followed_on_the_plan_itself(world):
    """A role on the plan alone may not cover the address of its operations."""
    plan, scaler = world.plan(operation_seconds=0.2, poll_after=0)
    world.pace = 0.05
    world.fault("get_operation", "error", status=403, condition="AuthorizationFailed", count=None)

    effect = await scaler.apply(action(), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 4)
    assert plan.capacity == 4


async def test_a_zone_redundant_plan_keeps_its_minimum(world):
    _, scaler = world.plan(zone_redundant=True, capacity=4)

    capacity = await scaler.current("plan", now=NOW)
    effect = await scaler.apply(action(start=4, to=1), now=NOW)

    assert capacity.floor == 2
    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 2)
    assert world.puts() == [2]


async def test_a_pending_operation_shows_in_the_capacity(world):
    plan, scaler = world.plan(operation_seconds=30.0)
    plan.request_capacity(5)

    assert (await scaler.current("plan", now=NOW)).pending


async def test_autoscale_settings_are_read_once_in_many_ticks(world):
    _, scaler = world.plan()

    for minute in range(5):
        await scaler.current("plan", now=NOW + 60 * minute)

    paths = [entry.path.rsplit("/", 1)[-1] for entry in world.server.ledger]
    assert (paths.count("plan"), paths.count("autoscalesettings")) == (5, 1)


async def test_a_disabled_autoscale_setting_holds_nothing(world):
    plan, scaler = world.plan()
    world.server.add_autoscale_setting(plan.id, "old", enabled=False)

    assert (await scaler.current("plan", now=NOW)).held_by is None
    assert (await scaler.apply(action(), now=NOW)).outcome is EffectOutcome.APPLIED


async def test_an_autoscale_setting_in_another_resource_group_holds_the_plan(world):
    plan, scaler = world.plan()
    world.server.add_autoscale_setting(plan.id, "platform team", resource_group="monitoring")

    assert (await scaler.current("plan", now=NOW)).held_by == "platform team"
    assert (await scaler.apply(action(), now=NOW)).outcome is EffectOutcome.EXTERNAL_CHANGE


async def test_who_may_not_look_through_the_subscription_sees_the_settings_of_the_plans_own_group(
    world, caplog
):
    plan, scaler = world.plan()
    world.server.add_autoscale_setting(plan.id, "portal")
    world.fault("list_autoscale", "error", status=403, condition="AuthorizationFailed", count=1)

    with caplog.at_level(logging.WARNING, logger="scaling"):
        assert (await scaler.current("plan", now=NOW)).held_by == "portal"
    assert caplog.records == []


async def test_a_setting_enabled_a_moment_ago_stops_an_action(world):
    plan, scaler = world.plan()
    await scaler.current("plan", now=NOW)
    world.server.add_autoscale_setting(plan.id, "portal")

    effect = await scaler.apply(action(), now=NOW + 1)

    assert (effect.outcome, world.puts()) == (EffectOutcome.EXTERNAL_CHANGE, [])


async def test_autoscale_settings_that_may_not_be_read_are_noted_once_and_not_fatal(world, caplog):
    _, scaler = world.plan()
    world.fault("list_autoscale", "error", status=403, condition="AuthorizationFailed", count=None)

    with caplog.at_level(logging.WARNING, logger="scaling"):
        capacity = await scaler.current("plan", now=NOW)
        effect = await scaler.apply(action(), now=NOW)

    assert (capacity.held_by, effect.outcome) == (None, EffectOutcome.APPLIED)
    notes = [record.message for record in caplog.records]
    assert len(notes) == 1
    assert "Monitoring Reader" in notes[0]


async def test_everything_else_of_the_plan_survives_the_change(world):
    plan, scaler = world.plan(tags={"team": "orders"}, number_of_sites=3)

    await scaler.apply(action(), now=NOW)

    assert (plan.tags, plan.sku.name, plan.location) == ({"team": "orders"}, "S1", "westeurope")


async def test_a_user_assigned_identity_is_asked_for_by_its_client_id(world):
    plan, _ = world.plan()
    client_id = "aaaaaaaa-0000-0000-0000-000000000001"
    world.server.identity.user_assigned.add(client_id)
    scaler = world.scaler(plan.id, settings=world.settings(AzureResourceManager__clientId=client_id))

    await scaler.apply(action(), now=NOW)

    assert {entry.principal for entry in world.server.ledger} == {client_id}


async def test_a_wrong_identity_is_an_error_that_says_so(world):
    plan, _ = world.plan()
    scaler = world.scaler(plan.id, settings=world.settings(AzureResourceManager__clientId="nobody"))

    with pytest.raises(ScalerError, match="no token for Resource Manager"):
        await scaler.current("plan", now=NOW)


async def test_the_calls_limit_of_the_subscription_is_respected(tmp_path_factory, monkeypatch):
    async with resource_manager(tmp_path_factory, monkeypatch, reads=BucketSize(2, 0.01)) as server:
        world = World(server)
        _, scaler = world.plan()
        with pytest.raises(ScalerError, match=r"429|asked to wait") as raised:
            for _ in range(3):
                await scaler.current("plan", now=NOW)
        await world.aclose()

    assert raised.value.retry_after >= 1
