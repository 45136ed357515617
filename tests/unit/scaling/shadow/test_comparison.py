"""What the comparison says: whether to switch, on what grounds, and what it does not know."""

from io import StringIO

import pytest
from msgspec import structs
from rich.console import Console

from scaling.model import NO_CONTROLS, Controls, Promotion, TargetState
from scaling.rules.service_level import estimates
from scaling.rules.service_level import memory as service_level
from scaling.shadow.comparison import promotion_warning, shadow_view
from scaling.shadow.memory import Shadow, Tally, encode
from scaling.shadow.report import show, those_with_shadows
from scaling.target_facts import TargetFacts
from tests.support.scaling.runner import NOW, THRESHOLD, changed
from tests.support.scaling.service_level import ONE_PER_CENT, learned
from tests.support.scaling.shadow import QUEUE, SERVICE_LEVEL, fixed, shadowed

DAY = 86_400.0
MADE = shadowed(SERVICE_LEVEL)


def seen(*, days=2.0, live=10.0, simulated=6.0, live_late=0.0, simulated_late=0.004, policy=MADE, **changes):
    """The view after so many days with so many instances on average, and such shares of late messages."""
    seconds = days * DAY
    fields = {
        "since": NOW,
        "seconds": seconds,
        "live": live * seconds,
        "simulated": simulated * seconds,
        "modelled": seconds,
        "arrived": 1e6,
        "live_late": live_late * 1e6,
        "simulated_late": simulated_late * 1e6,
        "decisions": 100,
        "agreed": 40,
    }
    shadow = Shadow(at=NOW, capacity=6, tally=Tally(**(fields | changes)))
    return shadow_view(policy, TargetState(shadow=encode(shadow)), NO_CONTROLS)


@pytest.mark.parametrize(
    ("figures", "switch", "advice"),
    [
        ({"days": 0.5}, False, "too little seen: 12 h of at least 1 d"),
        ({}, True, "switch: saves 96 instance-hours a day at 0.4 % late of 1 % allowed (now 0 %)"),
        (
            {"simulated": 12, "live_late": 0.2},
            True,
            "switch: 0.4 % late of 1 % allowed (now 20 %); it costs 48 instance-hours a day more",
        ),
        ({"simulated_late": 0.03}, False, "stay: 3 % late of 1 % allowed (now 0 %); the other saves 96"),
        (
            {"simulated_late": 0.03, "live_late": 0.05},
            True,
            "switch: saves 96 instance-hours a day at no more late messages: 3 % late of 1 % allowed (now 5 %)",
        ),
        ({"simulated": 12}, False, "stay: the other costs 48 instance-hours a day more; 0.4 % late of 1 %"),
        ({"simulated_late": 0.01}, True, "switch: saves 96 instance-hours a day at 1 % late of 1 % allowed"),
        ({"failed": 1}, True, "switch: saves 96 instance-hours a day"),
        ({"failed": 2}, False, "stay: the other rules failed in 2 % of their decisions"),
        ({"simulated": 9.99}, False, "stay: no difference worth a switch; 0.4 % late"),
        (
            {"modelled": DAY},
            False,
            "stay: the other saves 96 instance-hours a day, but not known is how many",
        ),
        ({"arrived": 0.0}, False, "stay: the other saves 96 instance-hours a day, but not known is how many"),
    ],
)
def test_the_advice_follows_from_the_bill_and_the_late_messages(figures, switch, advice):
    view = seen(**figures)

    assert view.advice.startswith(advice)
    assert view.switch is switch


def test_messages_that_wait_too_long_already_are_late_before_they_are_begun():
    view = seen(simulated_late=0.0, simulated_overdue=50_000.0)

    assert view.simulated_late == 0.05
    assert view.switch is False


def test_figures_are_hours_and_shares():
    view = seen(days=2.0)

    assert (view.live_hours, view.simulated_hours, view.agreed) == (480.0, 288.0, 0.4)
    assert (view.wait, view.allowed, view.simulated) == (60.0, 0.01, "shadow")


def test_without_a_queue_no_lateness_is_told_and_it_is_said_how_to_name_one():
    view = seen(policy=shadowed(THRESHOLD, queue=None))

    assert (view.live_late, view.simulated_late, view.switch) == (None, None, False)
    assert view.notes == (
        "not known is how many messages would be late: name the metric of the backlog in [targets.plan.shadow]",
    )


def test_before_anything_is_seen_there_is_a_view_all_the_same():
    view = shadow_view(MADE, TargetState(), NO_CONTROLS)

    assert view.advice == "too little seen: 0 s of at least 1 d"
    assert view.notes == ("what an instance serves is not known yet",)
    assert shadow_view(changed(MADE, shadow=None), TargetState(), NO_CONTROLS) is None


