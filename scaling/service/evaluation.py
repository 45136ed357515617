"""The steps of one evaluation that need nothing from outside: what a report changes, and what is written of it. Pure.

`scaling.service.autoscaler` calls them in order, between loading and saving.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs

from scaling.analysis.replay import encode_inputs
from scaling.config.policy import Policy
from scaling.decision import explain
from scaling.decision.orders import policy_in_force
from scaling.decision.pending_action import Review, pursue, with_withdrawal
from scaling.decision.seen import known_values, plateau_level
from scaling.decision.transitions import (
    absorb,
    advance,
    budget_warning,
    remember_report,
)
from scaling.log_entry import LogEntry
from scaling.measuring.windows import anew_text, as_asked, begun_anew, dropped_texts, windows_after_report
from scaling.model import Controls, MetricsReport, Pause, Reason, Recommendation, ScaleAction, TargetState
from scaling.ports import Snapshot
from scaling.service.entries import (
    decision_entry,
    effects_of,
    entry_line,
    finding_entries,
    findings_of,
    lateness_of,
    learning_failures,
)
from scaling.shadow.beside import Beside, exchange_memories
from scaling.shadow.comparison import promotion_news
from scaling.window import Window

LINE_CHARS = 4_000
"""Characters of a decision's line that travel with its action: a queue message holds 48 KiB."""


class Evaluated(Struct, frozen=True, kw_only=True):
    """What an evaluation leaves to be written: `state` and `windows`, rows of the log, an action to send, lines to log."""

    state: TargetState
    windows: dict[str, Window]
    action: ScaleAction | None = None
    entries: tuple[LogEntry, ...] = ()
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class DecisionBasis(Struct, frozen=True, kw_only=True):
    """A target after a report was taken in, before it is decided on.

    `policy` has the rules that decide: after a promotion those of the shadow. `stored` are all windows, `windows` those that may be decided by. `review` is what became of the pending action.
    `orders_known` is false where stored orders cannot be read. `promotion` is the end of a promotion, in words.
    """

    policy: Policy
    controls: Controls
    orders_known: bool
    stored: dict[str, Window]
    windows: Mapping[str, Window]
    review: Review
    promotion: str | None
    warnings: tuple[str, ...]

    @property
    def state(self) -> TargetState:
        return self.review.state

    @property
    def known(self) -> tuple[Policy, Mapping[str, Window], TargetState, Controls]:
        return self.policy, self.windows, self.state, self.controls


def take_in(configured: Policy, loaded: Snapshot, report: MetricsReport, *, now: float) -> DecisionBasis:
    """Reads what is stored, puts the report into it, and looks after the pending action."""
    controls, stored = controls_of(loaded, now), loaded.state
    if "state" in loaded.corrupt:
        stored = TargetState(corrupt_since=now)
    orders_known = "controls" not in loaded.corrupt  # or it would look as if a promotion had ended
    promotion = promotion_news(configured, stored, controls)
    if orders_known:
        stored = exchange_memories(configured, stored, controls)
    policy = policy_in_force(configured, controls)
    before = loaded.windows
    kept, state = absorb(policy, before, stored, report, now=now, controls=controls)
    windows, anew = as_asked(policy, kept), begun_anew(before, kept)
    if anew and state.shadow:
        state = structs.replace(state, shadow=b"")
    readable = state.capacity if state.capacity_error is None else None
    review = pursue(policy, state, readable, now=now, controls=controls, windows=windows)
    findings = [(Reason.INCOMPLETE_WINDOW, anew_text(name, kept[name])) for name in anew]
    if (text := budget_warning(policy, stored, review.state, now=now)) is not None:
        findings.append((Reason.OVER_BUDGET, text))
    if findings:
        review = structs.replace(review, findings=(*review.findings, *findings))
    return DecisionBasis(
        policy=policy,
        controls=controls,
        orders_known=orders_known,
        stored=kept,
        windows=windows,
        review=review,
        promotion=promotion,
        warnings=(
            *(f"scaling {configured.target}: stored '{part}' was unreadable" for part in loaded.corrupt),
            *_dropped(policy, kept, report),
        ),
    )


def remember(
    basis: DecisionBasis, made: Recommendation, report_at: float, *, now: float
) -> tuple[TargetState, ScaleAction | None]:
    """The state after a decision, and the action to send; both carry the line of the decision."""
    level = plateau_level(basis.policy, basis.windows, now=now)
    after, action = advance(basis.policy, basis.state, made, report_at=report_at, level=level)
    if after.pending is None or after.pending.action_id != made.decision_id:
        return after, action
    ordered = structs.replace(after.pending, line=explain.line(made)[:LINE_CHARS])
    return structs.replace(after, pending=ordered), None if action is None else ordered


def to_write(
    basis: DecisionBasis,
    report: MetricsReport,
    made: Recommendation,
    after: TargetState,
    action: ScaleAction | None,
    shadow: Beside,
    *,
    now: float,
) -> Evaluated:
    """What is to be written and sent of a decision."""
    policy, windows, state = basis.policy, basis.windows, basis.state
    inputs = encode_inputs(policy, windows, state, basis.controls, now=now, decision_id=made.decision_id)
    entry = decision_entry(report, made, known_values(policy, windows, now=now), inputs, shadow.said)
    review = with_withdrawal(basis.review, made)
    findings = finding_entries("scaling", policy.target, report.at, review, state.expected, basis.promotion)
    sent_again = review.emit if after.pending == review.emit else None
    return Evaluated(
        state=structs.replace(after, shadow=shadow.shadow),
        windows=basis.stored,
        action=action or sent_again,
        entries=(*findings, entry),
        lines=(*effects_of(findings), entry_line(entry, lateness_of(policy, after), policy.durations)),
        warnings=(
            *basis.warnings,
            *learning_failures(policy.target, after),
            *findings_of(findings),
            *shadow.warnings,
        ),
    )


def fill_windows(policy: Policy, loaded: Snapshot, report: MetricsReport, *, now: float) -> Evaluated:
    """Puts the samples of a report that a change has overtaken into their windows, and decides nothing."""
    rules = policy_in_force(policy, controls_of(loaded, now))
    line = (
        f"scaling {report.target}: the report of {now - report.at:.0f} s ago is of before the last change; "
        "it fills windows"
    )
    windows = windows_after_report(rules, loaded.windows, report, now=now)
    return Evaluated(
        state=remember_report(loaded.state, report.at),
        windows=windows,
        lines=(line,),
        warnings=_dropped(rules, windows, report),
    )


def _dropped(policy: Policy, windows: Mapping[str, Window], report: MetricsReport) -> tuple[str, ...]:
    return tuple(f"scaling {policy.target}: {text}" for text in dropped_texts(policy, windows, report))


def controls_of(loaded: Snapshot, now: float) -> Controls:
    """Operators' orders; where they cannot be read there may be a pause among them, so all is paused."""
    if "controls" in loaded.corrupt:
        return Controls(pauses=(Pause("unreadable orders; give any order, which replaces all of them", now),))
    return loaded.controls
