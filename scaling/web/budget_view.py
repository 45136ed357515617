"""What the HTTP API and the command line show of a target's budget. Pure."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from scaling.budget.allowance import allowance_of
from scaling.budget.spending import day_of
from scaling.config.policy import Policy
from scaling.model import TargetState
from scaling.target_facts import settable_of
from tidemark.foundation.wording import time_text


class BudgetView(Struct, frozen=True):
    """The budget of the present day. `spent` and `per_day` are in `unit`; it is counted from `since` on, and was assumed
    before that. `allowed` is the most capacity it may be scaled out to now, `kept` the most that is not taken back.
    `text` says so in words, `warning` that the budget will not last, where that is foreseen.
    """

    unit: Literal["instance_hours", "request_unit_hours", "unit_hours", "money"]
    per_day: float
    spent: float
    since: float
    day_ends: float
    allowed: int
    kept: int
    text: str
    warning: str | None


def budget_view(policy: Policy, state: TargetState, *, now: float) -> BudgetView | None:
    """The budget as of `now`; None without one, and before the first report, when nothing is counted yet."""
    allowance = allowance_of(policy, state, now=now) if state.spent is not None else None
    if allowance is None:
        return None
    budget, spent, settable = allowance.budget, allowance.spent, settable_of(state.capacity)
    allowed, kept = (settable.down(amount) for amount in (allowance.out, allowance.keep))
    text = f"{allowance.text()}: {allowed} allowed, up to {kept} kept"
    if spent.since > day_of(spent.day, budget.time_zone)[0]:
        text += f"; before {time_text(spent.since)} nothing is known, and the even share is taken for spent"
    return BudgetView(
        unit=budget.unit,
        per_day=budget.amount,
        spent=budget.in_its_unit(spent.hours),
        since=spent.since,
        day_ends=allowance.ends,
        allowed=allowed,
        kept=kept,
        text=text,
        warning=allowance.warning() if allowance.will_bind() else None,
    )
