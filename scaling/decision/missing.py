"""What is missing from a target's metrics, what would end that, and what the rules say all the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, product
from math import ceil, prod

from msgspec import structs

from scaling.config.policy import Policy
from scaling.decision.explain import COLLECTING
from scaling.flip import Condition, Conditions, Flip
from scaling.model import Reason, Verdict
from scaling.rules.combine import PROBLEMS, combine, safe_evaluate
from scaling.rules.view import MetricsView
from scaling.window import COVERAGE_SLACK, Summary, WindowSpec, filling_text
from tidemark.foundation.wording import count_text


def first_missing(view: MetricsView) -> tuple[str, Reason] | None:
    """The first metric that is not whole, with the reason; a gap is an incomplete window.

    Not only what the rules read: nothing is scaled in while anything configured to be watched is unknown.
    """
    for name, summary in view.metrics().items():
        if summary.problem is not None:
            return name, summary.problem
        if summary.gap:
            return name, summary.lacking or Reason.INCOMPLETE_WINDOW
    return None


def collecting(view: MetricsView, specs: Mapping[str, WindowSpec]) -> str:
    """`collecting backlog, 3 of 5 min` for the metrics whose windows fill, if that is all that is missing; else ''."""
    missing = {name: summary for name, summary in view.metrics().items() if summary.problem is not None}
    texts = {name: filling_text(summary, specs[name]) for name, summary in missing.items() if name in specs}
    texts_known = [f"{name}, {text}" for name, text in texts.items() if text is not None]
    return (
        f"{COLLECTING} {'; '.join(texts_known)}" if texts_known and len(texts_known) == len(missing) else ""
    )


UNREAD = frozenset({Reason.COLLECT_FAILED, Reason.STALE_METRIC, Reason.INVALID_METRIC})
"""Reasons of a metric of which nothing is known now. A window that fills is read, and a disabled entity answered."""


def unread_keeps_from_voting(policy: Policy, view: MetricsView) -> bool:
    """Whether the rules do not vote because a metric is not read: the time of `[fallback]` runs then, and only then.

    Windows that fill or lack a sample, a default on which less is wanted, and a rule that fails by itself keep rules from
    voting, too, though every metric is read. So the rules are asked again as if no window had to fill. Of disabled
    entities alone nothing is unread: more units would receive nothing.
    """
    summaries = view.metrics().values()
    never_read = any(s.problem is Reason.INCOMPLETE_WINDOW and not s.count for s in summaries)
    if not never_read and UNREAD.isdisjoint(summary.problem for summary in summaries):
        return False
    filled = view.once_filled()
    verdict = combine([safe_evaluate(rule, filled) for rule in policy.flat_rules], view.current)
    return verdict.desired is None and verdict.reason in PROBLEMS


def missing_conditions(view: MetricsView, specs: Mapping[str, WindowSpec], *, gaps: bool) -> Conditions:
    """What every metric that is not whole still needs; together they change the outcome.

    A gap counts only where it forbids something (`gaps`). With no metric to blame, a rule failed.
    """
    conditions: list[Condition] = []
    for name, spec in specs.items():
        summary = view.metric(name)
        if summary.problem is not None or (gaps and summary.gap):
            conditions.append(_condition(name, summary, spec))
    return tuple(conditions) or (Condition("failures", "==", 0.0),)


def _condition(name: str, summary: Summary, spec: WindowSpec) -> Condition:
    problem = summary.problem or summary.lacking
    if problem is Reason.STALE_METRIC:
        return Condition(f"age {name}", "<=", spec.stale_after)
    if problem is Reason.ENTITY_DISABLED:
        return Condition(f"receiving {name}", "==", 0.0)
    if problem not in {None, Reason.INCOMPLETE_WINDOW}:
        return Condition(f"failures {name}", "==", 0.0)
    if summary.gap and summary.count:
        return _whole(name, summary, spec)
    if summary.count < spec.min_samples:
        return Condition(f"samples {name}", ">=", float(spec.min_samples))
    return Condition(f"span {name}", ">=", spec.span - COVERAGE_SLACK * spec.interval)


def _whole(name: str, summary: Summary, spec: WindowSpec) -> Condition:
    whole = summary.count + summary.missing if spec.schedule else ceil(spec.span / spec.interval)
    return Condition(f"samples {name}", ">=", float(max(whole, spec.min_samples)))


def verdicts_of(policy: Policy, view: MetricsView) -> list[Verdict]:
    """What the rules say. Where they want less while samples are missing, within tolerance, they are asked again with these
    as high as the highest of their windows, and as low as the lowest, in every combination, for of some metrics less asks
    for more capacity, and of two the one may be high while the other is low: nothing is scaled in on an optimistic guess,
    and nothing is scaled out on a guess at all.
    """
    current = view.current
    verdicts = [safe_evaluate(rule, view) for rule in policy.flat_rules]
    if all(v.desired is None or v.desired >= current for v in verdicts):  # as nearly always
        return verdicts
    wanted = combine(verdicts, current).desired
    if wanted is None or wanted >= current:
        return verdicts
    missing = {name: count for name, count in view.missing().items() if policy.may_read(name)}
    if not missing:
        return verdicts
    guesses = _guesses(missing)
    if guesses is None:
        return [_held(policy, view, combine(verdicts, current), missing, None)]
    for high in guesses:
        worst = view.assuming(high)
        careful = [safe_evaluate(rule, worst) for rule in policy.flat_rules]
        said = combine(careful, current)
        if said.desired is None or said.desired >= current:
            return [_held(policy, view, said, missing, high)]
        if said.desired > wanted:
            verdicts, wanted = careful, said.desired
    return verdicts


GUESSES = 512
"""Most combinations tried of what missing samples may have been. Chosen: they take some milliseconds of an expression."""


def _guesses(missing: Mapping[str, int]) -> Iterator[dict[str, int]] | None:
    """How many of the missing samples of each metric were high: all, none, then every combination; where these are too many,
    all or none of each metric, which is enough for rules that go one way with each; None where these are too many, too.
    """
    levels = {name: range(count + 1) for name, count in missing.items()}
    if prod(map(len, levels.values())) > GUESSES:
        levels = {name: range(0, count + 1, count) for name, count in missing.items()}
    if prod(map(len, levels.values())) > GUESSES:
        return None
    mixed = (dict(zip(levels, highs, strict=True)) for highs in product(*levels.values()))
    return chain([dict(missing), dict.fromkeys(missing, 0)], mixed)


def _held(
    policy: Policy,
    view: MetricsView,
    said: Verdict,
    missing: Mapping[str, int],
    high: Mapping[str, int] | None,
) -> Verdict:
    """To stay, for what is missing might forbid to scale in."""
    whole = tuple(_whole(name, view.metric(name), policy.windows[name]) for name in missing)
    lacking = ", ".join(f"{name} lacks {count_text(count, 'sample')}" for name, count in missing.items())
    return structs.replace(
        said,
        desired=view.current,
        reason=Reason.INCOMPLETE_WINDOW,
        flips=(Flip(Reason.SCALE_IN, whole),),
        note=f"{lacking}; {_were(missing, high)}",
    )


def _were(missing: Mapping[str, int], high: Mapping[str, int] | None) -> str:
    """The guess with which nothing would be scaled in, in words."""
    if high is None:
        return "what these were has too many combinations to be tried, so nothing is scaled in"
    if high == missing:
        what = "they as high as the highest of the window"
    elif not any(high.values()):
        what = "they as low as the lowest of the window"
    else:
        counts = (f"{high[name]} of {name}" for name in missing if high[name])
        what = f"{' and '.join(counts)} as high as the highest of the window, and the others as low as the lowest"
    return f"were {what}, nothing would be scaled in"
