"""The HTTP views: what an operator is shown of state, windows, orders and log rows."""

import msgspec
import pytest

from scaling.config.policy import Pace, RuleSpec
from scaling.config.policy_file import Config
from scaling.flips.explained import decide_and_explain as decide
from scaling.log_entry import LogEntry, LogKind
from scaling.model import (
    Capacity,
    Controls,
    Direction,
    Effect,
    EffectOutcome,
    EffectRecord,
    Evidence,
    ExternalChange,
    MetricFailure,
    Override,
    Pause,
    Reason,
    ScaleAction,
    TargetState,
)
from scaling.ports import LogPage, PoisonMessage, Snapshot
from scaling.web.views import MAX_POINTS, LevelView, log_view, status_view, target_view
from scaling.window import Window
from tests.support.scaling.runner import metric
from tests.support.scaling.runner import policy as policy_of

NOW = 1_760_000_000.0
THRESHOLD = RuleSpec(
    type="threshold",
    name="backlog",
    options={"metric": "backlog", "scale_out_above": {"1": 500, "4": 1500}, "scale_in_below": 50},
)


def policy(*rules, **changes):
    fields = {"metrics": {"backlog": metric(span=600, min_samples=10)}, "rules": rules or (THRESHOLD,)}
    fields |= {"target": "plan-orders", "maximum": 8, "out": Pace(cooldown=300), "inward": Pace(cooldown=600)}
    return policy_of(**(fields | changes))


def window(values, *, interval=60, end=NOW - 10):
    times = [end - interval * (len(values) - 1 - index) for index in range(len(values))]
    return Window(times, [float(value) for value in values])


EMPTY_STATE = TargetState()


def snapshot(state=EMPTY_STATE, values=None, **fields):
    windows = {"backlog": values if isinstance(values, Window) else window(values)} if values else {}
    return Snapshot("plan-orders", state, windows, **fields)


def state(current=3, **fields):
    return TargetState(expected=current, capacity=Capacity(current, NOW - 10, ready=current), **fields)


def shown(at=EMPTY_STATE, values=None, *, of=None, now=NOW, **fields):
    """What is shown of a target in this state, with these samples."""
    return target_view(of or policy(), snapshot(at, values, **fields), now=now)


def shown_metric(values):
    [metric] = shown(state(), values).metrics
    return metric


def decided(values, current=3):
    windows, at = {"backlog": window(values)}, state(current)
    return decide(policy(), windows, at, now=NOW, decision_id="plan-orders@20251009T085320.000Z")


def test_a_target_before_its_first_report_shows_bounds_and_nulls():
    view = shown()

    assert (view.current, view.desired, view.reason, view.line, view.decided_at) == (None,) * 5
    assert (view.minimum, view.maximum) == (1, 8)
    [metric] = view.metrics
    assert (metric.latest, metric.average, metric.maximum, metric.age) == (None,) * 4
    assert (metric.count, metric.quality, metric.samples) == (0, Reason.INCOMPLETE_WINDOW, ())


def test_json_of_a_window_without_samples_has_no_nan():
    text = msgspec.json.encode(shown())

    assert b"NaN" not in text
    assert msgspec.json.decode(text)["metrics"][0]["average"] is None


def test_the_last_decision_is_told_in_words():
    last = decided([812] * 10)

    view = shown(state(last=last), [812] * 10)

    assert (view.current, view.desired, view.reason) == (3, 4, "scale_out")
    assert view.reason_text == "a rule asked for more capacity and nothing held it back"
    assert view.line.startswith("scaling plan-orders out 3 -> 4: average backlog 812 > 500")
    assert view.flips == ("hold (within target) if 50 <= average backlog <= 500",)
    assert view.decision_id == "plan-orders@20251009T085320.000Z"


def test_the_bounds_are_those_of_the_last_decision_where_a_schedule_moved_them():
    last = msgspec.structs.replace(decided([100] * 10), minimum=4, maximum=6)

    view = shown(state(last=last))

    assert (view.minimum, view.maximum) == (4, 6)


def test_limits_are_told_in_words():
    cooling = state(effects=(EffectRecord(NOW - 60, 2, 3),))
    last = decide(policy(), {"backlog": window([812] * 10)}, cooling, now=NOW)

    view = shown(state(last=last))

    assert view.limits == ("cooling down (240 s left): 4 wanted, 3 allowed",)


@pytest.mark.parametrize(
    ("values", "quality"),
    [
        (window([5] * 10), "ok"),
        (window([5] * 4), "incomplete_window"),
        (window([5] * 10, end=NOW - 400), "stale_metric"),
        (Window([NOW - 600, *window([5] * 8).times, NOW], [5.0] * 10), "gap"),
        (
            Window(failure=MetricFailure("backlog", NOW, "timed out", Reason.ENTITY_DISABLED)),
            "entity_disabled",
        ),
    ],
)
def test_quality_says_whether_rules_may_act_on_a_metric(values, quality):
    assert shown_metric(values).quality == quality


