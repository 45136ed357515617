"""A KEDA ScaledObject as a target: bounds, triggers, the HPA's behavior, fallback. Pure.

It reads objects of keda.sh/v1alpha1 as of KEDA 2.20, as `kubectl get scaledobject -o json` gives them.
"""

from __future__ import annotations

import re
from typing import Any

from scaling.rules.expression import Expression
from tidemark.commands.importing.common.given import Given, UnreadableError
from tidemark.commands.importing.common.imported import AT_ZERO, THIS_TARGET, Imported, number, span_text
from tidemark.commands.importing.keda.triggers import Trigger, read_trigger
from tidemark.foundation.expressions.parsing import ExpressionError

ROUND = 60.0
"""Seconds between two evaluations, as the app has them by default."""

DAY = 86_400.0
MOST = 20
"""Triggers of an object. Chosen: the windows of as many metrics, 12 h long, are within what a target stores."""

_PAUSED = "autoscaling.keda.sh/paused"
_ONE_WAY = {"-scale-in": "in", "-scale-out": "out"}
_COALESCE = re.compile(r"([A-Za-z_]\w*)\s*\?\?\s*(\w+(?:\.\w+)?)")


def is_scaled_object(given: Given) -> bool:
    return given.raw("kind") in {"ScaledObject", "ScaledJob"}


def read_scaled_object(given: Given, resource_id: str, meant: dict[str, str]) -> Imported:
    """The target that `resource_id` names; without it, advice for KEDA as the executor. `meant` is what the app settings of the run
    stand for. Raises UnreadableError.
    """
    meta, spec = given.at("metadata"), given.at("spec")
    name = meta.text("name", "scaled-object")
    if given.raw("kind") == "ScaledJob":
        raise UnreadableError(
            f"{given.path}: {name} is a ScaledJob, which starts a job for each message and has nothing to scale in; "
            "Tidemark scales what runs, so there is no equivalent"
        )
    made = Imported(name, f"ScaledObject {meta.text('namespace', 'default')}/{name}", meant=meant)
    made.scaled_by(resource_id, _why_advice(spec.at("scaleTargetRef"), resource_id))
    _bounds(spec, made)
    _paces(spec, made)
    noted = len(made.notes)
    if len(spec.tables("triggers")) > MOST:
        raise UnreadableError(
            f"{spec.path}.triggers: found {len(spec.tables('triggers'))}; accepted are {MOST}"
        )
    rules = [
        read_trigger(trigger, spec.seconds_of("cooldownPeriod", 300.0), made)
        for trigger in spec.tables("triggers")
    ]
    triggers = [rule for rule in rules if rule is not None]
    if not triggers:
        why = "; ".join(made.notes[noted:])
        found = f"none of them can be carried over: {why}" if why else "found none"
        raise UnreadableError(f"{spec.path}.triggers of {made.name}: {found}")
    _rules(spec, triggers, made)
    _fallback(spec, made)
    for key, value in given.at("metadata", "annotations").pairs():
        if key.startswith(_PAUSED) and value.casefold() != "false":
            made.note(f"annotation {key}: {value}", _order_for(key.removeprefix(_PAUSED), value))
    return made


def _why_advice(workload: Given, resource_id: str) -> str:
    if resource_id:
        return (
            f"{resource_id} is of a type that is not known here, so the target gives advice only; docs/targets.md has what else can be "
            "scaled: correct `scaler`"
        )
    return (
        f"{workload.text('kind', 'Deployment')} {workload.text('name', '?')} is no resource of Azure, so the target gives advice, which KEDA can "
        "carry out (docs/targets.md); or name a plan, a container app or a scale set by --resource-id"
    )


