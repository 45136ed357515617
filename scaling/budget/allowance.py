"""How much capacity the rest of the day allows, so that the budget lasts to its end where it helps most. Pure and total.

What is left of the budget, less what the minimum alone takes until midnight, is there for more than the minimum: D,
in units of capacity times hours, with T hours to go.

* Without a forecast: up to D / (T / 3) more than the minimum, three times the even pace. A burst in the morning is served,
  and however long it lasts, something is left: the pace falls with what is left. One step more than the minimum is
  allowed as long as D pays for an hour of it.
* With a forecast (the rule `service_level`, after a day): the need N above the minimum is known for the rest of the day, and
  for now. What is needed now is allowed as long as D pays for half an hour of it; beyond that, three times the even pace
  of D - N. So where D is not enough the shortage comes as late as it can: whoever holds something back for later from
  messages that wait already makes all that come after them late, too.

What is there is taken back only beyond twice the pace (or what D pays for five minutes of), so that what was just allowed
is not taken back by the next report. Where hours are billed at their highest capacity, the present hour is paid for:
nothing is taken back before its last minutes, and more than its highest capacity costs the whole hour.

Request units in step with instances can be taken back only after these are gone, and no budget of theirs sends them
away. So no more is allowed than can be kept until midnight.
"""

from __future__ import annotations

from msgspec import Struct

from scaling.budget.expected import Need, need_of
from scaling.budget.spending import HOUR, day_of, hour_of, spent_by
from scaling.config.policy import Budget, Policy
from scaling.model import Spent, TargetState
from scaling.rules.request_units.for_rate import RequestUnitsForRateRule
from scaling.target_facts import settable_of
from tidemark.foundation.wording import duration_text, number_text

OUT_PART, KEEP_PART = 1 / 3, 1 / 6
"""Of the time that is left, what D has to pay for: three times the even pace, and six times. Chosen: a peak of a working day lasts
a third of it, and what is there already is worth twice what is added.
"""

OUT_LEAST, KEEP_LEAST = 0.5, 1 / 12
"""Hours that D has to pay for at least, or until the day ends: half an hour of what is added, five minutes of what is kept.
Chosen: less of an instance is mostly its start-up.
"""

ONE_STEP = 1.0
"""Hours of one step above the minimum that D has to pay for. Chosen: one hour, the unit of the budget."""

ALL_OF_IT = 1.0
"""Of the time that is left, what D has to pay for where nothing can be taken back before instances are gone: all of it."""

REPORTS = 2.0
"""Collection intervals that D has to pay for at least: what is decided now has its effect after the next one,
so that two are billed.
"""

ROUNDING = 1e-9  # share; sums of some thousand floats are exact to less


class Side(Struct, frozen=True):
    """What D has to pay for: a `part` of the time left, at least `least` hours."""

    part: float
    least: float
    one_step: float


class Rest(Struct, frozen=True):
    """The rest of a day. `left` is D, for more than `minimum`, over `hours`; the platform's next step is of `step` units.

    Of the present hour, where it is billed as a whole, `peak` is paid for, and more costs `whole` hours; it is `closing`
    when what is decided now has its effect on the next one. `committed`: spent, and taken by the minimum.
    """

    left: float
    hours: float
    minimum: int
    step: int
    committed: float
    need: Need | None = None
    peak: int = 0
    whole: float = 0.0
    closing: bool = True

    def cost(self, capacity: int, side: Side) -> float:
        """What D has to be for so much capacity."""
        units = float(capacity - self.minimum)
        if units <= 0.0:
            return 0.0
        if not self.closing and capacity <= self.peak:
            return 0.0
        return self._later(units, side) + max(capacity - self.peak, 0) * self.whole

    def _later(self, units: float, side: Side) -> float:
        least = units * min(self.hours, side.least)
        pace = max(side.part * self.hours, min(self.hours, side.least))
        if self.need is None:
            even = units * pace
            return min(even, units * min(self.hours, side.one_step)) if units <= self.step else even
        if units <= self.need.now:
            return least
        return max(self.need.total + (units - self.need.now) * pace, least)

    def most(self, top: int, side: Side) -> int:
        """The most capacity up to `top` that D pays for; the minimum is always paid for."""
        enough = self.left * (1.0 + ROUNDING) + ROUNDING
        low, high = self.minimum, max(top, self.minimum)
        if self.cost(high, side) <= enough:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.cost(middle, side) <= enough else (low, middle)
        return low


