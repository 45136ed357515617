"""The same decision, had some conditions held. Pure.

Nothing is worked out here by hand: what a condition names is set, and the case decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import lru_cache
from math import inf

from msgspec import structs

from scaling.config.policy import Policy, PolicySpec
from scaling.decision.blockers import is_scheduled
from scaling.decision.decide import Case, capacity_in_force
from scaling.decision.missing import verdicts_of
from scaling.decision.seen import bounded_doubt, view_of
from scaling.decision.transitions import absorb, advance, reconcile_capacity
from scaling.flip import Condition, Conditions
from scaling.model import Capacity, Controls, MetricSample, MetricsReport, Statistic, TargetState, Verdict
from scaling.rules.answers import is_ours
from scaling.rules.view import MetricsView
from scaling.window import MAX_VALUE, Summary, Window

NEXT = "next"
READ = frozenset({*Statistic, NEXT})
"""First words of the quantities that are values of metrics."""

WHOLE = frozenset({"samples", "span", "age", "failures", "receiving"})
"""First words of the quantities that make a metric whole again."""

BEYOND = 1e-6
"""Share of a border by which a value is beyond it, where it must be: less than any metric is exact to."""

RAISED = frozenset({"maximum", "schedule ceiling", "platform ceiling", "budget"})
"""Bounds that leave more room the higher they are; all others the lower they are."""


ASKED = 300
"""Cases that are decided for one explanation where rules are the user's own, whose cost nobody knows: one of a single metric
needs about 130, of two 250.
"""


class AskedEnoughError(Exception):
    """What is found by now has to do."""


def is_read(condition: Condition) -> bool:
    """True for the value of a metric; `maximum` alone is the policy's bound."""
    kind, _, name = condition.quantity.partition(" ")
    return bool(name) and kind in READ


def metrics_in(condition: Condition) -> list[str]:
    name = condition.quantity.partition(" ")[2]
    return name.partition("(")[2].rstrip(")").split(", ") if "(" in name else [name]


def apply_conditions(base: Case, conditions: Conditions) -> Case | None:
    """The case had all conditions held, each just so; None where they contradict each other, or can never hold.

    Raises AskedEnoughError where rules of the user's own were asked ASKED times.
    """
    base.cases_decided += 1
    if base.cases_decided > ASKED and not all(is_ours(type(rule)) for rule in base.policy.flat_rules):
        raise AskedEnoughError
    values = values_of(base.view, conditions)
    until = max((c.value for c in conditions if c.quantity == "time"), default=base.now)
    if values is None or any(c.value < 0.0 and c.comparator.startswith("<") for c in conditions):
        return None
    policy = _policy_with(base.policy, conditions)
    controls, state = _controls_with(base.controls, conditions), base.state
    windows, now = base.view.windows, base.now
    summaries: Mapping[str, Summary] | None = base.view.metrics()
    if policy.learns and any(c.quantity.startswith(NEXT) for c in conditions):
        windows, state, now = _after_next_report(base, tuple(values.items()))
        summaries = None
    if until > now:
        windows, state, now = _at_later_time(policy, windows, state, controls, until, until - now)
    if (capacity := _capacity_with(state.capacity, conditions)) is not state.capacity:
        state = structs.replace(state, capacity=capacity)
    assert state.capacity is not None and state.expected is not None  # a case has both
    current = capacity_in_force(state, state.expected)
    view = view_of(policy, windows, state, state.capacity, current, now=now)
    if summaries is not None:
        quantities = (condition.quantity.partition(" ") for condition in conditions)
        whole = {name for kind, _, name in quantities if kind in WHOLE}
        view = view.with_summaries(
            {
                name: _summary_with(summary, values.get(name), whole=name in whole)
                for name, summary in summaries.items()
            }
        )
    verdicts = [_with_schedule_bounds(verdict, conditions) for verdict in verdicts_of(policy, view)]
    return Case(policy, state, controls, view, verdicts, now, base.decision_id)


