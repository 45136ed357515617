"""The rules of an Azure Monitor profile: any of those that scale out, all of those that scale in. Pure.

Where each metric has one rule of either kind, they become `threshold` rules, whose levels hold back what would scale out again, as
Azure Monitor predicts it. All others become one expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from scaling.rules.expression import Expression
from tidemark.commands.importing.common.given import Given, UnreadableError
from tidemark.commands.importing.common.imported import Imported, number, span_text
from tidemark.commands.importing.common.queues import add_setting, full_id, queue_of
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.expressions.parsing import ExpressionError
from tidemark.foundation.sanitize import one_line

STATISTICS = {
    "average": "average",
    "maximum": "maximum",
    "minimum": "minimum",
    "last": "latest",
    "total": "average",
}
AGGREGATIONS = {"average": "average", "min": "minimum", "max": "maximum", "sum": "total", "count": "count"}
OPERATORS = {
    "greaterthan": ">", "greaterthanorequal": ">=", "lessthan": "<", "lessthanorequal": "<=",
    "equals": "==", "notequals": "!=",
}  # fmt: skip
LONGEST = 43_200.0
"""Seconds of a window, as Azure Monitor has it."""

GRAINS = ("12h", "6h", "1h", "30m", "15m", "5m", "1m")


MOST = 20
"""Rules of a profile. Azure Monitor has ten."""


class Condition(Struct, frozen=True):
    """One rule. The statistic of `metric`, compared with `level` (times the instances, if `divided`), changes the count by `kind`
    and `value`.
    """

    metric: str
    statistic: str
    operator: str
    level: float
    divided: bool
    out: bool
    kind: str
    value: float
    cooldown: float

    @property
    def text(self) -> str:
        level = f"{number(self.level)}{' * instances' if self.divided else ''}"
        return f"{self.metric}.{self.statistic} {self.operator} {level}"

    @property
    def count(self) -> str:
        """The instances it asks for."""
        if self.kind == "exactcount":
            return f"{number(self.value)}"
        amount = f"{number(self.value)}"
        if self.kind == "percentchangecount":
            amount = f"max(ceil(instances * {number(self.value)} / 100), 1)"
        return f"instances {'+' if self.out else '-'} {amount}"


def read_conditions(rules: Sequence[Given], resource: str, made: Imported) -> list[Condition]:
    """The rules that can be carried over. Raises UnreadableError.

    All rules that scale in have to hold. So if one of them cannot be carried over, none is: the rest would scale in sooner. Nor is one
    where all of those that scale out are left out: it would scale in for good.
    """
    if len(rules) > MOST:
        raise UnreadableError(f"a profile with {len(rules)} rules; accepted are {MOST}")
    conditions: list[Condition] = []
    left_out: set[bool] = set()
    for rule in rules:
        condition = _condition(rule, resource, made)
        if condition is not None:
            conditions.append(condition)
        else:
            left_out.add(rule.at("scaleAction").text("direction").casefold() != "decrease")
    out = [read for read in conditions if read.out]
    if len(out) < len(conditions) and (False in left_out or (True in left_out and not out)):
        why = (
            "it takes all of its rules, and one of them is left out"
            if False in left_out
            else "all rules that scale out are left out"
        )
        made.note("scaling in", f"{why}, so nothing scales in: write a rule that does")
        return out
    return conditions


def _condition(rule: Given, resource: str, made: Imported) -> Condition | None:
    trigger, action = rule.at("metricTrigger"), rule.at("scaleAction")
    direction = action.text("direction", "None").casefold()
    operator = OPERATORS.get(trigger.text("operator").casefold())
    aggregation = AGGREGATIONS.get(trigger.text("statistic", "Average").casefold())
    name = trigger.text("metricName")
    if direction not in {"increase", "decrease"} or operator is None or aggregation is None or not name:
        made.note(
            rule.path, "a rule without direction, operator, statistic or metric that is known is left out"
        )
        return None
    over = trigger.text("timeAggregation", "Average")
    statistic = STATISTICS.get(over.casefold())
    if statistic is None:
        made.note(rule.path, f"the time aggregation {over} has no equivalent, so the rule is left out")
        return None
    change = _change(rule, made)
    window = min(max(trigger.seconds("timeWindow", 600.0), 60.0), LONGEST)
    grain = _grain(trigger, window, made)
    options, divided = _metric(trigger, aggregation, resource, window, grain, made)
    if change is None or options is None:
        return None
    level = trigger.number("threshold", 0)
    if over.casefold() == "total":
        level = level * grain / window  # the sum of a window is its average times its grains
    out, cooldown = direction == "increase", action.seconds("cooldown", 300.0)
    return Condition(made.metric(name, options), statistic, operator, level, divided, out, *change, cooldown)


def _change(rule: Given, made: Imported) -> tuple[str, float] | None:
    """The kind of a change and its amount; None for one without equivalent."""
    action = rule.at("scaleAction")
    where = f"{rule.path}.scaleAction"
    kind, value = action.text("type", "ChangeCount").casefold(), action.number("value", 1)
    if kind == "serviceallowednextvalue":
        kind = "changecount"
        made.note(where, "the next allowed value is taken as one unit more or less")
    if kind not in {"changecount", "percentchangecount", "exactcount"} or not 0 <= value <= 1_000_000:
        made.note(where, f"'{kind}' by {value:g} has no equivalent, so the rule is left out")
        return None
    if kind == "percentchangecount":
        made.note(
            where,
            "the change is rounded up to whole instances, one at least; how Azure Monitor rounds is not documented",
        )
    return kind, value


def _grain(trigger: Given, window: float, made: Imported) -> float:
    wanted = trigger.seconds("timeGrain", 60.0)
    grains = [parse_duration(grain) for grain in GRAINS]
    grain_read = next((grain for grain in grains if grain <= min(wanted, window)), 60.0)
    if grain_read != wanted:
        made.note(f"{trigger.path}.timeGrain", f"{span_text(wanted)} is read as {span_text(grain_read)}")
    return grain_read


def _metric(
    trigger: Given, aggregation: str, resource: str, window: float, grain: float, made: Imported
) -> tuple[dict[str, Any] | None, bool]:
    """The options of the metric, and whether its threshold is for each instance; None where it cannot be read."""
    uri = trigger.raw("metricResourceUri") or resource
    counts_messages = trigger.text("metricName").casefold() in {"messagecount", "approximatemessagecount"}
    if counts_messages and (queue := queue_of(uri, made)) is not None:
        return {**queue, "window": span_text(window)}, True
    dimensions = _dimensions(trigger, made)
    if dimensions is None:
        return None, False
    name = full_id(uri)
    if not name:
        what = f"the resource id that metric {trigger.text('metricName')} is of; it was {uri[:120] or 'not given'}"
        setting = add_setting(made, f"{made.name} metric resource id", what, uri)
        name = f"%{setting}%"
    is_own = uri.casefold() == resource.casefold()
    options: dict[str, Any] = {
        "collector": "azure_monitor",
        "resource_id": name,
        "metric": trigger.text("metricName"),
    }
    if namespace := trigger.text("metricNamespace"):
        options["namespace"] = namespace
    options |= {"aggregation": aggregation, "grain": span_text(grain), "window": span_text(window)}
    options |= {"dimensions": dimensions} if dimensions else {}
    divided = trigger.flag("dividePerInstance", default=False)
    options |= (
        {"per_instance": True} if is_own and not divided and aggregation not in {"total", "count"} else {}
    )
    return options, divided


def _dimensions(trigger: Given, made: Imported) -> dict[str, str] | None:
    """One value for each; None where more is asked for."""
    wanted: dict[str, str] = {}
    for dimension in trigger.tables("dimensions"):
        name, values = dimension.text("dimensionName"), dimension.listed("values")
        if dimension.text("operator", "Equals").casefold() != "equals" or len(values) != 1 or not name:
            made.note(
                f"{dimension.path} ({name})",
                "one value of a dimension can be read, by Equals, so the rule is left out; write it with a metric of your own",
            )
            return None
        wanted[name] = one_line(str(values[0]))
    return wanted


def rules_of(conditions: Sequence[Condition], made: Imported) -> list[dict[str, Any]]:
    low, high = made.table["minimum"], made.table["maximum"]
    metrics = dict.fromkeys(condition.metric for condition in conditions)
    pairs = {name: [condition for condition in conditions if condition.metric == name] for name in metrics}
    if all(_is_pair(pair) for pair in pairs.values()):
        ordered = [sorted(pair, key=lambda condition: not condition.out) for pair in pairs.values()]
        return [_threshold(out, inward, low, high, made) for out, inward in ordered]
    made.note(
        "rules that are no pair of thresholds of one metric",
        "all rules are one expression, any out, all in: read it once",
    )
    return [_expression(conditions, low, made)]


def _is_pair(pair: Sequence[Condition]) -> bool:
    ways = {condition.out: condition for condition in pair}
    return (
        len(pair) == 2
        and len(ways) == 2
        and ways[True].operator in {">", ">="}
        and ways[False].operator in {"<", "<="}
        and all(
            condition.kind == "changecount"
            and condition.value >= 1
            and condition.value == int(condition.value)
            for condition in pair
        )
    )


def _threshold(out: Condition, inward: Condition, low: int, high: int, made: Imported) -> dict[str, Any]:
    for condition in (out, inward):
        if condition.operator in {">=", "<="}:
            made.note(
                f"{condition.text}",
                f"a threshold is met above or below it, so at exactly {number(condition.level)} nothing happens",
            )
    step = int(inward.value)
    if step > 1:
        made.note(
            f"scaling in by {step}",
            "where that many would scale out again, Azure Monitor tries fewer, and here nothing is scaled in",
        )
    steps = {"step_out": int(out.value), "step_in": step}
    return {
        "type": "threshold",
        "metric": out.metric,
        "scale_out_above": _level(out),
        "scale_in_below": _level_in(out, inward, low, high),
        "out_statistic": out.statistic,
        "in_statistic": inward.statistic,
        **{key: value for key, value in steps.items() if value != 1},
    }


def _level(condition: Condition) -> Any:
    level = number(condition.level)
    return f"{level} * instances" if condition.divided else level


def _level_in(out: Condition, inward: Condition, low: int, high: int) -> Any:
    """Below it, as many would not scale out again: of what the rest would have each, `out` is not reached."""
    if out.divided != inward.divided or out.level <= 0:
        return _level(inward)
    step = int(inward.value)
    counts = range(low + 1, min(high, low + 100 + 100 * step) + 1)
    safe = all(inward.level * n <= out.level * max(n - step, low) for n in counts)
    if safe:
        return _level(inward)
    rest = f"max(instances - {step}, {low})"
    level_in, level_out = number(inward.level), number(out.level)
    if inward.divided:
        return f"min({level_in} * instances, {level_out} * {rest})"
    return f"min({level_in}, {level_out} * {rest} / max(instances, 1))"


def _expression(conditions: Sequence[Condition], low: int, made: Imported) -> dict[str, Any]:
    problem = ""
    for predicting in (True, False):
        text = _desired(conditions, low, predicting=predicting)
        try:
            Expression(text)
        except ExpressionError as error:
            problem = str(error)
            continue
        if not predicting:
            made.note(
                "the prediction that keeps Azure Monitor from flapping",
                "the rules are too many for it; `tidemark lint` shows where they must flap",
            )
        return {"type": "composite", "desired": text}
    made.note(
        "the rules",
        f"not accepted as an expression ({problem}), so the number of instances stays; write them anew",
    )
    return {"type": "composite", "desired": "instances"}


def _desired(conditions: Sequence[Condition], low: int, *, predicting: bool) -> str:
    out = [condition for condition in conditions if condition.out]
    inward = [condition for condition in conditions if not condition.out]
    text = "instances"
    if inward:
        counts = list(dict.fromkeys(condition.count for condition in inward))
        count = f"max({', '.join([*counts, str(low)])})"
        kept = [
            _kept(condition, count) for condition in out if predicting and condition.operator in {">", ">="}
        ]
        text = f"min({count}, instances) if {' and '.join([*(condition.text for condition in inward), *kept])} else instances"
    if out:
        counts = list(dict.fromkeys(condition.count for condition in out))
        many = f"max({', '.join(f'({condition.count} if {condition.text} else 0)' for condition in out)}, instances)"
        count = (
            many if len(counts) > 1 else f"max({counts[0]}, instances)" if counts[0].isdigit() else counts[0]
        )
        text = f"{count} if {' or '.join(condition.text for condition in out)} else {text}"
    return text


def _kept(out: Condition, count: str) -> str:
    """That as many as `count` would not scale out again."""
    level = number(out.level)
    metric = f"{out.metric}.{out.statistic}"
    if out.divided:
        return f"{metric} <= {level} * {count}"
    return f"{metric} * instances <= {level} * {count}"
