"""How the stored state of a target changes: on a report, a decision, an effect, a check. Pure.

report    -> absorb()                        windows and capacity as known now
decision  -> advance()                       what must be remembered of it, the pending action included
effect    -> pending_action.record_effect()  the pending action is done; cooldowns start here
check     -> review()                        is the effect there, did an external change move the target
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from scaling.budget.allowance import allowance_of
from scaling.budget.spending import spent_by
from scaling.config.policy import Policy
from scaling.decision.pending_action import (
    Review,
    correct_future_actions,
    found_effect,
    leads_to,
    may_be_ours,
    note_external_change,
    pursue,
    record_effect,
    withdraw,
    withdrawal,
)
from scaling.decision.reconsider import held_until, stays_pending
from scaling.decision.seen import as_advised, bounded_doubt, is_from_before, view_of
from scaling.drains.draining import announce_drain
from scaling.measuring.memories import with_own_levels, with_own_memories
from scaling.measuring.windows import as_asked, begun_anew, windows_after_report
from scaling.model import (
    Capacity,
    Controls,
    Delivery,
    ExternalChange,
    MetricsReport,
    Reason,
    Recommendation,
    ScaleAction,
    TargetState,
)
from scaling.rules.combine import MAX_MEMORY, memory_name, safe_learn
from scaling.window import (
    CLOCK_TOLERANCE,
    COVERAGE_SLACK,
    NO_WINDOWS,
    Window,
    samples_missing,
)

REPORTS_REMEMBERED = 32
"""Report times kept to recognise a second delivery. Chosen: eight minutes of a report every 15 s, half an hour of
one a minute; a queue redelivers within minutes.
"""

RECOMMENDATIONS_KEPT = 2_000
"""For stabilization windows. Chosen: eight hours of reports every 15 s, 115 KB of the row of 1 MiB (see `window.MAX_TARGET_SAMPLES`)."""

MEMORIES_KEPT = 8
"""Memories of rules in a target's row, those written last. Chosen: a target has at most four rules that learn, and as
many that were removed stay, because somebody may have taken one out for an hour.
"""


def already_evaluated(state: TargetState, at: float, *, now: float) -> bool:
    """True for a report that was decided upon, or is older than everything remembered."""
    seen = [known for known in state.evaluated if known <= now + CLOCK_TOLERANCE]
    return at in seen or (len(seen) >= REPORTS_REMEMBERED and at < seen[0])


def is_overtaken(policy: Policy, state: TargetState, at: float, *, now: float) -> bool:
    """True for a report of `at` that only fills windows: it waited, or a newer one was decided upon, and the capacity that it
    reports was changed since. Each of many reports that waited in the queue would take a step on the same data.

    What is ahead of this clock overtakes nothing: clocks of instances differ.
    """
    changed_at = max((effect.at for effect in state.effects[-1:] if effect.at <= now), default=-inf)
    newest = max((known for known in state.evaluated if known <= now), default=-inf)
    return at < changed_at and (at < newest or now - at > COVERAGE_SLACK * policy.interval)


def remember_report(state: TargetState, at: float) -> TargetState:
    """The state after a report that only filled windows, so that a second delivery of it is recognised."""
    evaluated = tuple(sorted((*state.evaluated, at)))[-REPORTS_REMEMBERED:]
    return msgspec.structs.replace(state, evaluated=evaluated)


def absorb(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    report: MetricsReport,
    *,
    now: float,
    controls: Controls,
) -> tuple[dict[str, Window], TargetState]:
    """Windows and state after a report: samples at their times, capacity reconciled with what we believe.

    A metric the policy has but the report does not mention counts as failed: unknown is not zero.
    """
    state = correct_future_times(state, now)
    updated = windows_after_report(policy, windows, report, now=now)
    state = with_own_levels(policy, state, begun_anew(windows, updated))
    state = _reconciled(policy, state, report, now=now, controls=controls)
    state = recommend_over_gap(policy, state, state.evaluated[-1:], report.at, now=now)
    state = learn_from_report(policy, updated, state, now=now)
    return updated, count_spending(policy, state, now=now)


def correct_future_times(state: TargetState, now: float) -> TargetState:
    """Without what is further ahead than clocks may be. Effects were there: as far ahead as that at most."""
    latest, last = now + CLOCK_TOLERANCE, state.last
    if last is not None and last.at > latest:
        state = correct_future_actions(state, now)
    evaluated, recommendations, effects = state.evaluated, state.recommendations, state.effects
    newest = [
        *evaluated[-1:],
        *(at for at, _ in recommendations[-1:]),
        *(effect.at for effect in effects[-1:]),
    ]
    if max(newest, default=latest) <= latest:
        return state
    return msgspec.structs.replace(
        state,
        evaluated=tuple(at for at in evaluated if at <= latest),
        recommendations=tuple(known for known in recommendations if known[0] <= latest),
        effects=tuple(msgspec.structs.replace(effect, at=min(effect.at, latest)) for effect in effects),
    )


def recommend_over_gap(
    policy: Policy, state: TargetState, before: Sequence[float], at: float, *, now: float
) -> TargetState:
    """With the present capacity as recommended, where nothing was decided between the report `before`, if any, and this
    one `at`, or nothing is remembered: stabilization goes by what is known of its whole window.
    """
    if policy.memory <= 0 or state.expected is None:
        return state
    known = state.recommendations
    spec = min(policy.windows.values(), key=lambda window: window.interval, default=None)
    if known and not (before and spec is not None and samples_missing(before[-1], at, spec)):
        return state
    return msgspec.structs.replace(state, recommendations=(*known, (now, state.expected)))


def count_spending(policy: Policy, state: TargetState, *, now: float) -> TargetState:
    """With what is spent of a day's budget; nothing while there never was a capacity. That it will not last is noted once a
    day, for `budget_warning`.
    """
    budget = policy.spec.budget
    if budget is None or state.expected is None:
        return state
    spent = spent_by(budget, state, now=now)
    state = msgspec.structs.replace(state, spent=spent)
    allowance = None if spent.warned else allowance_of(policy, state, now=now)
    if allowance is None or not allowance.will_bind():
        return state
    return msgspec.structs.replace(state, spent=msgspec.structs.replace(spent, warned=True))


def budget_warning(policy: Policy, before: TargetState, after: TargetState, *, now: float) -> str | None:
    """The warning that the budget will bind before the day ends, at the report that found it out; None at all others."""
    known, spent = before.spent, after.spent
    if spent is None or not spent.warned or (known is not None and known.warned and known.day == spent.day):
        return None
    allowance = allowance_of(policy, after, now=now)
    return None if allowance is None else allowance.warning()


def learn_from_report(
    policy: Policy, windows: Mapping[str, Window], state: TargetState, *, now: float
) -> TargetState:
    """With what the rules that learn remember of it; nothing while it is not known what there is to serve with."""
    capacity = state.capacity
    if not policy.learns:
        return msgspec.structs.replace(state, unlearned={}) if state.unlearned else state
    if capacity is None or state.capacity_error is not None or state.expected is None:
        return state
    expected, state = state.expected, with_own_memories(policy, windows, state)
    view = view_of(policy, as_asked(policy, windows), state, capacity, expected, now=now)
    memories: Mapping[str, bytes] = state.memories
    faults: dict[str, str] = {}
    for rule in policy.flat_rules:
        memories = safe_learn(rule, memories, view, faults)
    if memories is not state.memories:
        memories = _with_room(
            {memory_name(rule) for rule in policy.flat_rules}, state.memories, memories, faults
        )
    if memories is state.memories and faults == state.unlearned:
        return state
    return msgspec.structs.replace(state, memories=dict(memories), unlearned=faults)


def _with_room(
    present: set[str], before: Mapping[str, bytes], after: Mapping[str, bytes], faults: dict[str, str]
) -> dict[str, bytes]:
    """As many memories as a row has room for: those of rules that were removed go first, the oldest one before others; then
    what was learned now is not kept, the largest one before others.
    """
    kept = dict([*after.items()][-MEMORIES_KEPT:])
    removed = [name for name in kept if name not in present]
    while sum(map(len, kept.values())) > MAX_MEMORY:
        if removed:
            del kept[removed.pop(0)]
            continue
        name = max(kept, key=lambda name_: (kept[name_] != before.get(name_), len(kept[name_])))
        faults[name] = f"all rules together would remember more than the {MAX_MEMORY} bytes that are kept"
        if kept[name] == before.get(name) or name not in before:
            del kept[name]
        else:
            kept[name] = before[name]
    return kept


def _reconciled(
    policy: Policy, state: TargetState, report: MetricsReport, *, now: float, controls: Controls
) -> TargetState:
    capacity = report.capacity
    known_at = -inf if state.capacity is None else state.capacity.at
    if known_at > now + CLOCK_TOLERANCE:  # what is further ahead than clocks may be outranks nothing
        known_at = -inf
    if capacity is None:
        if report.at < known_at:
            return state
        return msgspec.structs.replace(
            state, capacity_error=report.capacity_error or "the capacity is not in the report"
        )
    capacity = bounded_doubt(policy, state.capacity, as_advised(state, capacity))
    # Read ahead of this clock, it would outrank every true reading until then.
    capacity = msgspec.structs.replace(capacity, at=min(capacity.at, now))
    if capacity.at < known_at:
        return state  # a late report; a newer reading is already known
    state = msgspec.structs.replace(state, capacity=capacity, capacity_error=None)
    gone = state.pending if state.pending is not None and now >= state.pending.expires_at else None
    if gone is not None and (late_effect := found_effect(state, gone, capacity)):
        state = record_effect(state, late_effect)  # before that it is left to the check, which also logs it
    return reconcile_capacity(policy, state, capacity, now=now, controls=controls)


def reconcile_capacity(
    policy: Policy, state: TargetState, capacity: Capacity, *, now: float, controls: Controls
) -> TargetState:
    """Reconciles a reading with what we expect. An external change is noted, held on, then adopted."""
    replace = msgspec.structs.replace
    if state.expected is None:
        # As the HPA does: the first capacity seen counts as recommended, so that a start is not a scale-in.
        first = ((now, capacity.current),) if policy.memory > 0 else ()
        return replace(state, expected=capacity.current, recommendations=first, external_change=None)
    if capacity.current == state.expected:
        return replace(state, external_change=None)
    if capacity.pending:
        return state  # on its way, it is not known where to
    if is_from_before(policy, state, capacity.current, capacity.at):
        return state
    if state.pending is not None and leads_to(state, state.pending, capacity.current):
        return state  # our own action, its effect not recorded yet
    if state.pending is None and may_be_ours(policy, state, capacity, now=now):
        return state  # our own, though it was withdrawn; `pursue` records it
    external = state.external_change
    if external is None or external.seen != capacity.current:
        external = ExternalChange(capacity.current, state.expected, now)
    cleared = controls.external_cleared_at is not None and controls.external_cleared_at >= external.at
    if cleared or now - external.at >= policy.spec.external_hold:
        return replace(state, expected=capacity.current, external_change=None)
    return note_external_change(state, external)


def advance(
    policy: Policy,
    state: TargetState,
    recommendation: Recommendation,
    *,
    report_at: float,
    level: float | None,
    announces: bool = True,
) -> tuple[TargetState, ScaleAction | None]:
    """The state to save after a decision, and the action to emit once it is saved.

    `level` is the plateau metric now (None when unknown or unused). Only with `announces` a scale-in waits for workers. The action stays pending until its effect is recorded,
    so `pursue` can emit it again should it be lost, or for the first time where the platform or its workers are waited for.
    """
    now = recommendation.at
    action = _action(policy, recommendation) if recommendation.acts else None
    if withdrawal(state, recommendation) is not None:
        state = withdraw(state, now)
    if action is not None and (withdrawn := state.withdrawn) is not None:
        late = now >= withdrawn.expires_at + policy.spec.effect_timeout
        action = msgspec.structs.replace(action, replaces=None if late else withdrawn.may_lead_to)
    pending = state.pending if stays_pending(state, recommendation) else None
    held = held_until(state, recommendation.reason, now)
    delivery = state.delivery if pending else None
    drain = None
    if action is not None:
        action, drain = announce_drain(policy, action) if announces else (action, None)
        delivery = Delivery(held or now + (policy.spec.effect_timeout if drain is None else 0.0))
    return (
        msgspec.structs.replace(
            state,
            evaluated=tuple(sorted((*state.evaluated, report_at)))[-REPORTS_REMEMBERED:],
            pending=action or pending,
            pending_level=level if action else state.pending_level if pending else None,
            pending_accepted=state.pending_accepted if pending and not action else None,
            delivery=delivery,
            recommendations=_recommended(policy, state, recommendation),
            missing_since=_missing_since(state, recommendation),
            corrupt_since=state.corrupt_since if recommendation.reason in _STILL_CORRUPT else None,
            last=recommendation,
            drain=drain or state.drain,
        ),
        action if held is None and drain is None else None,
    )


_STILL_CORRUPT = frozenset({Reason.STATE_CORRUPT, Reason.CAPACITY_UNKNOWN})


def _recommended(policy: Policy, state: TargetState, r: Recommendation) -> tuple[tuple[float, int], ...]:
    """What stabilization looks back on, with this one.

    Where the rules could not say, the present capacity counts as recommended, or what was recommended last if that is
    more: what is not known ends no wish for more, and is none for less.
    """
    proposed, before = r.proposed, state.recommendations
    if policy.memory <= 0 or (proposed is None and r.current is None):
        return before
    if proposed is None:
        proposed = max((r.current or 0, *(count for _, count in before[-1:])))
    cutoff = r.at - policy.memory
    kept = (known for known in before[-RECOMMENDATIONS_KEPT:] if known[0] > cutoff)
    return (*kept, (r.at, proposed))


def _missing_since(state: TargetState, r: Recommendation) -> float | None:
    """Since when metrics that are not read keep the rules from voting, whatever else held the decision back meanwhile."""
    if r.reason is Reason.CAPACITY_UNKNOWN:
        return state.missing_since  # the rules were not asked
    if not r.unread:
        return None
    return r.at if state.missing_since is None else min(state.missing_since, r.at)  # clocks may be put right


def _action(policy: Policy, r: Recommendation) -> ScaleAction:
    assert r.current is not None and r.desired is not None  # `acts` implies both
    until = r.at + policy.spec.action_ttl
    return ScaleAction(r.decision_id, r.target, r.current, r.desired, r.at, until, r.reason)


def review(
    policy: Policy,
    state: TargetState,
    capacity: Capacity,
    *,
    now: float,
    controls: Controls,
    windows: Mapping[str, Window] = NO_WINDOWS,
) -> Review:
    """Compares what was requested with what was reached.

    A capacity nobody here asked for is an external change. For a pending action, and `windows`, see `pursue`.
    """
    capacity = bounded_doubt(policy, state.capacity, as_advised(state, capacity))
    review_ = pursue(policy, state, capacity, now=now, controls=controls, windows=windows)
    if state.pending is not None or review_.findings:
        return review_
    before = state.external_change
    after = reconcile_capacity(
        policy,
        msgspec.structs.replace(state, capacity=capacity, capacity_error=None),
        capacity,
        now=now,
        controls=controls,
    )
    if after.external_change is not None and (before is None or before.seen != after.external_change.seen):
        text = f"expected {after.external_change.expected}, found {after.external_change.seen}: somebody else changed it"
    elif before is not None and after.external_change is None:
        text = f"capacity {after.expected} is taken over after somebody else set it"
    else:
        return Review(after)
    return Review(after, findings=((Reason.EXTERNAL_CHANGE, text),))
