"""The plan's state machine, on a clock that stands still until it is moved."""

import math

import pytest

from devstack.resource_manager.common.documents import plan_document
from devstack.resource_manager.common.plans import (
    NEVER,
    Ending,
    OperationStyle,
    Plan,
    Refusal,
    RefusalCode,
    Status,
)
from devstack.resource_manager.common.skus import SKUS, find_sku, selectable
from devstack.resource_manager.throttling import BucketSize, Throttle, TokenBucket


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make_plan(clock, sku="P1v3", capacity=1, **settings) -> Plan:
    return Plan("sub", "rg", "plan", find_sku(sku), clock, initial_capacity=capacity, **settings)


def refusal_of(plan: Plan, wanted: int) -> Refusal:
    with pytest.raises(Refusal) as caught:
        plan.request_capacity(wanted)
    return caught.value


def test_a_new_plan_has_its_instances_ready_at_once(clock):
    plan = make_plan(clock, capacity=3, start_delay=60)

    assert (plan.capacity, plan.ready_count(), plan.history) == (3, 3, [(1000.0, 3)])


def test_instances_of_a_scale_out_are_ready_after_the_start_delay(clock):
    plan = make_plan(clock, capacity=1, start_delay=60)
    plan.request_capacity(3)

    assert [(i.asked_at, i.ready_at) for i in plan.instances()] == [
        (1000, 1000),
        (1000, 1060),
        (1000, 1060),
    ]
    assert [plan.ready_count(at) for at in (1059.9, 1060.0)] == [1, 3]


def test_a_change_takes_effect_when_its_operation_ends_not_when_somebody_looks(clock):
    plan = make_plan(clock, operation_seconds=10, start_delay=5)
    plan.request_capacity(2)
    before = (plan.capacity, plan.provisioning_state)
    clock.now = 5000.0

    assert before == (1, Status.IN_PROGRESS)
    assert plan.history == [(1000.0, 1), (1010.0, 2)]
    assert (plan.instances()[1].asked_at, plan.instances()[1].ready_at) == (1000.0, 1015.0)
    assert plan.provisioning_state is Status.SUCCEEDED


def test_scale_in_removes_a_starting_instance_before_an_older_ready_one(clock):
    plan = make_plan(clock, capacity=2, start_delay=60)
    plan.request_capacity(4)
    clock.now += 30
    plan.request_capacity(2)

    assert [i.id for i in plan.instances()] == ["plan-1", "plan-2"]
    assert plan.ready_count() == 2


def test_scale_in_removes_starting_instances_even_when_a_ready_one_is_newer(clock):
    plan = make_plan(clock, capacity=1, start_delay=600)
    plan.request_capacity(2)
    plan.start_delay = 0
    plan.request_capacity(3)
    plan.request_capacity(2)

    assert [i.id for i in plan.instances()] == ["plan-1", "plan-3"]


def test_scale_in_removes_the_newest_of_the_ready_instances(clock):
    plan = make_plan(clock, capacity=4)
    plan.request_capacity(2)

    assert [i.id for i in plan.instances()] == ["plan-1", "plan-2"]


def test_a_second_change_is_refused_while_an_operation_runs_and_accepted_after_it(clock):
    plan = make_plan(clock, operation_seconds=10)
    plan.request_capacity(2)
    refusal = refusal_of(plan, 3)
    clock.now += 10
    plan.request_capacity(3)
    clock.now += 10

    assert refusal.code is RefusalCode.OPERATION_IN_PROGRESS
    assert "another operation is in progress" in refusal.message
    assert plan.capacity == 3


def test_the_maximum_of_the_sku_is_accepted_and_one_more_is_refused(clock):
    plan = make_plan(clock, sku="S1")
    refusal = refusal_of(plan, 11)
    plan.request_capacity(10)

    assert refusal.code is RefusalCode.TOO_MANY_WORKERS
    assert plan.capacity == 10


