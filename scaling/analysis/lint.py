"""Proof of what a policy must do wrong, before it does it: rules that flap or can never act. Pure.

For a steady load every instance count leads to a next one. `lint` works that step out for all counts from
the minimum to the maximum and all loads (`scaling.analysis.steady`). Where the steps lead back to where they began,
the policy flaps for these loads, for ever, whatever its cooldowns are.

Rules without levels (expressions, a user's own class) are tried at the numbers in their expressions and on
a grid: what is found there is certain for the load named, but other loads may flap unseen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy

from msgspec import structs

from scaling.analysis.apart import flapping_apart
from scaling.analysis.flapping import flapping, span_text
from scaling.analysis.objectives import unknown_concurrency, unknown_times, unmet_objectives
from scaling.analysis.options import (
    counted_again,
    counted_in_part,
    ended_calendars,
    never_binds,
    never_holding_periods,
    other_metrics,
    outlasted_fallbacks,
    unpaid_floors,
    unpeekable_ages,
    unread_texts,
)
from scaling.analysis.steady import Subject
from scaling.config.checks import Finding, Severity
from scaling.config.policy import EFFECTS_KEPT, Policy
from scaling.decision.pacing import HOUR, changes_reserved_for_out
from scaling.decision.transitions import RECOMMENDATIONS_KEPT
from scaling.rules.activation import ActivationRule
from scaling.rules.combine import levels_of, metrics_of
from scaling.target_facts import TargetFacts
from scaling.window import MAX_VALUE
from tidemark.foundation.sanitize import describe_error
from tidemark.foundation.wording import duration_text, number_text


def lint(policy: Policy) -> tuple[Finding, ...]:
    """Everything found wrong with one policy, errors first; the same policy always gives the same findings.

    Never raises: a rule that breaks the checks (a user's own class) is a finding, and the others are checked
    without it.
    """
    return _errors_first((*_found(policy), *_of_shadow(policy)))


def _errors_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity)))


def _found(policy: Policy) -> tuple[Finding, ...]:
    try:
        return _checked(policy)
    except Exception as error:  # whatever a user's rule raises, or leads to
        return _without_broken_rules(policy, error)


def _of_shadow(policy: Policy) -> list[Finding]:
    """What is wrong with the simulated rules, as they would decide once promoted: warnings, for they decide nothing yet."""
    if policy.promoted is None:
        return []
    head = f"targets.{policy.target}"
    return [
        structs.replace(
            finding, severity=Severity.WARNING, text=finding.text.replace(head, f"{head}.shadow", 1)
        )
        for finding in _found(policy.promoted)
        if finding.severity is not Severity.NOTE
    ]


def _without_broken_rules(policy: Policy, error: Exception) -> tuple[Finding, ...]:
    """The rules that break the checks by themselves, as findings, and what is found in the others."""
    kept, broken = [], []
    for index, spec in enumerate(policy.spec.rules):
        try:
            _checked(_with_rules(policy, [index]))
        except Exception as own:  # as above
            broken.append(_broken(policy, f"rule '{spec.name}'", own))
        else:
            kept.append(index)
    if not broken:
        return (_broken(policy, "the rules together", error),)
    try:
        others = _checked(_with_rules(policy, kept)) if kept else ()
    except Exception as together:  # as above
        others = (_broken(policy, "the other rules together", together),)
    return (*broken, *others)


def _with_rules(policy: Policy, kept: Sequence[int]) -> Policy:
    fewer = copy(policy)
    fewer.rules = tuple(policy.rules[index] for index in kept)
    fewer.spec = structs.replace(policy.spec, rules=tuple(policy.spec.rules[index] for index in kept))
    return fewer


def _broken(policy: Policy, what: str, error: Exception) -> Finding:
    text = f"targets.{policy.target}: {what} cannot be checked: {describe_error(error)}"
    return Finding(Severity.ERROR, "rule_breaks_lint", policy.target, text)


def _checked(policy: Policy) -> tuple[Finding, ...]:
    subject = Subject(policy)
    findings = [
        Finding(severity, kind, policy.target, f"targets.{policy.target}: {text}")
        for kind, (severity, check) in _CHECKS.items()
        if subject.tried or kind not in _BY_COUNT
        for text in check(subject)
    ]
    return _errors_first(findings)


def _failing(subject: Subject) -> Iterator[str]:
    for note in dict.fromkeys(subject.failures.values()):
        counts = [count for count, text in subject.failures.items() if text == note]
        yield f"a rule fails at {_counts(counts, subject.policy.spec.facts)}: {note}"


def _flapping(subject: Subject) -> Iterator[str]:
    """With one metric, or several that move together; where there is none of that, with several that move apart."""
    flaps = list(flapping(subject))
    yield from flaps or flapping_apart(subject)


def _counts(counts: Sequence[int], facts: TargetFacts) -> str:
    """`3 instances`, `2 to 5 instances`, `1, 4, 9 instances`, in the unit of the target."""
    if len(counts) > 2 and counts[-1] - counts[0] == len(counts) - 1:
        return f"{counts[0]} to {counts[-1]} {facts.unit}"
    return f"{', '.join(map(str, counts))} {facts.one if tuple(counts) == (1,) else facts.unit}"


def _pointless_thresholds(subject: Subject) -> Iterator[str]:
    """Per rule: a scale-in level that leaves no value to stay at, or that no value can be below."""
    policy = subject.policy
    for rule in subject.rules:
        overlapping: dict[str, list[int]] = defaultdict(list)
        for count in range(policy.minimum, policy.maximum + 1):
            lines = levels_of((rule,), count)
            out = {line.metric: line.value for line in lines if line.direction == "out"}
            inward = {line.metric: line.value for line in lines if line.direction == "in"}
            for metric in out.keys() & inward.keys():
                if inward[metric] > out[metric]:
                    overlapping[metric].append(count)
        for metric, counts in overlapping.items():
            yield (
                f"scaling in of {metric} begins above where scaling out begins at {_counts(counts, policy.spec.facts)}: "
                "values between the two scale out, and no value keeps the count"
            )


def _unreachable_levels(subject: Subject) -> Iterator[str]:
    policy = subject.policy
    counts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for count, lines in subject.levels.items():
        for line in lines:
            if line.direction == "in" and line.value <= 0 and count > policy.minimum:
                counts[line.metric, f"below {number_text(line.value)}"].append(count)
            if line.direction != "in" and line.value >= MAX_VALUE:
                counts[line.metric, f"above {number_text(line.value)}"].append(count)
    # At one unit the level for less of what is kept at a target is 0: that is the formula's, not a slip.
    constant_target = {str(options.get("metric")) for _, options in subject.options("target_per_unit")}
    for (metric, level), per_count in counts.items():
        if metric not in constant_target:
            where = _counts(per_count, policy.spec.facts)
            yield f"{metric} {level} can never be met, at {where}: values are 0 to {MAX_VALUE:g}"


def _one_way(subject: Subject) -> Iterator[str]:
    policy = subject.policy
    if policy.minimum == policy.maximum or subject.failures or policy.learns:
        return  # a rule that learns says something else once it has learned
    periods = [period for _, options in subject.options("schedule") for period in options.get("periods", ())]
    for sign, pace, bound, way in (
        (1, policy.spec.out, "floor", "out"),
        (-1, policy.spec.inward, "ceiling", "in"),
    ):
        wanted = pace.select != "disabled" and not any(bound in period for period in periods)
        if wanted and not subject.moves(sign):
            yield f"no rule ever scales {way}, at any count and under any load"


def _stuck_at_zero(subject: Subject) -> Iterator[str]:
    """Loads that never start a first instance (KEDA calls the level for that the activation value)."""
    if subject.policy.minimum > 0 or subject.failures:
        return
    meant = {name for rule in subject.rules if isinstance(rule, ActivationRule) for name in rule.metrics()}
    facts = subject.policy.spec.facts
    for names, steps in subject.loads.items():
        if len(names) > 1 or not steps.exact or names[0] in meant:
            continue
        row = steps.rows[0]
        idle = [p for p, after in zip(steps.pieces, row, strict=True) if p.high > 0 and after == 0]
        if idle and max(row) > 0:
            idles = f"{names[0]} {span_text(idle, None)}"
            yield f"at 0 {facts.unit} {idles} starts no {facts.one} and stays unprocessed"


def _runaway(subject: Subject) -> Iterator[str]:
    for name, options in subject.options("target_per_unit"):
        metric = subject.policy.spec.metrics.get(options.get("metric", ""))
        if options.get("mode") == "value" and metric is not None and not metric.per_instance:
            yield (
                f"rule '{name}' compares the whole of {options['metric']} with its target (mode 'value'), "
                "so more instances never bring it nearer and the count runs to a bound; use mode "
                "'average_value', or set per_instance = true where the metric does fall"
            )


def _large_steps(subject: Subject) -> Iterator[str]:
    policy = subject.policy
    room = policy.maximum - policy.minimum
    if not room:
        return
    steps = [("out.step", policy.spec.out.step), ("in.step", policy.spec.inward.step)]
    for kind in ("threshold", "composite"):
        for name, options in subject.options(kind):
            steps += [
                (f"{option} of rule '{name}'", options.get(option))
                for option in ("step", "step_out", "step_in")
            ]
    for where, step in steps:
        if step is not None and step > room:
            yield (
                f"{where} is {step}, but from minimum {policy.minimum} to maximum {policy.maximum} it is {room} in all"
            )


def _fixed(subject: Subject) -> Iterator[str]:
    if subject.policy.minimum == subject.policy.maximum:
        yield f"minimum and maximum are both {subject.policy.minimum}: nothing can ever be scaled"


def _unused(subject: Subject) -> Iterator[str]:
    policy = subject.policy
    plateau = policy.spec.plateau.metric if policy.spec.plateau else None
    tried = set(_tried(policy))
    for name in policy.windows:
        if name not in subject.read and name != plateau and name not in tried:
            yield f"metric {name} is collected, but no rule reads it"


def _tried(policy: Policy) -> Iterator[str]:
    if policy.shadow is None or policy.spec.shadow is None:
        return
    yield from (metric for rule in policy.shadow.rules for metric in metrics_of(rule))
    if (queue := policy.spec.shadow.queue) is not None:
        yield from (name for name in (queue.backlog, queue.incoming, queue.outgoing) if name is not None)


def _short_cooldowns(subject: Subject) -> Iterator[str]:
    for way, pace in subject.paces:
        if 0 < pace.cooldown < subject.interval:
            yield (
                f"{way}.cooldown of {duration_text(pace.cooldown)} has no effect: decisions are made every "
                f"{duration_text(subject.interval)}"
            )


def _hasty(subject: Subject) -> Iterator[str]:
    """Changes in more haste than is wise for the kind of target."""
    facts = subject.policy.spec.facts
    for way, pace in subject.paces:
        if max(pace.cooldown, pace.stabilization) < facts.pause:
            yield f"{way}.cooldown of {duration_text(facts.pause)} or more is wise here: {facts.why}"


def _short_notices(subject: Subject) -> Iterator[str]:
    """A drain notice that is over before workers that read it once an interval have seen it."""
    drain = subject.policy.spec.drain
    if drain is not None and drain.notice < subject.interval:
        outcome = "nothing is scaled in" if drain.unacknowledged == "hold" else "they are not waited for"
        yield (
            f"drain.notice is {duration_text(drain.notice)}, and decisions are made every {duration_text(subject.interval)}: workers that read "
            f"notices as often may see it only when it is over, and then {outcome}"
        )


def _spent_changes(subject: Subject) -> Iterator[str]:
    """That the hour's changes may be spent: a change may follow every decision, or every cooldown."""
    most, interval = subject.policy.spec.facts.changes_per_hour, subject.interval
    gaps = [max(pace.cooldown, interval) for _, pace in subject.paces]
    if most is None or not interval or min(gaps) * most >= HOUR:
        return
    kept = changes_reserved_for_out(most)
    yield (
        f"a change may follow the last one after {duration_text(min(gaps))}, but only {most} are made within an hour: after "
        f"{most - kept} of them scale-ins wait, for the last {kept} are for scaling out (changes_per_hour)"
    )


def _short_memory(subject: Subject) -> Iterator[str]:
    """Limits that look back further than is remembered, at one change or decision per collection."""
    interval = subject.interval
    for way, pace in subject.paces:
        longest = max((rate.period for rate in pace.rates), default=0.0)
        if longest > EFFECTS_KEPT * max(interval, pace.cooldown):
            yield (
                f"{way}.rates looks back {duration_text(longest)}, but only the last {EFFECTS_KEPT} changes "
                "are remembered"
            )
        if pace.stabilization > RECOMMENDATIONS_KEPT * interval > 0:
            yield (
                f"{way}.stabilization looks back {duration_text(pace.stabilization)}, but only the last "
                f"{RECOMMENDATIONS_KEPT} recommendations are remembered"
            )


def _sent_once(subject: Subject) -> Iterator[str]:
    """Pending actions are looked after with every evaluation: rare ones may come too late for a lost message."""
    spec, interval = subject.policy.spec, subject.interval
    if spec.effect_timeout + interval > spec.action_ttl:
        yield (
            f"an action whose message is lost may be given up before it is sent again: action_ttl is "
            f"{duration_text(spec.action_ttl)}, effect_timeout {duration_text(spec.effect_timeout)}, and decisions "
            f"are made every {duration_text(interval)}"
        )


def _old_evidence(subject: Subject) -> Iterator[str]:
    """A window longer than the cooldown still holds samples from before the last change."""
    policy = subject.policy
    cooldown = policy.spec.out.cooldown
    lines = next(iter(subject.levels.values()))
    averaged = {line.metric for line in lines if (line.direction, line.statistic) == ("out", "average")}
    for metric in sorted(averaged):
        window = policy.windows.get(metric)
        if window is not None and window.span > cooldown and not policy.spec.out.rates:
            yield (
                f"the window of {metric} ({duration_text(window.span)}) is longer than out.cooldown "
                f"({duration_text(cooldown)}): the average that scales out again still holds samples from "
                "before the last change"
            )


def _not_tried(subject: Subject) -> Iterator[str]:
    if not subject.tried:
        yield "its capacities are request units, or too many to be tried one by one for flapping"


_CHECKS: dict[str, tuple[Severity, Callable[[Subject], Iterator[str]]]] = {
    "rule_fails": (Severity.ERROR, _failing),
    "must_flap": (Severity.ERROR, _flapping),
    "overlapping_thresholds": (Severity.WARNING, _pointless_thresholds),
    "unreachable_threshold": (Severity.WARNING, _unreachable_levels),
    "one_way": (Severity.WARNING, _one_way),
    "stuck_at_zero": (Severity.WARNING, _stuck_at_zero),
    "runaway": (Severity.WARNING, _runaway),
    "large_step": (Severity.WARNING, _large_steps),
    "short_cooldown": (Severity.WARNING, _short_cooldowns),
    "hasty": (Severity.WARNING, _hasty),
    "short_notice": (Severity.WARNING, _short_notices),
    "short_memory": (Severity.WARNING, _short_memory),
    "sent_once": (Severity.WARNING, _sent_once),
    "wait_unmet": (Severity.WARNING, unmet_objectives),
    "unknown_time": (Severity.WARNING, unknown_times),
    "counted_again": (Severity.WARNING, counted_again),
    "counted_in_part": (Severity.WARNING, counted_in_part),
    "other_metric": (Severity.WARNING, other_metrics),
    "unknown_concurrency": (Severity.ERROR, unknown_concurrency),
    "unpeekable_age": (Severity.ERROR, unpeekable_ages),
    "unpaid_floor": (Severity.WARNING, unpaid_floors),
    "never_holds": (Severity.WARNING, never_holding_periods),
    "fixed": (Severity.NOTE, _fixed),
    "calendar_ends": (Severity.NOTE, ended_calendars),
    "spent_changes": (Severity.NOTE, _spent_changes),
    "idle_budget": (Severity.NOTE, never_binds),
    "outlasted_fallback": (Severity.NOTE, outlasted_fallbacks),
    "unused_metric": (Severity.NOTE, _unused),
    "old_evidence": (Severity.NOTE, _old_evidence),
    "unread_text": (Severity.NOTE, unread_texts),
    "not_tried": (Severity.NOTE, _not_tried),
}
_BY_COUNT = frozenset(
    {
        *("rule_fails", "must_flap", "overlapping_thresholds", "unreachable_threshold"),
        *("one_way", "stuck_at_zero", "runaway", "old_evidence"),
    }
)
"""Checks that need capacities to be tried one by one."""
