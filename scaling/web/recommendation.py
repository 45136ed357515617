"""What a target should be set to, for those who carry it out themselves: KEDA, a pipeline, a person. Pure."""

from __future__ import annotations

from msgspec import Struct

from scaling.config.policy import Policy
from scaling.decision import explain
from scaling.decision.orders import policy_in_force
from scaling.model import Reason
from scaling.ports import Snapshot
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.wording import duration_text

LATE = 3
"""Intervals without a decision after which the last one is no advice any more."""

START = 60.0
"""Seconds on top of these, for a cold start."""


class NoAdviceError(TidemarkError):
    """There is nothing to go by: never a number that somebody would set."""


class RecommendationView(Struct, frozen=True):
    """`desired` is the number to set, in `unit`; in a dry-run, and while nothing is to change, what there is already."""

    target: str
    desired: int
    current: int | None
    unit: str
    minimum: int
    maximum: int
    reason: str
    line: str
    decided_at: float
    decision_id: str
    dry_run: bool


def recommendation_of(
    policy: Policy, snapshot: Snapshot, *, interval: float, now: float
) -> RecommendationView:
    """The newest decision as advice. Raises NoAdviceError while there is none, or it is old, or says nothing."""
    state, controls = snapshot.state, snapshot.controls
    policy, last = policy_in_force(policy, controls), state.last
    if last is None:
        raise NoAdviceError(f"{policy.target}: no decision yet")
    late = LATE * interval + START
    if now - last.at > late:
        text = f"the last decision is {duration_text(now - last.at)} old, and one is due every {duration_text(interval)}"
        raise NoAdviceError(f"{policy.target}: {text}")
    pending = state.pending
    desired = last.current if last.reason is Reason.DRY_RUN else last.desired
    if pending is not None and now < pending.expires_at:
        desired = pending.to_capacity
    if desired is None or state.capacity_error is not None:
        raise NoAdviceError(
            f"{policy.target}: {state.capacity_error or last.note or 'the capacity is not known'}"
        )
    return RecommendationView(
        target=policy.target,
        desired=desired,
        current=state.expected,
        unit=policy.spec.facts.unit,
        minimum=last.minimum,
        maximum=last.maximum,
        reason=last.reason,
        line=explain.line(last),
        decided_at=last.at,
        decision_id=last.decision_id,
        dry_run=last.reason is Reason.DRY_RUN,
    )
