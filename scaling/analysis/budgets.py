"""What can be said of a budget before a day is lived: floors it does not pay for, and one that never binds. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.budget.spending import DAY, day_of
from scaling.config.policy import Budget, Policy
from scaling.rules.combine import safe_evaluate
from scaling.rules.schedule import ScheduleRule
from scaling.rules.view import MetricsView
from tidemark.foundation.wording import number_text

MONDAY = 946_857_600.0  # 3 January 2000
STEP = 900.0


def unpaid_floors(policy: Policy) -> Iterator[str]:
    """The floors of schedules, where those of the dearest day of a week take more than the budget."""
    budget, rules = policy.spec.budget, [r for r in policy.flat_rules if isinstance(r, ScheduleRule)]
    if budget is None or not rules:
        return
    cost = max(_floors_of(policy, budget, rules, MONDAY + DAY * day) for day in range(7))
    if cost > budget.hours:
        yield (
            f"the floors of its schedules take {_told(budget, cost)} on the dearest day, and budget is "
            f"{_told(budget, budget.hours)}: the floors will not be held to the end of that day"
        )


def _floors_of(policy: Policy, budget: Budget, rules: list[ScheduleRule], within: float) -> float:
    """Units of capacity times hours that the floors of one day take."""
    at, end = day_of(within, budget.time_zone)
    total = 0.0
    while at < end:
        view = MetricsView({}, {}, 0, ready=0, minimum=policy.minimum, maximum=policy.maximum, now=at)
        floors = [safe_evaluate(rule, view).floor or 0 for rule in rules]
        total += min(max([policy.minimum, *floors]), policy.maximum) * STEP / 3600.0
        at += STEP
    return total


def never_binds(policy: Policy) -> Iterator[str]:
    """A budget that the maximum does not reach, however long it lasts."""
    budget, most = policy.spec.budget, policy.maximum * 24.0
    if budget is not None and budget.hours >= most:
        yield (
            f"budget can never bind: the maximum of {policy.maximum} takes {_told(budget, most)} a day, and budget is "
            f"{_told(budget, budget.hours)}"
        )


def _told(budget: Budget, hours: float) -> str:
    unit = "" if budget.unit == "money" else f" {budget.unit.replace('_', '-')}"
    return f"{number_text(round(budget.in_its_unit(hours), 2))}{unit}"
