"""States that Azure tells as text: at rest, changing, or of which nobody knows, which holds a target for a bounded time."""

import pytest

from scaling.config.policy import Pace
from scaling.log_entry import LogKind
from scaling.model import Reason
from scaling.scalers.app_service.plan import plan_seen
from scaling.scalers.arm.states import may_be_on
from scaling.scalers.cosmos.planes import throughput_of
from scaling.scalers.resource.kinds import KINDS
from scaling.scalers.resource.resource import seen_of
from tests.support.scaling.runner import World, metric, policy
from tests.unit.scaling.scalers.test_app_service_plan import plan

STATES = {
    "Succeeded": (False, ""),
    "FAILED": (False, ""),
    "Canceled": (False, ""),
    None: (False, ""),
    "InProgress": (True, ""),
    "updating": (True, ""),
    "Quiescing": (False, "Quiescing"),
    "x" * 900: (False, "x" * 60),
    7: (False, "7"),
}
SWITCHES = {
    **dict.fromkeys(["true", "True", True], (True, "")),
    **dict.fromkeys(["false", False, None, ""], (False, "")),
    "soon": (False, "soon"),
}


@pytest.mark.parametrize(("told", "found"), STATES.items())
def test_a_state_is_rest_a_change_or_not_known(told, found):
    units = {"sku": {"name": "Standard", "capacity": 2}, "properties": {"provisioningState": told}}
    of_plan = plan_seen(plan(provisioningState=told), 2)
    seen = seen_of(KINDS["event_hubs_throughput_units"], units)

    assert (of_plan.pending, of_plan.unknown_state) == found
    assert (seen.pending, seen.unknown_state) == found


@pytest.mark.parametrize(("told", "found"), SWITCHES.items())
def test_whether_a_change_of_throughput_is_pending_may_not_be_known_either(told, found):
    seen = throughput_of({"throughput": 400, "offerReplacePending": told})

    assert (seen.pending, seen.unknown_state) == found
    assert may_be_on(told) is (found != (False, ""))


@pytest.mark.parametrize(
    ("told", "holder"), [(True, True), ("true", True), ("soon", True), ("false", False), (None, False)]
)
def test_what_may_move_a_number_holds_it_unless_it_is_off(told, holder):
    document = {"sku": {"name": "Standard", "capacity": 2}, "properties": {"isAutoInflateEnabled": told}}

    assert (seen_of(KINDS["event_hubs_throughput_units"], document).holder is not None) is holder


@pytest.mark.parametrize(("state", "moved"), [("Quiescing", [11]), ("", [1])])
async def test_a_state_that_nobody_knows_holds_for_as_long_as_an_action_may_take(state, moved):
    quick = {"backlog": metric(span=60.0, min_samples=1)}
    world = World(policy(metrics=quick, out=Pace(cooldown=7200.0)), capacity=2)
    await world.minute()
    world.backlog, world.platform.unknown_state = 900.0, state
    begun = world.clock.now
    for _ in range(15):
        await world.minute()
    rows = [entry.recommendation for entry in await world.entries(LogKind.DECISION)][1:]

    assert [round((each.at - begun) / 60) for each in rows if each.reason is Reason.SCALE_OUT] == moved
    assert world.platform.ledger == [3]
    if state:
        assert "the state 'Quiescing', which is not known here: it may be changing" in rows[0].note
        assert "taken for at rest" in rows[11].note
        assert (await world.state()).effects[-1].to_capacity == 3


async def test_a_state_that_is_known_as_a_change_holds_as_long_as_it_is_told():
    world = World(policy(metrics={"backlog": metric(span=60.0, min_samples=1)}), capacity=2)
    world.backlog, world.platform.pending = 900.0, True
    await world.pass_minutes(60)

    assert world.platform.ledger == []


async def test_an_effect_under_such_a_state_is_found_though_the_clock_was_put_back():
    world = World(policy(metrics={"backlog": metric(span=60.0, min_samples=1)}), capacity=2)
    world.platform.unknown_state = "Quiescing"
    await world.pass_minutes(3)
    assert (await world.state()).capacity.unknown_since is not None
    world.clock.now -= 240.0
    world.backlog = 900.0
    for _ in range(30):
        await world.minute()

    assert world.platform.ledger