def _order_for(paused: str, value: str) -> str:
    """What takes the place of an annotation that pauses; `paused` is the end of its name."""
    if paused in _ONE_WAY:
        return f'select = "disabled" in [targets.{THIS_TARGET}.{_ONE_WAY[paused]}] does the same'
    order = (
        f"override {THIS_TARGET} {value}"
        if paused == "-replicas" and value.isdecimal()
        else f"pause {THIS_TARGET}"
    )
    return f"an order is no policy: give it by `tidemark order {order}`"


def _bounds(spec: Given, made: Imported) -> None:
    low, high = spec.whole("minReplicaCount", 0), spec.whole("maxReplicaCount", 100)
    if high < low:
        made.note(
            f"maxReplicaCount {high} with minReplicaCount {low}",
            f"KEDA accepts no maximum below the minimum; {low} is written for both",
        )
    if spec.has("idleReplicaCount") and low > 0:
        made.note(
            f"idleReplicaCount {spec.whole('idleReplicaCount', 0)} with minReplicaCount {low}",
            f"there is no lower number for idle times, so the minimum is {low}; with minimum = 0 the rule `activation` starts one",
        )
    if low == 0 and made.table.get("kind") not in AT_ZERO and made.table["scaler"] != "advice":
        low = 1
        made.note("minReplicaCount 0", "such a resource has at least one instance, so the minimum is 1")
    made.table |= {"minimum": low, "maximum": max(high, low, 1)}
    if spec.whole("initialCooldownPeriod", 0, 10_000_000):
        made.note("initialCooldownPeriod", "a new target is not treated differently")
    polling = spec.seconds_of("pollingInterval", 30.0)
    if polling < ROUND:
        made.note(
            f"an evaluation every 15 s, and pollingInterval {span_text(polling)}",
            "Tidemark evaluates every minute; for the same, set COLLECT_SCHEDULE to '*/15 * * * * *'",
        )
    elif polling % ROUND == 0 and polling <= 86_400:
        made.table["interval"] = span_text(polling)
    else:
        made.note(
            f"pollingInterval {span_text(polling)}",
            "an interval is a multiple of a minute, so every minute is evaluated",
        )


def _paces(spec: Given, made: Imported) -> None:
    made.table["behavior"] = "hpa"
    behavior = spec.at("advanced", "horizontalPodAutoscalerConfig", "behavior")
    for theirs, ours in (("scaleUp", "out"), ("scaleDown", "in")):
        given = behavior.at(theirs)
        pace: dict[str, Any] = {}
        if given.has("stabilizationWindowSeconds"):
            pace["stabilization"] = span_text(given.whole("stabilizationWindowSeconds", 0, 3600))
        if select := given.text("selectPolicy"):
            pace["select"] = select.lower() if select.lower() in {"max", "min", "disabled"} else "max"
        rates = []
        for policy in given.tables("policies"):
            kind = "percent" if policy.text("type").casefold() == "percent" else "units"
            rates.append(
                {
                    kind: policy.whole("value", 1) or 1,
                    "per": span_text(policy.whole("periodSeconds", 15, 1800) or 1),
                }
            )
        if rates:
            pace["rates"] = rates
        if pace:
            made.table[ours] = pace


def _tolerance(spec: Given, made: Imported) -> dict[str, Any]:
    behavior = spec.at("advanced", "horizontalPodAutoscalerConfig", "behavior")
    tolerances = [
        behavior.at(direction).number("tolerance", -1)
        for direction in ("scaleUp", "scaleDown")
        if behavior.at(direction).has("tolerance")
    ]
    if len({*tolerances}) > 1:
        made.note("a tolerance for each direction", "a rule has one, the smaller of the two")
    return {"tolerance": min(tolerances)} if tolerances and 0 <= min(tolerances) < 1 else {}


