"""The rows of the scaling log: of a decision, of an effect, of what was found out about a target; and their lines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from scaling.config.policy import Policy
from scaling.decision import explain
from scaling.decision.pending_action import Review
from scaling.log_entry import LogEntry, LogKind, ShadowSaid
from scaling.model import Effect, MetricsReport, Recommendation, TargetState
from scaling.rules.service_level.report import Lateness
from scaling.rules.service_level.rule import ServiceLevelRule
from tidemark.foundation.log.tail import Line


def decision_entry(
    report: MetricsReport,
    made: Recommendation,
    metrics: dict[str, float],
    inputs: bytes | None,
    shadow: ShadowSaid | None = None,
) -> LogEntry:
    return LogEntry(
        target=report.target,
        at=report.at,
        kind=LogKind.DECISION,
        key="decision",
        line=explain.line(made),
        reason=made.reason,
        current=made.current,
        desired=made.desired,
        recommendation=made,
        metrics=metrics,
        inputs=inputs,
        shadow=shadow,
    )


def finding_entries(
    where: str, target: str, at: float, review: Review, current: int | None, promotion: str | None = None
) -> tuple[LogEntry, ...]:
    """The rows of what was found out about a target: an effect nobody recorded, the findings in words, and what became of a
    `promotion`.
    """
    effects = () if review.effect is None else (effect_entry(review.effect),)
    sentences = review.findings if promotion is None else (*review.findings, ("promote", promotion))
    findings = (
        LogEntry(
            target=target,
            at=at,
            kind=LogKind.VERIFY,
            key=f"verify-{index}",
            line=f"{where} {target}: {text}",
            reason=reason,
            current=current,
        )
        for index, (reason, text) in enumerate(sentences)
    )
    return (*effects, *findings)


def effect_entry(effect: Effect) -> LogEntry:
    return LogEntry(
        target=effect.target,
        at=effect.at,
        kind=LogKind.EFFECT,
        key=f"effect-{effect.outcome}-{effect.action_id.rpartition('@')[2]}",
        line=explain.effect_line(effect),
        reason=effect.outcome,
        current=effect.reached if effect.reached is not None else effect.from_capacity,
        desired=effect.to_capacity,
        effect=effect,
    )


def entry_line(entry: LogEntry, lateness: Sequence[Lateness] = (), durations: Collection[str] = ()) -> Line:
    """The line of a row. Its fields have the names that the HTTP API gives them; `lateness` is that of the rules
    `service_level`, as in the status, `durations` are the metrics in seconds.
    """
    decided, effect = entry.recommendation, entry.effect
    fields: dict[str, Any] = {
        "target": entry.target,
        "at": entry.at,
        "reason": entry.reason,
        "current": entry.current,
        "desired": entry.desired,
        "by": entry.by,
        "metrics": entry.metrics or None,
        "shadow": entry.shadow,
    }
    if decided is not None:
        fields |= {
            "decision_id": decided.decision_id,
            "proposed": decided.proposed,
            "minimum": decided.minimum,
            "maximum": decided.maximum,
            "limited_by": limited_by(decided) or None,
            "evidence": decided.evidence or None,
            "service_levels": lateness or None,
            "durations": {name: entry.metrics[name] for name in entry.metrics if name in durations} or None,
        }
    if effect is not None:
        fields |= {
            "decision_id": effect.action_id,
            "effect": {"outcome": effect.outcome, "reached": effect.reached, "detail": effect.detail},
        }
    return Line(entry.line, entry.kind.value, msgspec.to_builtins(fields))


def limited_by(made: Recommendation) -> tuple[str, ...]:
    """The reasons for which less was done than was wanted, each once, in their order."""
    return tuple(dict.fromkeys(limit.reason.value for limit in made.limits))


def effects_of(entries: Iterable[LogEntry]) -> tuple[Line, ...]:
    """Lines of effects that nobody logged when they were there: the platform took its time, or a process died."""
    return tuple(entry_line(entry) for entry in entries if entry.kind is LogKind.EFFECT)


def findings_of(entries: Iterable[LogEntry]) -> tuple[Line, ...]:
    return tuple(entry_line(entry) for entry in entries if entry.kind is LogKind.VERIFY)


def learning_failures(target: str, state: TargetState) -> Iterable[str]:
    """What rules could not learn from the last report."""
    return (f"scaling {target}: rule '{rule}': {why}" for rule, why in state.unlearned.items())


def lateness_of(policy: Policy, state: TargetState) -> tuple[Lateness, ...]:
    """Of what the rules `service_level` remember."""
    rules = (rule for rule in policy.flat_rules if isinstance(rule, ServiceLevelRule))
    latenesses = (rule.lateness(state.memories.get(rule.name)) for rule in rules)
    return tuple(lateness for lateness in latenesses if lateness is not None)