def test_a_failed_read_shows_its_message_beside_the_last_numbers():
    told = "401 from the namespace"
    metric = shown_metric(
        msgspec.structs.replace(window([7] * 10), failure=MetricFailure("backlog", NOW, told))
    )

    assert (metric.latest, metric.failure, metric.quality) == (7.0, told, "collect_failed")


def test_numbers_of_a_metric():
    metric = shown_metric([10, 30, 20])

    assert (metric.latest, metric.average, metric.maximum) == (20.0, 20.0, 30.0)
    assert (metric.count, metric.min_samples, metric.covered, metric.span, metric.age) == (
        3,
        10,
        180.0,
        600,
        10.0,
    )
    assert metric.samples == ((NOW - 130, 10.0), (NOW - 70, 30.0), (NOW - 10, 20.0))


def test_a_long_window_keeps_its_peaks_and_the_newest_sample():
    values = [1.0] * 5000
    values[1234] = 999.0
    values[-1] = 3.0

    metric = shown_metric(window(values, interval=1))

    assert len(metric.samples) <= MAX_POINTS
    assert max(value for _, value in metric.samples) == 999.0
    assert metric.samples[-1] == (NOW - 10, 3.0)
    assert list(metric.samples) == sorted(metric.samples)


def test_levels_follow_the_instance_count():
    view = shown(state(5))

    assert view.levels == (
        LevelView("backlog", "average", "out", 1500.0, ((0, 500.0), (4, 1500.0))),
        LevelView("backlog", "maximum", "in", 50.0),
    )


def test_levels_of_an_unread_capacity_are_those_of_the_minimum():
    assert shown(of=policy(minimum=4)).levels[0].value == 1500.0


def test_levels_of_every_kind_of_rule():
    several = RuleSpec(
        type="threshold",
        name="sum",
        options={"metrics": ["a", "b"], "combine": "sum", "scale_out_above": "100 * instances"},
    )
    each = RuleSpec(type="threshold", name="each", options={"metrics": ["a", "b"], "scale_in_below": 9})
    unit = RuleSpec(type="target_per_unit", name="unit", options={"metric": "a", "target": 100})
    guard = RuleSpec(type="guard", name="guard", options={"metric": "ru", "block_out_above": 80})
    nested = RuleSpec(type="composite", name="c", options={"rules": [{"type": "guard", **guard.options}]})
    expression = RuleSpec(type="composite", name="e", options={"desired": "ceil(a / 100)"})
    schedule = RuleSpec(
        type="schedule",
        name="s",
        options={"periods": [{"days": "mon-fri", "from": "08:00", "to": "18:00", "floor": 2}]},
    )
    expected = [
        (several, [("sum(a, b)", "average", "out", 300.0)]),
        (each, [("a", "maximum", "in", 9.0), ("b", "maximum", "in", 9.0)]),
        (unit, [("a", "latest", "out", pytest.approx(330.0)), ("a", "latest", "in", 200.0)]),
        (guard, [("ru", "average", "guard", 80.0)]),
        (nested, [("ru", "average", "guard", 80.0)]),
        (expression, []),
        (schedule, []),
    ]
    for rule, lines in expected:
        levels = shown(state(3), of=policy(rule)).levels

        assert [(v.metric, v.statistic, v.direction, v.value) for v in levels] == lines, rule.name


def test_the_drawn_level_of_a_proportional_rule_is_where_its_decision_changes():
    unit = RuleSpec(type="target_per_unit", name="unit", options={"metric": "backlog", "target": 100})
    proportional = policy(unit)
    out, inward = (level.value for level in shown(state(3), of=proportional).levels)

    def desired(value):
        return decide(proportional, {"backlog": window([value] * 10)}, state(3), now=NOW).desired

    assert (desired(out - 1), desired(out + 1)) == (3, 4)
    assert (desired(inward + 1), desired(inward)) == (3, 2)


class Broken:
    """A user's rule whose lines cannot be drawn."""

    def evaluate(self, view, /):
        raise NotImplementedError

    def metrics(self):
        return ()

    def levels(self, current):
        raise RuntimeError("no lines")


def test_a_rule_that_cannot_tell_its_levels_hides_only_its_own():
    broken = policy()
    broken.rules = (Broken(), *broken.rules)

    assert len(shown(state(), of=broken).levels) == 2


def test_active_orders_are_shown_and_expired_ones_are_not():
    controls = Controls(
        pauses=(
            Pause("ann", NOW - 50, Direction.OUT, NOW + 60),
            Pause("bob", NOW - 50, None, NOW - 1),
            Pause("cyd", NOW - 50, None, None),
        ),
        override=Override(5, "dan", NOW - 50, NOW + 10),
        dry_run=True,
    )

    view = shown(state(), controls=controls)
    later = shown(state(), controls=controls, now=NOW + 10)

    assert [(p.direction, p.by, p.until) for p in view.pauses] == [
        ("out", "ann", NOW + 60),
        (None, "cyd", None),
    ]
    assert (view.override.capacity, view.override.by, view.override.until) == (5, "dan", NOW + 10)
    assert view.dry_run
    assert later.override is None