def _rules(spec: Given, triggers: list[Trigger], made: Imported) -> None:
    modifiers = spec.at("advanced", "scalingModifiers")
    counted = [trigger for trigger in triggers if trigger.metric]
    floors = [trigger.schedule for trigger in triggers if trigger.schedule]
    if modifiers.has("formula"):
        made.rules.append(_formula(modifiers, counted, made))
    else:
        tolerance = _tolerance(spec, made)
        for trigger in counted:
            mode = {"mode": "value"} if trigger.value else {}
            rule = {"type": "target_per_unit", "metric": trigger.metric, "target": number(trigger.target)}
            made.rules.append({**rule, **mode, **tolerance})
    if not made.rules:
        made.rules.append(
            {"type": "composite", "desired": "minimum"}
        )  # what is there outside of the times of cron
    if made.table["minimum"] == 0 and counted:
        made.rules.append(_activation(counted, made))
    zones: dict[str, list[dict[str, Any]]] = {}
    for zone, periods in floors:
        zones.setdefault(zone, []).extend(periods)
    made.rules += [
        {"type": "schedule", "time_zone": zone, "periods": periods} for zone, periods in zones.items()
    ]


def _activation(counted: list[Trigger], made: Imported) -> dict[str, Any]:
    levels = sorted({trigger.activation for trigger in counted})
    if len(levels) > 1:
        made.note(
            "activation values that differ",
            f"the rule has one for all, so the least of them counts, {number(levels[0])}",
        )
    above = {"above": number(levels[0])} if levels[0] > 0 else {}
    names = list(dict.fromkeys(trigger.metric for trigger in counted))
    return {
        "type": "activation",
        **({"metric": names[0]} if len(names) == 1 else {"metrics": names}),
        **above,
    }


def _formula(modifiers: Given, counted: list[Trigger], made: Imported) -> dict[str, Any]:
    """The composite metric, as an expression of the metrics."""
    formula = _COALESCE.sub(r"default(\1, \2)", modifiers.text("formula"))
    for trigger in counted:
        if trigger.name and trigger.name != trigger.metric:
            formula = re.sub(rf"\b{re.escape(trigger.name)}\b", trigger.metric, formula)
    target = modifiers.number("target", 0)
    known = {trigger.metric for trigger in counted}
    text = f"ceil(({formula}) / {number(target)})" if target > 0 else formula
    if modifiers.text("metricType", "AverageValue").casefold() == "value":
        text = f"ceil(max(instances, 1) * ({formula}) / {number(target)})" if target > 0 else formula
    try:
        names = {name.partition(".")[0] for name in Expression(text).names}
    except ExpressionError as error:
        raise UnreadableError(
            f"{modifiers.path}.formula: found '{formula[:120]}'; it is not carried over, because {error}; accepted are arithmetic, comparisons, "
            "min, max, ceil, floor, round, abs and a ?? b"
        ) from None
    if target <= 0 or not names <= known:
        raise UnreadableError(
            f"{modifiers.path}: accepted is a target above 0, and a formula of triggers with names that can be carried over"
        )
    if modifiers.has("activationTarget"):
        made.note(
            "activationTarget of the formula",
            "the metrics of the triggers activate, each above its own value",
        )
    made.note("the formula", "has no tolerance of a tenth, so it follows smaller changes, too")
    return {"type": "composite", "desired": text}


def _fallback(spec: Given, made: Imported) -> None:
    given = spec.at("fallback")
    if not given.has("replicas"):
        return
    low, high = made.table["minimum"], made.table["maximum"]
    wanted = given.whole("replicas", low)
    after = max(given.whole("failureThreshold", 3), 1) * spec.seconds_of("pollingInterval", 30.0)
    made.table["fallback"] = {"capacity": min(max(wanted, low), high), "after": span_text(min(after, DAY))}
    behavior = given.text("behavior", "static")
    if behavior.casefold() != "currentreplicasifhigher":
        made.note(
            f"fallback behavior {behavior}",
            "here a fallback only raises, and keeps what is more (currentReplicasIfHigher)",
        )
    if not low <= wanted <= high:
        made.note(f"fallback replicas {wanted}", f"a fallback is within the bounds, {low} to {high}")
