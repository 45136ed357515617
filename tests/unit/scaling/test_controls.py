"""Operators' orders: what they change, how long they last, and what is refused by name."""

import pytest

from scaling.decision.orders import MAX_OVERRIDE, ORDERS, active_pause
from scaling.model import NO_CONTROLS, Controls, Direction, Override, Pause
from tests.support.scaling.runner import NOW, policy
from tidemark.foundation.errors import OrderError


def ordered(name: str, order: dict, controls: Controls = NO_CONTROLS, *, now: float = NOW):
    return ORDERS[name](controls, order, policy(), by="kim", now=now)


def test_orders_are_sorted_by_name() -> None:
    assert list(ORDERS) == sorted(ORDERS)


def test_a_pause_holds_both_directions_until_it_is_resumed() -> None:
    controls, text = ordered("pause", {"direction": None, "for": None})

    assert controls.pauses == (Pause("kim", NOW),)
    assert text == "scaling paused until resumed"
    assert all(active_pause(controls, direction, NOW + 1e6) for direction in Direction)


def test_a_pause_of_one_direction_ends_by_itself() -> None:
    controls, text = ordered("pause", {"direction": "in", "for": "10m"})

    assert text == "scaling in paused for 10 min"
    assert active_pause(controls, Direction.IN, NOW + 599)
    assert not active_pause(controls, Direction.IN, NOW + 600)
    assert not active_pause(controls, Direction.OUT, NOW)


def test_a_pause_replaces_one_of_its_direction_keeps_the_other_and_forgets_what_ended() -> None:
    before = Controls(
        pauses=(
            Pause("al", NOW, Direction.IN),
            Pause("al", NOW, Direction.OUT, NOW + 60),
            Pause("al", NOW - 60, None, NOW),
        )
    )

    controls, _ = ordered("pause", {"direction": "in", "for": 30}, before)

    assert controls.pauses == (
        Pause("al", NOW, Direction.OUT, NOW + 60),
        Pause("kim", NOW, Direction.IN, NOW + 30),
    )


def test_resume_lifts_pauses_and_override_and_ends_a_external_change_hold_but_leaves_dry_run() -> None:
    before = Controls((Pause("al", NOW),), Override(3, "al", NOW, NOW + 60), dry_run=True)

    controls, _ = ordered("resume", {}, before)

    assert controls == Controls(dry_run=True, external_cleared_at=NOW)


def test_an_override_lasts_an_hour_unless_told() -> None:
    assert ordered("override", {"capacity": 4})[0].override == Override(4, "kim", NOW, NOW + 3600)
    assert ordered("override", {"capacity": 4, "for": "5m"})[0].override.until == NOW + 300


@pytest.mark.parametrize("order", [{}, {"direction": None}, {"for": None}, {"by": "kim"}])
def test_a_pause_says_its_direction_and_its_time(order) -> None:
    with pytest.raises(OrderError, match="is missing; accepted are"):
        ordered("pause", order)


@pytest.mark.parametrize(
    ("on", "text"), [(True, "dry-run on"), (False, "dry-run off"), (None, "as configured")]
)
def test_dry_run_is_switched_and_given_back_to_the_configuration(on, text) -> None:
    controls, told = ordered("dry-run", {"on": on}, Controls(dry_run=True))

    assert controls.dry_run is on
    assert text in told


@pytest.mark.parametrize(
    ("name", "order", "told"),
    [
        (
            "pause",
            {"direction": "up", "for": None},
            "direction: found 'up'; accepted are 'out', 'in' and null",
        ),
        ("pause", {"direction": ["out"], "for": None}, "direction: found"),
        ("pause", {"direction": {}, "for": None}, "direction: found"),
        ("pause", {"for": "soon", "direction": None}, "for: found 'soon'"),
        ("pause", {"for": -5, "direction": None}, "for: found -5"),
        ("pause", {"for": 0, "direction": None}, "for: found 0; a duration above 0"),
        ("pause", {"for": [1], "direction": None}, "for: found"),
        ("pause", {"for": float("nan"), "direction": None}, "for: found nan"),
        ("pause", {"until": 5}, "until: is not accepted here; accepted are direction, for, by"),
        ("resume", {"direction": "in"}, "direction: is not accepted here"),
        ("override", {}, "capacity: found None; accepted are whole numbers 1 to 10"),
        ("override", {"capacity": 11}, "capacity: found 11"),
        ("override", {"capacity": 0}, "capacity: found 0"),
        ("override", {"capacity": True}, "capacity: found True"),
        ("override", {"capacity": 3.0}, "capacity: found 3.0"),
        ("override", {"capacity": "3"}, "capacity: found '3'"),
        ("override", {"capacity": 3, "for": MAX_OVERRIDE + 1}, "for: found"),
        ("dry-run", {"on": "yes"}, "on: found 'yes'; accepted are true, false and null"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_by_name(name: str, order: dict, told: str) -> None:
    with pytest.raises(OrderError) as refused:
        ordered(name, order)

    assert told in str(refused.value)