@pytest.mark.parametrize("wanted", [0, -1])
def test_fewer_than_one_instance_is_refused(clock, wanted):
    assert refusal_of(make_plan(clock), wanted).code is RefusalCode.BAD_CAPACITY


def test_a_request_without_a_capacity_keeps_it(clock):
    plan = make_plan(clock, capacity=4)
    plan.request_capacity(None)

    assert plan.capacity == 4


def test_more_instances_than_the_stamp_has_are_refused_with_the_number_that_can_be_added(clock):
    plan = make_plan(clock, capacity=2, available_workers=3)
    refusal = refusal_of(plan, 6)
    plan.request_capacity(5)

    assert refusal.code is RefusalCode.NOT_ENOUGH_SERVERS
    assert "you can add extra 3 instances" in refusal.message
    assert (plan.capacity, plan.available_workers) == (5, 0)


def test_instances_given_back_can_be_taken_again(clock):
    plan = make_plan(clock, capacity=5, available_workers=0)
    plan.request_capacity(2)
    plan.request_capacity(5)

    assert plan.capacity == 5


def test_a_plan_that_scales_asynchronously_takes_what_there_is_and_the_rest_when_offered(clock):
    plan = make_plan(clock, capacity=2, available_workers=1, async_scaling_enabled=True)
    plan.request_capacity(6)
    first = (plan.capacity, plan.target_worker_count, plan.provisioning_state)
    plan.offer_workers(2)
    second = (plan.capacity, plan.target_worker_count, plan.provisioning_state)
    plan.offer_workers(9)

    assert first == (3, 6, Status.IN_PROGRESS)
    assert second == (5, 6, Status.IN_PROGRESS)
    assert (plan.capacity, plan.target_worker_count, plan.provisioning_state) == (6, 0, Status.SUCCEEDED)


@pytest.mark.parametrize(("sku", "enabled"), [("EP1", False), ("P1v3", True)])
def test_a_plan_with_elastic_scale_accepts_a_capacity_and_ignores_it(clock, sku, enabled):
    plan = make_plan(clock, sku=sku, capacity=1, elastic_scale_enabled=enabled)
    operation = plan.request_capacity(5)

    assert operation.status(clock.now) is Status.SUCCEEDED
    assert (plan.capacity, plan.elastic_scale_enabled, plan.history) == (1, True, [(1000.0, 1)])


def test_a_zone_redundant_plan_does_not_go_below_two_and_does_not_say_so(clock):
    plan = make_plan(clock, capacity=4, zone_redundant=True)
    plan.request_capacity(1)

    assert plan.capacity == 2


def test_the_limit_of_changes_counts_the_last_hour_and_not_the_requests_that_change_nothing(clock):
    plan = make_plan(clock, changes_per_hour=2)
    plan.request_capacity(2)
    clock.now += 600
    plan.request_capacity(3)
    plan.request_capacity(3)
    refusal = refusal_of(plan, 4)
    clock.now += 3000
    plan.request_capacity(4)

    assert refusal.code is RefusalCode.TOO_MANY_CHANGES
    assert "(2 changes and limit is 2)" in refusal.message
    assert plan.capacity == 4


@pytest.mark.parametrize("seconds", [0.5 + reading for reading in range(8)])
def test_a_plan_never_shows_succeeded_beside_the_capacity_it_is_about_to_leave(clock, seconds):
    plan = make_plan(clock, operation_seconds=seconds)
    plan.request_capacity(5)

    def moving_clock() -> float:
        clock.now += 1
        return clock.now

    plan.clock = moving_clock
    document = plan_document(plan)

    assert (document["properties"]["provisioningState"], document["sku"]["capacity"]) != ("Succeeded", 1)
    assert document["properties"]["numberOfWorkers"] == document["sku"]["capacity"]


def test_a_failed_operation_leaves_the_capacity_and_says_failed(clock):
    plan = make_plan(clock, operation_seconds=10)
    operation = plan.request_capacity(5, ending=Ending.FAILED)
    clock.now += 10

    assert operation.status(clock.now) is Status.FAILED
    assert (plan.capacity, plan.provisioning_state) == (1, Status.FAILED)