class Allowance(Struct, frozen=True):
    """What the budget allows now: scaling out up to `out`; what is there beyond `keep` is taken back."""

    budget: Budget
    spent: Spent
    ends: float
    rest: Rest
    out_side: Side
    keep_side: Side
    out: int
    keep: int

    def takes(self, capacity: int, side: Side) -> float:
        """The budget of a day, in its own unit, that would allow scaling out to `capacity` now (`out_side`), or keeping it
        (`keep_side`).
        """
        return self.budget.in_its_unit(
            (self.rest.committed + self.rest.cost(capacity, side)) * (1.0 + ROUNDING)
        )

    def text(self) -> str:
        """`171 of 192 instance-hours spent today, 9.4 h left at 2.2`; of hours billed as a whole, the present one too."""
        budget, hours = self.budget, self.rest.hours
        left = budget.hours - self.spent.hours
        parts_text = f"{amounts_text(budget, self.spent)} spent today, {_hours_text(hours)} left"
        if left <= 0.0 or hours <= 0.0:
            return parts_text
        return f"{parts_text} at {number_text(round(left / hours, 1))}"

    def will_bind(self) -> bool:
        """True where what is expected, or else the pace of the last hour, takes more than there is until the day ends."""
        rest = self.rest
        if self.spent.until - self.spent.since < HOUR:  # the first hour says little
            return False
        expected = max(self.spent.pace - rest.minimum, 0.0) * rest.hours
        if rest.need is not None:
            expected = rest.need.total
        return expected > rest.left * (1.0 + ROUNDING) + ROUNDING

    def warning(self) -> str:
        """Why the budget will bind, in words."""
        rest, in_unit = self.rest, self.budget.in_its_unit
        takes = max(self.spent.pace - rest.minimum, 0.0) * rest.hours
        why = f"at the pace of the last hour ({number_text(round(self.spent.pace, 1))})"
        if rest.need is not None:
            takes, why = rest.need.total, "as far as it is expected"
        takes += rest.minimum * rest.hours
        left = max(self.budget.hours - self.spent.hours, 0.0)
        return (
            f"the budget will not last: {amounts_text(self.budget, self.spent)} spent today; {why} the other "
            f"{_hours_text(rest.hours)} take {_amount(in_unit(takes))}, and {_amount(in_unit(left))} are left"
        )


def _hours_text(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1.0 else duration_text(hours * HOUR)


def _amount(value: float) -> str:
    return number_text(round(value, 2))


def amounts_text(budget: Budget, spent: Spent) -> str:
    """`171 of 192 instance-hours`."""
    unit = "" if budget.unit == "money" else f" {budget.unit.replace('_', '-')}"
    return f"{_amount(budget.in_its_unit(spent.hours))} of {_amount(budget.amount)}{unit}"


def allowance_of(policy: Policy, state: TargetState, *, now: float) -> Allowance | None:
    """What the budget of the day allows at `now`; None without a budget."""
    budget = policy.spec.budget
    if budget is None:
        return None
    spent = spent_by(budget, state, now=now)
    _, ends = day_of(spent.day, budget.time_zone)
    rest = _rest(policy, budget, state, spent, ends)
    # The next hour is billed as a whole, too.
    kept = max(1.0 if budget.hourly else KEEP_LEAST, REPORTS * policy.interval / HOUR)
    keep = Side(KEEP_PART, kept, kept)
    out = Side(OUT_PART, max(OUT_LEAST, kept), max(ONE_STEP, kept))
    if any(isinstance(rule, RequestUnitsForRateRule) for rule in policy.flat_rules):
        out = Side(ALL_OF_IT, rest.hours, rest.hours)
    return Allowance(
        budget, spent, ends, rest, out, keep, rest.most(policy.maximum, out), rest.most(policy.maximum, keep)
    )


def _rest(policy: Policy, budget: Budget, state: TargetState, spent: Spent, ends: float) -> Rest:
    begin, minimum, settable = spent.until, policy.minimum, settable_of(state.capacity)
    if state.capacity is not None:
        minimum = max(minimum, state.capacity.floor)
    minimum = settable.up(minimum)
    step = settable.after(minimum) - minimum
    peak, whole, closing = 0, 0.0, True
    if budget.hourly:
        start, begin = hour_of(spent, ends)
        lasts = max(KEEP_LEAST * HOUR, REPORTS * policy.interval)
        peak, whole = spent.peak, (begin - start) / HOUR
        closing = begin - spent.until <= lasts
    hours = max(ends - begin, 0.0) / HOUR
    committed = spent.hours + minimum * hours
    need = need_of(policy, state, at=begin, end=ends, minimum=minimum) if hours > 0.0 else None
    left = max(budget.hours - committed, 0.0)
    return Rest(left, hours, minimum, step, committed, need, peak, whole, closing)
