"""Lint and a simulation agree on which policies flap: with several metrics, of which some are shared by the instances."""

import os
from itertools import pairwise, product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scaling.analysis.lint import lint
from scaling.config.policy import Pace
from scaling.decision.decide import decide
from scaling.rules.combine import levels_of
from tests.support.scaling.runner import NOW, at
from tests.support.scaling.steady_views import policy, steady

TORTURE = os.environ.get("TORTURE") == "1"
METRICS, SHARED = ("backlog", "cpu"), ("cpu",)

numbers = st.sampled_from([10, 40, 50, 70, 90, 100, 150, 200, 300, 500])
levels = st.one_of(
    numbers,
    st.builds(lambda low, high: {"1": low, "3": high}, numbers, numbers),
    st.builds(lambda each: f"{each} * instances", st.sampled_from([20, 40, 50, 90])),
)


@st.composite
def rules(draw):
    metric = draw(st.sampled_from(METRICS))
    if draw(st.integers(0, 3)) == 0:
        mode = "value" if metric in SHARED and draw(st.booleans()) else "average_value"
        return {
            "type": "target_per_unit",
            "metric": metric,
            "target": draw(levels),
            "mode": mode,
            "tolerance": draw(st.sampled_from([0.0, 0.1])),
        }
    made = {"type": "threshold", "scale_out_above": draw(levels), "scale_in_below": draw(levels)}
    made |= {"step_out": draw(st.integers(1, 3)), "step_in": draw(st.integers(1, 2))}
    if draw(st.booleans()):
        return made | {"metric": metric}
    return made | {"metrics": METRICS, "combine": draw(st.sampled_from(["each", "maximum", "minimum"]))}


@st.composite
def policies(draw):
    return policy(
        *draw(st.lists(rules(), min_size=1, max_size=2)),
        metrics=METRICS,
        per_instance=draw(st.sampled_from([(), SHARED, SHARED])),
        maximum=draw(st.integers(3, 6)),
        out=Pace(cooldown=0.0, step=draw(st.sampled_from([None, None, 1]))),
        inward=Pace(cooldown=0.0),
    )


def next_count(subject, count, loads):
    """What is decided at a count under steady loads."""
    shared = {name: subject.spec.metrics[name].per_instance for name in METRICS}
    windows = {name: steady(load / count if shared[name] else load) for name, load in loads.items()}
    return decide(subject, windows, at(count), now=NOW).desired


def flaps(subject, loads):
    """Whether the count comes back to where it was, and leaves it again, from any start."""
    counts = range(subject.minimum, subject.maximum + 1)
    after = {count: next_count(subject, count, loads) for count in counts}
    for count in counts:
        end = count
        for _ in counts:
            end = after[end]
        if after[end] != end:
            return True
    return False


def loads_near(subject):
    """Loads of each metric at, between and beyond all levels of all rules at all counts."""
    found = {}
    for name in METRICS:
        values = {0.0}
        for count in range(subject.minimum, subject.maximum + 1):
            times = count if subject.spec.metrics[name].per_instance else 1
            values |= {line.value * times for line in levels_of(subject.rules, count)}
            for rule in subject.rules:
                if hasattr(rule, "breakpoints"):
                    points = rule.breakpoints(count, subject.maximum, rounded=True)
                    values |= {value * times for value in points}
        ordered = sorted(values)
        middles = [(low + high) / 2 for low, high in pairwise(ordered)]
        found[name] = [*ordered, *middles, 2 * ordered[-1] + 1]
    return found


THE_ISSUES = (
    policy(
        {"type": "target_per_unit", "metric": "backlog", "target": 50},
        {
            "type": "threshold",
            "metric": "backlog",
            "scale_out_above": "50 * instances",
            "scale_in_below": 90,
            "step": 2,
        },
        metrics=METRICS,
        maximum=6,
    ),
    policy(
        {
            "type": "threshold",
            "metrics": METRICS,
            "combine": "minimum",
            "scale_out_above": 70,
            "scale_in_below": 40,
        },
        metrics=METRICS,
        per_instance=SHARED,
        maximum=6,
    ),
    policy(  # two levels that are one load
        {
            "type": "target_per_unit",
            "metric": "cpu",
            "target": {"1": 50, "3": 500},
            "mode": "value",
            "tolerance": 0.0,
        },
        {"type": "target_per_unit", "metric": "cpu", "target": 150, "mode": "value"},
        metrics=METRICS,
        per_instance=SHARED,
        maximum=4,
    ),
)


@settings(max_examples=10_000 if TORTURE else 25)
@given(policies(), st.tuples(*[st.floats(0, 1500)] * 2))
@example(THE_ISSUES[0], (60.0, 0.0))
@example(THE_ISSUES[1], (500.0, 75.0))
@example(THE_ISSUES[2], (0.0, 220.7))
def test_lint_and_a_simulation_agree_on_what_flaps(subject, drawn):
    said = any(finding.kind == "must_flap" for finding in lint(subject))

    if flaps(subject, dict(zip(METRICS, drawn, strict=True))):
        assert said
    if said:
        near = loads_near(subject)
        assert any(flaps(subject, dict(zip(METRICS, each, strict=True))) for each in product(*near.values()))