def test_an_ignored_operation_reports_success_and_changes_nothing(clock):
    plan = make_plan(clock)
    operation = plan.request_capacity(5, ending=Ending.IGNORED)

    assert operation.status(clock.now) is Status.SUCCEEDED
    assert (plan.capacity, plan.provisioning_state) == (1, Status.SUCCEEDED)


def test_an_operation_that_never_ends_blocks_every_later_one(clock):
    plan = make_plan(clock)
    operation = plan.request_capacity(5, seconds=NEVER)
    clock.now += 1e9

    assert operation.ends_at == math.inf
    assert plan.provisioning_state is Status.IN_PROGRESS
    assert refusal_of(plan, 2).code is RefusalCode.OPERATION_IN_PROGRESS


def test_a_external_change_changes_the_plan_at_once_within_the_sku(clock):
    plan = make_plan(clock, capacity=2, start_delay=60, operation_seconds=10)
    plan.set_capacity(4)

    assert (plan.capacity, plan.ready_count(), plan.history[-1]) == (4, 2, (1000.0, 4))
    with pytest.raises(ValueError, match="capacity of plan 'plan' is 31, accepted for SKU P1v3: 1 to 30"):
        plan.set_capacity(31)


def test_a_plan_cannot_begin_with_a_capacity_its_sku_does_not_have(clock):
    with pytest.raises(ValueError, match="accepted for SKU B1: 1 to 3"):
        make_plan(clock, sku="B1", capacity=4)


def test_the_published_maxima_are_those_of_the_tiers():
    maxima = {sku.tier: sku.maximum for sku in SKUS.values()}

    assert maxima == {
        "Free": 1,
        "Shared": 1,
        "Basic": 3,
        "Standard": 10,
        "Premium": 20,
        "PremiumV2": 30,
        "PremiumV3": 30,
        "PremiumMV3": 30,
        "IsolatedV2": 100,
        "ElasticPremium": 20,
        "FlexConsumption": 1000,
    }


def test_a_dedicated_plan_can_select_dedicated_sizes_only():
    tiers = {sku.tier for sku in selectable(find_sku("P1v3"))}

    assert {"Basic", "PremiumV3"} <= tiers
    assert tiers.isdisjoint({"IsolatedV2", "ElasticPremium"})
    assert {sku.tier for sku in selectable(find_sku("EP2"))} == {"ElasticPremium"}


def test_an_unknown_sku_is_named_together_with_the_accepted_ones():
    with pytest.raises(ValueError, match=r"unknown SKU 'P9', accepted: F1, .*EP3"):
        find_sku("P9")


def test_a_bucket_gives_its_size_at_once_and_then_says_how_long_to_wait():
    bucket = TokenBucket(BucketSize(size=2, refill_per_second=0.5))

    assert [bucket.take(10.0) for _ in range(3)] == [0, 0, 2.0]
    assert bucket.take(11.0) == 1.0
    assert bucket.take(12.0) == 0


def test_a_bucket_never_holds_more_than_its_size():
    bucket = TokenBucket(BucketSize(size=2, refill_per_second=10))
    bucket.take(0.0)

    assert [bucket.take(1000.0) > 0 for _ in range(3)] == [False, False, True]


def test_buckets_are_kept_apart_by_principal_subscription_and_kind_of_call():
    throttle = Throttle(reads=BucketSize(1, 1), writes=None)
    first = throttle.bucket("SUB", "me", is_read=True)

    assert throttle.bucket("sub", "me", is_read=True) is first
    assert throttle.bucket("sub", "you", is_read=True) is not first
    assert throttle.bucket("other", "me", is_read=True) is not first
    assert throttle.bucket("sub", "me", is_read=False) is None


def test_the_style_of_an_operation_can_be_set_by_its_name():
    assert OperationStyle("body") is OperationStyle.BODY
