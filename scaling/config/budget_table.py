"""`[targets.NAME.budget]` becomes the budget of a target; problems are noted on the way. Pure."""

from __future__ import annotations

from typing import Any, Literal

from scaling.config.checks import positive
from scaling.config.policy import Budget
from scaling.schedules.timetable import zone_of
from scaling.target_facts import TargetFacts
from tidemark.foundation.settings_reader import Reader, as_text
from tidemark.foundation.wording import number_text

REQUEST_UNITS = "RU/s"

REQUEST_UNITS_PRICED = 100.0
"""The price of throughput is that of 100 RU/s for an hour, as in Azure's price list."""

Unit = Literal["instance_hours", "request_unit_hours", "unit_hours", "money"]

_AMOUNTS: dict[str, Unit] = {
    "instance_hours_per_day": "instance_hours",
    "request_unit_hours_per_day": "request_unit_hours",
    "unit_hours_per_day": "unit_hours",
    "money_per_day": "money",
}


_COUNTED: dict[str, Unit] = {"instances": "instance_hours", REQUEST_UNITS: "request_unit_hours"}
"""The unit of a budget by what the target counts; `unit_hours` of all others."""


def read_budget(reader: Reader | None, scaler: str, facts: TargetFacts | None, minimum: int) -> Budget | None:
    """The budget in a table, if there is one; None also where it has a problem, which is noted. `facts` are None where
    what the scaler counts is not known.
    """
    if reader is None:
        return None
    there = [key for key in (*_AMOUNTS, "price_per_hour") if reader.has(key)]
    numbers = {key: reader.take(key, 0.0, positive) for key in (*_AMOUNTS, "price_per_hour")}
    amounts = {key: numbers[key] for key in there if key in _AMOUNTS}
    price = numbers["price_per_hour"] if "price_per_hour" in there else None
    budget = _budget(reader, scaler, facts, amounts, price, reader.take("time_zone", "UTC", _time_zone))
    reader.finish()
    return None if budget is None or _below_minimum(reader, budget, minimum) else budget


def _budget(
    reader: Reader,
    scaler: str,
    facts: TargetFacts | None,
    amounts: dict[str, float],
    price: float | None,
    time_zone: str,
) -> Budget | None:
    if len(amounts) != 1:
        text = "is missing" if not amounts else f"found {' and '.join(amounts)}"
        reader.problem("", f"the amount of a day {text}; accepted is one of {', '.join(_AMOUNTS)}")
        return None
    ((key, amount),) = amounts.items()
    unit = _AMOUNTS[key]
    if facts is not None and unit not in {"money", counted := _COUNTED.get(facts.unit, "unit_hours")}:
        accepted = f"accepted are {counted}_per_day and money_per_day"
        reader.problem(key, f"the scaler '{scaler}' counts {facts.unit}; {accepted}")
        return None
    request_units = unit == "request_unit_hours" or (facts is not None and facts.unit == REQUEST_UNITS)
    if (unit == "money") != (price is not None):
        of = "100 RU/s" if request_units else f"one {'instance' if facts is None else facts.one}"
        if price is None:
            reader.problem("price_per_hour", f"is missing; money_per_day needs the price of {of} for an hour")
        else:
            reader.problem("price_per_hour", f"is of use with money_per_day only; found {key}")
        return None
    if not amount or price == 0.0:
        return None  # a number that was not accepted
    one = 1.0 if price is None else price / REQUEST_UNITS_PRICED if request_units else price
    return Budget(amount=amount, unit=unit, price=one, hourly=request_units, time_zone=time_zone)


def _below_minimum(reader: Reader, budget: Budget, minimum: int) -> bool:
    """A budget that the minimum alone exceeds could only be broken, for nothing goes below the minimum."""
    least = budget.in_its_unit(minimum * 24.0)
    if budget.amount >= least:
        return False
    key = next(name for name, unit in _AMOUNTS.items() if unit == budget.unit)
    price = "" if budget.unit == "money" else f" {budget.unit.replace('_', '-')}"
    reader.problem(
        key,
        f"found {number_text(budget.amount)}, below the {number_text(least)}{price} that the minimum alone takes "
        f"({minimum} for 24 h); nothing goes below the minimum",
    )
    return True


def _time_zone(value: Any) -> str:
    return zone_of(as_text(value)).key
