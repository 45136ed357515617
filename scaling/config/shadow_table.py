"""`[targets.NAME.shadow]`: rules to try, read so that whatever is wrong there leaves the target as it is. Pure.

What the table has stands in place of the same keys of the target: it is read as the target would be, were it written
like this. Guards and rules of lock step are there for others, so those of the target hold for its shadow, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from scaling.config.checks import Finding, Severity, positive
from scaling.config.policy import PolicySpec, QueueSpec, RuleSpec
from scaling.config.rule_registry import build_rule
from scaling.rules.composite import flatten_rules
from scaling.rules.service_level.rule import ServiceLevelRule
from tidemark.foundation.durations import positive_duration
from tidemark.foundation.sanitize import without_secrets
from tidemark.foundation.settings_reader import Reader, as_text, share

REPLACED = ("minimum", "maximum", "behavior", "out", "in")
"""Keys of the target that hold for its shadow where that has none of its own."""

FOR_OTHERS = frozenset({"guard", "within_request_units"})
"""Rules that hold whatever is tried."""


def findings_of(reader: Reader, target: str) -> list[Finding]:
    """What is wrong with a shadow: it is not decided, the target is."""
    text = "; this shadow is not decided, its target is"
    return [
        Finding(Severity.ERROR, "shadow", target, without_secrets(f"{problem}{text}"))
        for problem in reader.shared.problems
    ]


def with_those_for_others(
    shadow_rules: tuple[RuleSpec, ...], live: Iterable[RuleSpec]
) -> tuple[RuleSpec, ...]:
    """The rules of a shadow, and of its target's those that hold for it, unless one of its own has their name."""
    names = {rule.name for rule in shadow_rules}
    return (*shadow_rules, *(rule for rule in live if rule.type in FOR_OTHERS and rule.name not in names))


def beyond(reader: Reader, target: str, live: PolicySpec, minimum: int, maximum: int) -> list[Finding]:
    """Bounds that can be tried, but would not hold."""
    if live.minimum <= minimum and maximum <= live.maximum:
        return []
    text = (
        f"{reader.shared.where(reader.path)}: tried with {minimum}..{maximum}; promoted, the {live.minimum}..{live.maximum} "
        "of its target hold"
    )
    return [Finding(Severity.WARNING, "shadow", target, text)]


def read_queue(
    reader: Reader, metrics: Collection[str], own: Iterable[RuleSpec], live: Iterable[RuleSpec]
) -> QueueSpec | None:
    """The queue by which the waits are judged: as the table says, else as the first `service_level` rule of the shadow,
    or of its target, does. None where neither names a backlog.
    """
    options: dict[str, Any] = _of_rules((*own, *live))
    options |= {name: value for name, value in _written(reader).items() if value is not None}
    for name in ("backlog", "incoming", "outgoing"):
        metric = options.get(name)
        if metric is not None and metric not in metrics:
            reader.problem(name, f"found '{metric}'; the target has {', '.join(metrics) or 'none'}")
            return None
    if "backlog" not in options:
        if options:
            reader.problem("backlog", "is missing: the metric whose waits are judged")
        return None
    return QueueSpec(**options)


def _written(reader: Reader) -> dict[str, Any]:
    return reader.found(
        backlog=as_text,
        incoming=as_text,
        outgoing=as_text,
        wait=positive_duration,
        late=_late,
        concurrency=positive,
        start_up=positive_duration,
        service_rate=positive,
    )


def _of_rules(specs: Iterable[RuleSpec]) -> dict[str, Any]:
    """What the first `service_level` rule says, those nested in composites included."""
    rules = flatten_rules(build_rule(spec.type, spec.options, name=spec.name) for spec in specs)
    rule = next((candidate for candidate in rules if isinstance(candidate, ServiceLevelRule)), None)
    if rule is None:
        return {}
    objective, params = rule.objective, rule.params
    return {
        "backlog": params.backlog,
        "incoming": params.incoming,
        "outgoing": params.outgoing,
        "wait": objective.wait,
        "late": objective.late,
        "concurrency": objective.concurrency,
        "start_up": objective.start_up,
    }


def _late(value: Any) -> float:
    late = share(value)
    if not 0 < late < 1:
        raise ValueError(f"found {value!r}; a share above 0 and below 1 is accepted, such as '1%' or 0.01")
    return late