def test_dry_run_is_the_configured_one_until_an_operator_says_otherwise():
    assert shown(of=policy(dry_run=True)).dry_run
    off = Controls(dry_run=False)
    assert not shown(of=policy(dry_run=True), controls=off).dry_run


def test_cooldowns_are_per_direction_and_end():
    cooling = state(effects=(EffectRecord(NOW - 100, 2, 3),))

    view = shown(cooling)
    later = shown(cooling, now=NOW + 200)

    assert (view.cooldown_out_until, view.cooldown_in_until) == (NOW + 200, NOW + 500)
    assert (later.cooldown_out_until, later.cooldown_in_until) == (None, NOW + 500)


def test_a_pending_action_is_where_the_target_goes():
    action = ScaleAction("id", "plan-orders", 3, 5, NOW - 5, NOW + 600, Reason.SCALE_OUT)

    view = shown(state(pending=action))
    expired = shown(state(pending=action), now=NOW + 600)

    assert (view.desired, view.pending.action_id, view.pending.to_capacity) == (5, "id", 5)
    assert expired.pending is None


def test_an_effect_newer_than_the_reading_is_the_present_capacity():
    after = TargetState(expected=4, capacity=Capacity(3, NOW - 60), effects=(EffectRecord(NOW - 30, 3, 4),))

    assert shown(after).current == 4


def test_a_external_change_shows_what_was_seen_and_what_was_expected():
    moved = TargetState(expected=3, capacity=Capacity(7, NOW), external_change=ExternalChange(7, 3, NOW - 5))

    view = shown(moved)

    assert (view.current, view.expected) == (7, 3)
    assert (view.external_change.seen, view.external_change.expected, view.external_change.at) == (
        7,
        3,
        NOW - 5,
    )


def test_another_controller_and_trouble_are_shown():
    trouble = TargetState(
        expected=3,
        capacity=Capacity(3, NOW, held_by="autoscale-orders"),
        capacity_error="429 from the management API",
        missing_since=NOW - 900,
    )

    view = shown(trouble, corrupt=("window:backlog",))

    assert view.held_by == "autoscale-orders"
    assert view.capacity_error == "429 from the management API"
    assert view.missing_since == NOW - 900
    assert view.corrupt == ("window:backlog",)


def test_the_status_lists_targets_by_name_with_poison_and_problems():
    config = Config({name: policy(target=name) for name in "ba"}, 60, 0.0)
    message = PoisonMessage("metrics-poison", "m1", NOW, "{broken")

    snapshots = {name: snapshot() for name in "ba"}
    view = status_view(config, snapshots, (9, [message]), now=NOW, problems=["bad setting"])

    assert view.targets == tuple(shown(of=config.policies[name]) for name in "ab")
    assert (view.poison.count, view.poison.messages) == (9, (message,))
    assert (view.now, view.collect_interval, view.problems) == (NOW, 60, ("bad setting",))


def test_a_decision_row_carries_its_whole_explanation():
    decision = decided([812] * 10)
    row = LogEntry(
        "plan-orders",
        NOW,
        LogKind.DECISION,
        "decision",
        "the line",
        decision.reason,
        3,
        4,
        decision,
        metrics={"backlog": 812.0, "broken": float("nan")},
    )

    [entry] = log_view(LogPage((row,), "next")).entries

    assert (entry.current, entry.desired, entry.proposed) == (3, 4, 4)
    assert (entry.minimum, entry.maximum) == (1, 8)
    assert entry.metrics == {"backlog": 812.0}
    assert entry.decision_id == decision.decision_id
    assert [e.text for e in entry.evidence] == ["average backlog 812 > 500 over 10 min (10 samples)"]
    assert (entry.evidence[0].value, entry.evidence[0].threshold) == (812.0, 500.0)
    assert entry.flips == ("hold (within target) if 50 <= average backlog <= 500",)
    assert entry.effect is None
    assert log_view(LogPage((row,), "next")).continuation == "next"


def test_an_effect_row_points_to_its_decision():
    effect = Effect("plan@t", "plan", EffectOutcome.LIMITED, 3, 6, 5, NOW, "quota")
    row = LogEntry("plan", NOW, LogKind.EFFECT, "effect", "l", "limited", 3, 6, effect=effect)

    [entry] = log_view(LogPage((row,))).entries

    assert entry.decision_id == "plan@t"
    assert (entry.effect.outcome, entry.effect.reached, entry.effect.detail) == ("limited", 5, "quota")


def test_an_infinite_number_in_evidence_becomes_null():
    evidence = Evidence("r", "backlog", "latest", 5.0, ">", float("inf"))
    decision = msgspec.structs.replace(decided([1] * 10), evidence=(evidence,))
    row = LogEntry("p", NOW, LogKind.DECISION, "d", "l", decision.reason, recommendation=decision)

    [entry] = msgspec.json.decode(msgspec.json.encode(log_view(LogPage((row,)))))["entries"]

    assert entry["evidence"][0]["threshold"] is None