def values_of(view: MetricsView, conditions: Conditions) -> dict[str, float] | None:
    """What each metric has to be, just beyond the borders named; None where nothing is between two of them. Of several
    metrics in one name each has its share, but no more and no less than what is named of it alone.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for condition in filter(is_read, conditions):
        name, (low, high) = condition.quantity.partition(" ")[2], border(condition)
        before = ranges.get(name, (-inf, inf))
        ranges[name] = max(before[0], low), min(before[1], high)
    if any(low > high or high < 0.0 or low > MAX_VALUE for low, high in ranges.values()):
        return None
    shared: dict[str, float] = {}
    for name in [name for name in ranges if "(" in name]:
        shared |= _share_among(view, name, _value_within(*ranges.pop(name)))
    return shared | {
        name: min(max(shared[name], low), high) if name in shared else _value_within(low, high)
        for name, (low, high) in ranges.items()
    }


def exactly(quantity: str, value: float) -> Conditions:
    """That a metric is this value."""
    return (Condition(quantity, ">=", value), Condition(quantity, "<=", value))


def _value_within(low: float, high: float) -> float:
    return low if high == inf else high if low == -inf else (low + high) / 2


def border(condition: Condition) -> tuple[float, float]:
    """The values that satisfy a condition, from one to the other."""
    value, step = condition.value, max(abs(condition.value), 1.0) * BEYOND
    match condition.comparator:
        case ">":
            return value + step, inf
        case ">=":
            return value, inf
        case "<":
            return -inf, max(value - step, 0.0) if value > 0.0 else -inf
        case _:
            return -inf, value


def _share_among(view: MetricsView, combined: str, value: float) -> dict[str, float]:
    """A combination of metrics has a value: a sum in the shares there are now, else each of them."""
    way, _, rest = combined.partition("(")
    names = rest.rstrip(")").split(", ")
    if way != "sum":
        return dict.fromkeys(names, value)
    parts = [max(0.0, view.metric(name).average) or 1.0 for name in names]
    shares = [value * part / sum(parts) for part in parts]
    shares[-1] += value - sum(shares)
    return dict(zip(names, shares, strict=True))


def _summary_with(summary: Summary, value: float | None, *, whole: bool) -> Summary:
    if whole and summary.count:
        summary = structs.replace(summary, problem=None, gap=False, lacking=None, missing=0)
    if value is None:
        return summary
    return structs.replace(summary, average=value, maximum=value, minimum=value, latest=value)


@lru_cache(maxsize=1)  # one case is explained at a time
def _state_after(base: Case) -> TargetState:
    state, _ = advance(base.policy, base.state, copy(base).decide(), report_at=base.now, level=None)
    return state


@lru_cache(maxsize=16)  # a border is asked for when it is searched, and again when it is followed
def _after_next_report(
    base: Case, given: tuple[tuple[str, float], ...]
) -> tuple[Mapping[str, Window], TargetState, float]:
    """After the next report, in which every metric that is read now is read again: as `given`, or as it is."""
    policy, view, state, values = base.policy, base.view, _state_after(base), dict(given)
    now = base.now + policy.interval
    samples = tuple(
        MetricSample(name, window.times[-1] + view.specs[name].interval, values.get(name, window.values[-1]))
        for name, window in view.windows.items()
        if name in view.specs and window.times and window.failure is None
    )
    capacity = structs.replace(state.capacity, at=now) if state.capacity is not None else None
    report = MetricsReport(policy.target, now, samples, (), capacity)
    return *absorb(policy, view.windows, state, report, now=now, controls=base.controls), now


def _at_later_time(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    controls: Controls,
    until: float,
    passed: float,
) -> tuple[Mapping[str, Window], TargetState, float]:
    """At a later time, every metric being read again as it is, and the capacity with what somebody else set it to."""
    shifted = {
        name: structs.replace(window, times=[at + passed for at in window.times])
        for name, window in windows.items()
    }
    capacity = state.capacity
    assert capacity is not None  # a case has one
    capacity = bounded_doubt(policy, capacity, structs.replace(capacity, at=until))
    if state.external_change is not None:
        capacity = structs.replace(capacity, current=state.external_change.seen)
    state = structs.replace(state, capacity=capacity)
    return shifted, reconcile_capacity(policy, state, capacity, now=until, controls=controls), until


def _policy_with(policy: Policy, conditions: Conditions) -> Policy:
    spec = policy.spec
    for condition in conditions:
        change = _OF_POLICY.get(condition.quantity)
        spec = spec if change is None else change(spec, condition.value)
    if spec is policy.spec:
        return policy
    changed = copy(policy)
    changed.spec, changed.minimum, changed.maximum = spec, spec.minimum, spec.maximum
    return changed


def _without_pace_limits(way: str) -> Callable[[PolicySpec, float], PolicySpec]:
    return lambda spec, _: structs.replace(
        spec, **{way: structs.replace(getattr(spec, way), select="max", rates=())}
    )


def _with_budget(spec: PolicySpec, amount: float) -> PolicySpec:
    budget = spec.budget
    return spec if budget is None else structs.replace(spec, budget=structs.replace(budget, amount=amount))


_OF_POLICY: dict[str, Callable[[PolicySpec, float], PolicySpec]] = {
    "minimum": lambda spec, value: structs.replace(spec, minimum=int(value)),
    "maximum": lambda spec, value: structs.replace(spec, maximum=int(value)),
    "budget": _with_budget,
    "dry-run": lambda spec, _: structs.replace(spec, dry_run=False),
    **{f"{kind} out": _without_pace_limits("out") for kind in ("rates", "disabled")},
    **{f"{kind} in": _without_pace_limits("inward") for kind in ("rates", "disabled")},
}


def _controls_with(controls: Controls, conditions: Conditions) -> Controls:
    quantities = {condition.quantity for condition in conditions}
    if "dry-run" in quantities:
        controls = structs.replace(controls, dry_run=False)
    for way in ("out", "in"):
        if f"pause {way}" in quantities:
            kept = tuple(p for p in controls.pauses if p.direction is not None and p.direction.value != way)
            controls = structs.replace(controls, pauses=kept)
    return controls


def _capacity_with(capacity: Capacity | None, conditions: Conditions) -> Capacity | None:
    changes: dict[str, object] = {}
    for condition in conditions:
        value = int(condition.value)
        match condition.quantity:
            case "other controller":
                changes["held_by"] = None
            case "platform change":
                changes["pending"] = False
            case "platform step":
                changes |= {"step": max(value, 1), "allowed": ()}
            case "platform floor":
                changes["floor"] = value
            case "platform ceiling":
                changes["ceiling"] = value
    return structs.replace(capacity, **changes) if capacity is not None and changes else capacity


def _with_schedule_bounds(verdict: Verdict, conditions: Conditions) -> Verdict:
    for condition in conditions:
        value = int(condition.value)
        if condition.quantity == "schedule ceiling" and verdict.ceiling is not None:
            verdict = structs.replace(verdict, ceiling=max(verdict.ceiling, value))
        if condition.quantity == "schedule floor" and verdict.floor is not None and is_scheduled(verdict):
            verdict = structs.replace(verdict, floor=min(verdict.floor, value))
    return verdict