def test_what_the_figures_rest_on_is_told():
    holding = structs.replace(ONE_PER_CENT, concurrency=16.0)
    busy = learned([300.0] * 40, backlog=2000.0, objective=holding)
    shadow = encode(Shadow(known=service_level.encode(busy)))

    view = shadow_view(MADE, TargetState(shadow=shadow), NO_CONTROLS)
    given = shadow_view(
        shadowed(SERVICE_LEVEL, queue=structs.replace(QUEUE, service_rate=4.5)),
        TargetState(shadow=shadow),
        NO_CONTROLS,
    )

    rate = estimates.outlook(busy, holding).service_rate
    assert view.notes == (f"an instance serves {rate:.3g}/s (learned) from 1 min after it was asked for",)
    assert given.notes == ("an instance serves 4.5/s (given) from 1 min after it was asked for",)


def test_a_promotion_is_told_with_what_should_follow():
    controls = Controls(promoted=Promotion("kim", NOW, MADE.shadow_id))

    view = shadow_view(MADE, TargetState(), controls)

    assert (view.simulated, view.promoted_by, view.promoted_at) == ("configured", "kim", NOW)
    assert view.notes[0].startswith(
        "promoted by kim; tidemark.toml should follow: put what [targets.plan.shadow]"
    )
    assert promotion_warning(MADE, controls).startswith("targets.plan: its shadow decides, promoted by kim")


def test_a_promotion_of_other_rules_counts_no_more_and_says_so():
    controls = Controls(promoted=Promotion("kim", NOW, "other"))

    view = shadow_view(MADE, TargetState(), controls)

    assert view.simulated == "shadow"
    assert "of other rules than this shadow has now" in view.notes[0]
    assert "has other rules now" in promotion_warning(MADE, controls)
    assert promotion_warning(changed(MADE, shadow=None), controls) is None
    assert promotion_warning(MADE, NO_CONTROLS) is None


def test_the_terminal_shows_both_sides_and_the_advice():
    console = Console(width=160, record=True, file=StringIO())
    show(console, {"plan": seen()})

    text = console.export_text()
    assert "configured" in text
    assert "shadow (simulated)" in text
    for figure in ("480", "288", "0.4 %", "40 %", "2 d seen"):
        assert figure in text, figure
    assert "plan: switch: saves 96 instance-hours a day" in text


def test_targets_are_named_as_they_are_configured():
    policies = {"plan": MADE, "other": shadowed(fixed(3))}
    policies["bare"] = changed(policies["other"], shadow=None)

    assert set(those_with_shadows(policies, None)) == {"plan", "other"}
    assert set(those_with_shadows(policies, "plan")) == {"plan"}
    assert those_with_shadows(policies, "bare") == {}
    with pytest.raises(ValueError, match="found 'plam'; did you mean 'plan'"):
        those_with_shadows(policies, "plam")


def test_figures_of_another_shadow_are_not_told_as_those_of_this_one():
    """After a new deployment, until its first report: nothing is known of the rules it has."""
    of_others = Shadow(
        rules=f"{MADE.shadow_id}-{MADE.rules_id}", capacity=6, tally=Tally(seconds=9 * DAY, decisions=9)
    )
    state = TargetState(shadow=encode(of_others))
    now = shadowed(fixed(3))

    assert shadow_view(MADE, state, NO_CONTROLS).seconds == 9 * DAY
    view = shadow_view(now, state, NO_CONTROLS)
    assert (view.seconds, view.current, view.agreed) == (0.0, None, None)
    assert view.rules == MADE.shadow_id != now.shadow_id


def test_request_units_are_not_called_instances():
    view = seen(policy=changed(MADE, scaler="cosmos_throughput", facts=TargetFacts("RU/s")))

    assert view.unit == "RU/s-hours"
    assert "saves 96 RU/s-hours a day" in view.advice
    shown = StringIO()
    show(Console(file=shown, width=300), {"flights": view})
    assert "instance-hours" not in shown.getvalue()


def test_before_anything_was_seen_no_hours_are_told():
    shown = StringIO()
    show(Console(file=shown, width=300), {"plan": shadow_view(MADE, TargetState(), NO_CONTROLS)})

    row = next(line for line in shown.getvalue().splitlines() if "shadow (simulated)" in line)
    assert [cell.strip() for cell in row.split("│")][1:-1] == [
        "",
        "shadow (simulated)",
        "?",
        "?",
        "?",
        "?",
        "?",
        "",
    ]


def test_nothing_is_told_of_a_shadow_whose_class_is_gone():
    tried = structs.replace(MADE.spec.shadow, rules=(structs.replace(fixed(6), type="nowhere:Rule"),))

    assert shadow_view(changed(MADE, shadow=tried), TargetState(), NO_CONTROLS) is None
