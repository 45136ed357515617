"""What the HTTP API shows, as typed JSON: the status of targets, and pages of the scaling log. Pure.

Times are seconds since the epoch, durations seconds. A number that is not known is null, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from operator import itemgetter
from typing import Literal

import msgspec
from msgspec import Struct, structs

from scaling.config.policy import MetricSpec, Policy
from scaling.config.policy_file import Config
from scaling.decision import explain
from scaling.decision import pacing as pace
from scaling.decision.orders import policy_in_force
from scaling.drains.draining import open_drain
from scaling.drains.view import DrainView, drain_view
from scaling.log_entry import LogEntry, ShadowSaid
from scaling.model import Direction, Evidence, ExternalChange, Override, Pause, Recommendation, TargetState
from scaling.ports import LogPage, PoisonMessage, Snapshot
from scaling.rules.combine import levels_of
from scaling.rules.service_level.report import ServiceLevelView
from scaling.rules.service_level.rule import ServiceLevelRule
from scaling.service.entries import limited_by
from scaling.shadow.comparison import ShadowView, shadow_view
from scaling.web.budget_view import BudgetView, budget_view
from scaling.window import EMPTY, Window, filling_text, summarize
from tidemark.foundation.version import VERSION
from tidemark.foundation.wording import time_text

MAX_POINTS = 240
"""Samples shown per metric, as many as a chart has pixels on a phone; of a longer window the highest of each part."""

MAX_COUNTS = 200
"""Highest instance count levels are computed for; App Service Plans end at 100."""


class MetricView(Struct, frozen=True):
    """One metric and its window. `quality` is `ok`, `gap` (forbids scaling in), or why rules may not act; `filling` is how far the
    window is, `3 of 5 min`, where it only has to fill.
    """

    name: str
    unit: str
    latest: float | None
    average: float | None
    maximum: float | None
    count: int
    min_samples: int
    covered: float
    span: float
    age: float | None
    quality: str
    failure: str | None
    filling: str | None
    samples: tuple[tuple[float, float], ...]


class LevelView(Struct, frozen=True):
    """A threshold at the present count. `by_count` are (count, value) from 0 on, one pair where the value changes, if it does."""

    metric: str
    statistic: str
    direction: Literal["out", "in", "guard"]
    value: float
    by_count: tuple[tuple[int, float], ...] = ()


class PendingView(Struct, frozen=True):
    """An action whose effect is not recorded yet."""

    action_id: str
    from_capacity: int
    to_capacity: int
    decided_at: float
    expires_at: float


class TargetView(Struct, frozen=True):
    """One target as it stands. `current` is the newest known capacity, `expected` the one we believe in
    (they differ under an external change), both in `unit`; `desired` is where the pending action or the last decision goes.
    `reason` to `limits` are of the last decision, null or empty before the first one. `service_levels` is what each rule
    `service_level` has learned.
    """

    target: str
    scaler: str
    current: int | None
    desired: int | None
    minimum: int
    maximum: int
    ready: int | None
    expected: int | None
    capacity_error: str | None
    pending: PendingView | None
    reason: str | None
    reason_text: str | None
    line: str | None
    decision_id: str | None
    decided_at: float | None
    flips: tuple[str, ...]
    limits: tuple[str, ...]
    metrics: tuple[MetricView, ...]
    levels: tuple[LevelView, ...]
    pauses: tuple[Pause, ...]
    override: Override | None
    dry_run: bool
    external_change: ExternalChange | None
    held_by: str | None
    cooldown_out_until: float | None
    cooldown_in_until: float | None
    missing_since: float | None
    corrupt: tuple[str, ...]
    service_levels: tuple[ServiceLevelView, ...] = ()
    shadow: ShadowView | None = None
    budget: BudgetView | None = None
    interval: float = 60.0
    unit: str = "instances"
    drain: DrainView | None = None


class PoisonView(Struct, frozen=True):
    """`count` messages in all; `messages` are the first few."""

    count: int
    messages: tuple[PoisonMessage, ...]


class StatusView(Struct, frozen=True):
    now: float
    version: str
    collect_interval: float
    targets: tuple[TargetView, ...]
    poison: PoisonView
    problems: tuple[str, ...]
    signed_in: str | None = None
    may_order: bool | None = None


def status_view(
    config: Config,
    snapshots: Mapping[str, Snapshot],
    poison: tuple[int, Sequence[PoisonMessage]] = (0, ()),
    *,
    now: float,
    problems: Sequence[str] = (),
    signed_in: str | None = None,
) -> StatusView:
    """All targets by name, the poison queues, what is wrong with the whole app (`problems`), and who is signed in."""
    targets = tuple(
        target_view(config.policies[name], snapshots[name], now=now) for name in sorted(snapshots)
    )
    left = PoisonView(poison[0], tuple(poison[1]))
    return StatusView(now, VERSION, config.interval, targets, left, tuple(problems), signed_in)


def target_view(policy: Policy, snapshot: Snapshot, *, now: float) -> TargetView:
    """The state, windows and orders of one target as of `now`. Expired orders and cooldowns are left out."""
    state, controls, last = snapshot.state, snapshot.controls, snapshot.state.last
    shadow, policy = shadow_view(policy, state, controls), policy_in_force(policy, controls)
    capacity, current, override = state.capacity, _current(state), controls.override
    return TargetView(
        target=policy.target,
        scaler=policy.spec.scaler,
        unit=policy.spec.facts.unit,
        current=current,
        desired=_desired(state),
        minimum=last.minimum if last else policy.minimum,
        maximum=last.maximum if last else policy.maximum,
        ready=capacity.ready if capacity else None,
        expected=state.expected,
        capacity_error=state.capacity_error,
        pending=_pending(state, now),
        reason=last.reason if last else None,
        reason_text=last.reason.words if last else None,
        line=explain.line(last) if last else None,
        decision_id=last.decision_id if last else None,
        decided_at=last.at if last else None,
        flips=_flips(last),
        limits=_limits(last),
        metrics=tuple(_metric(snapshot, name, spec, now) for name, spec in policy.spec.metrics.items()),
        levels=_levels(policy, current),
        pauses=tuple(pause for pause in controls.pauses if pause.until is None or now < pause.until),
        override=override if override is not None and now < override.until else None,
        dry_run=policy.spec.dry_run if controls.dry_run is None else controls.dry_run,
        external_change=state.external_change,
        held_by=capacity.held_by if capacity else None,
        cooldown_out_until=_cooldown(policy, state, Direction.OUT, now),
        cooldown_in_until=_cooldown(policy, state, Direction.IN, now),
        missing_since=state.missing_since,
        corrupt=snapshot.corrupt,
        service_levels=_service_levels(policy, state),
        shadow=shadow,
        budget=budget_view(policy, state, now=now),
        interval=policy.interval,
        drain=drain_view(state, controls) if open_drain(state) is not None else None,
    )


def _service_levels(policy: Policy, state: TargetState) -> tuple[ServiceLevelView, ...]:
    rules = (rule for rule in policy.flat_rules if isinstance(rule, ServiceLevelRule))
    views = (rule.view(state.memories.get(rule.name)) for rule in rules)
    return tuple(view for view in views if view is not None)


def _pending(state: TargetState, now: float) -> PendingView | None:
    if state.pending is None or now >= state.pending.expires_at:
        return None
    return msgspec.convert(state.pending, PendingView, from_attributes=True)


def _current(state: TargetState) -> int | None:
    """The last reading, unless an effect of ours was read back after it."""
    capacity = state.capacity
    if capacity is None or (state.effects and state.effects[-1].at > capacity.at):
        return state.expected
    return capacity.current


def _desired(state: TargetState) -> int | None:
    last = state.last.desired if state.last else None
    return last if state.pending is None else state.pending.to_capacity


def _cooldown(policy: Policy, state: TargetState, direction: Direction, now: float) -> float | None:
    until = pace.cooldown_until(state.effects, direction, policy.spec.out, policy.spec.inward)
    return until if until is not None and now < until else None


def _metric(snapshot: Snapshot, name: str, spec: MetricSpec, now: float) -> MetricView:
    window = snapshot.windows.get(name, EMPTY)
    summary = summarize(window, spec.window, now=now)
    return MetricView(
        name=name,
        unit=spec.unit,
        latest=_finite(summary.latest),
        average=_finite(summary.average),
        maximum=_finite(summary.maximum),
        count=summary.count,
        min_samples=spec.window.min_samples,
        covered=summary.covered,
        span=spec.window.span,
        age=_finite(summary.age),
        quality=summary.problem or ("gap" if summary.gap else "ok"),
        failure=window.failure.message if window.failure else None,
        filling=filling_text(summary, spec.window),
        samples=_thinned(window),
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _thinned(window: Window) -> tuple[tuple[float, float], ...]:
    """All samples, or the highest one of each part of equally many; always with the newest."""
    points = list(zip(window.times, window.values, strict=True))
    if len(points) <= MAX_POINTS:
        return tuple(points)
    last = points.pop()
    length = -(-len(points) // (MAX_POINTS - 1))
    starts = range(0, len(points), length)
    return (*(max(points[start : start + length], key=itemgetter(1)) for start in starts), last)


_LineKey = tuple[str, str, Literal["out", "in", "guard"], int]


def _levels_at(policy: Policy, count: int) -> dict[_LineKey, float]:
    """Levels by what they are, so that those of different counts can be joined to one line."""
    levels: dict[_LineKey, float] = {}
    for line in levels_of(policy.rules, count):
        same = sum(key[:3] == (line.metric, line.statistic, line.direction) for key in levels)
        levels[line.metric, line.statistic, line.direction, same] = line.value
    return levels


def _levels(policy: Policy, current: int | None) -> tuple[LevelView, ...]:
    """Levels at the present count (at the minimum while it is unknown), and how they change with it."""
    now = _levels_at(policy, policy.minimum if current is None else current)
    top = min(max(policy.maximum, current or 0), MAX_COUNTS)
    tables = [_levels_at(policy, count) for count in range(top + 1)]
    views: list[LevelView] = []
    for key, value in ((key, value) for key, value in now.items() if isfinite(value)):
        pairs = [(n, table[key]) for n, table in enumerate(tables) if key in table and isfinite(table[key])]
        steps = pairs[:1] + [after for before, after in pairwise(pairs) if after[1] != before[1]]
        metric, statistic, direction, _ = key
        views.append(LevelView(metric, statistic, direction, value, tuple(steps) if len(steps) > 1 else ()))
    return tuple(views)


def orders_text(view: TargetView) -> tuple[str, ...]:
    """What operators have ordered for a target, a line each."""
    lines = [
        f"scaling {pause.direction or 'in both directions'} paused "
        f"{'until resumed' if pause.until is None else f'until {time_text(pause.until)}'}, by {pause.by}"
        for pause in view.pauses
    ]
    if (override := view.override) is not None:
        lines.append(f"override to {override.capacity} until {time_text(override.until)}, by {override.by}")
    if view.dry_run:
        lines.append("dry-run: decisions are logged, and nothing is changed")
    if (shadow := view.shadow) is not None and shadow.promoted_at is not None:
        lines.append(
            f"shadow promoted at {time_text(shadow.promoted_at)}, by {shadow.promoted_by}: it decides"
        )
    return tuple(lines)


# -- the scaling log


class EvidenceView(Evidence, frozen=True):
    """The numbers of a rule, with the same in words."""

    text: str = ""


class EffectView(Struct, frozen=True):
    outcome: str
    from_capacity: int
    reached: int | None
    detail: str


class EntryView(Struct, frozen=True):
    """One row of the scaling log. (`target`, `at`, `kind`, `key`) identify it; a row seen again replaces.

    `limited_by` are the reasons for which less was done than was wanted; `limits` has them in words.
    """

    target: str
    at: float
    kind: str
    key: str
    line: str
    reason: str
    current: int | None
    desired: int | None
    by: str | None
    metrics: dict[str, float]
    decision_id: str | None = None
    proposed: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    evidence: tuple[EvidenceView, ...] = ()
    flips: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    limited_by: tuple[str, ...] = ()
    effect: EffectView | None = None
    shadow: ShadowSaid | None = None


class LogView(Struct, frozen=True):
    """Newest first; `continuation` is null at the end."""

    entries: tuple[EntryView, ...]
    continuation: str | None


def log_view(page: LogPage) -> LogView:
    return LogView(tuple(_entry(entry) for entry in page.entries), page.continuation)


def _entry(entry: LogEntry) -> EntryView:
    decided, effect = entry.recommendation, entry.effect
    shown = structs.replace(
        msgspec.convert(entry, EntryView, from_attributes=True),
        metrics={name: value for name, value in entry.metrics.items() if isfinite(value)},
        decision_id=decided.decision_id if decided else effect.action_id if effect else None,
    )
    if decided is None:
        return shown
    return structs.replace(
        shown,
        proposed=decided.proposed,
        minimum=decided.minimum,
        maximum=decided.maximum,
        evidence=tuple(
            EvidenceView(**structs.asdict(e), text=explain.evidence_text(e)) for e in decided.evidence
        ),
        flips=_flips(decided),
        limits=_limits(decided),
        limited_by=limited_by(decided),
    )


def _flips(decided: Recommendation | None) -> tuple[str, ...]:
    return explain.flip_texts(decided) if decided else ()


def _limits(decided: Recommendation | None) -> tuple[str, ...]:
    return tuple(explain.limit_text(limit) for limit in decided.limits) if decided else ()
