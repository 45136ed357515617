"""The tables of the costs, and their rows. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.analysis.cost.account import Account, ChangeCost, told_price
from tidemark.analysis.cost.spans import HOUR

TARGETS = """
    target text, unit text, resource text, currency text, whole_hours double, known_hours double, highest long,
    unit_hours double, charged double, price double, price_low double, price_high double, price_days long, money double,
    static_money double, shadow_hours double, shadow_money double, beside_shadow_money double, autoscale_money double,
    changes long, advice text, notes text
"""
"""One row per target. `unit_hours` are instance-hours, or hours of 100 RU/s, of the `known_hours`; `money` is theirs.
`static_money`: with the highest capacity all that time. `shadow_money` is of `shadow_hours`, `beside_shadow_money` what the
target itself cost in these. `charged` is what the export says of the resource, null where others share it.
"""

DAYS = "target text, day time, charged double, known_hours double, unit_hours double, money double"

HOURS = """
    target text, hour time, known_s double, highest long, used double, unit_hours double, autoscale_unit_hours double,
    money double, autoscale_money double
"""
"""Autoscale is of request units only, up to the highest RU/s of all hours; its units are at the manual price."""

CHANGES = """
    target text, at time, from_capacity long, to_capacity long, held_s double, unit_hours double, money double, reason text,
    line text
"""
"""`money` is what the change cost (or saved, below 0) until the next one, against the capacity as it was before."""

ALL = {"targets": TARGETS, "days": DAYS, "hours": HOURS, "changes": CHANGES}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(at: float) -> datetime:
    return _EPOCH + timedelta(microseconds=round(at * 1e6))


def rows_of(found: Account) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table."""
    return {
        "targets": [_target(found)],
        "days": [
            {
                "target": found.billed.target,
                "day": _EPOCH + timedelta(days=each.day),
                "charged": None if found.billed.shared else each.billed,
                "known_hours": each.known,
                "unit_hours": each.units,
                "money": found.money(each.units),
            }
            for each in found.days
        ],
        "hours": [
            {
                "target": found.billed.target,
                "hour": _time(each.start),
                "known_s": each.known,
                "highest": each.highest,
                "used": each.used,
                "unit_hours": each.units,
                "autoscale_unit_hours": each.autoscale,
                "money": found.money(each.units),
                "autoscale_money": found.money(each.autoscale),
            }
            for each in found.hours
        ],
        "changes": [_change(found, each) for each in found.changes],
    }


def _change(found: Account, each: ChangeCost) -> dict[str, Any]:
    return {
        "target": found.billed.target,
        "at": _time(each.change.at),
        "from_capacity": each.change.before,
        "to_capacity": each.change.after,
        "held_s": each.change.held,
        "unit_hours": each.units,
        "money": found.money(each.units),
        "reason": each.change.reason,
        "line": each.change.line,
    }


def _target(found: Account) -> dict[str, Any]:
    price, simulated = found.price, found.shadow_hours > 0
    return {
        "target": found.billed.target,
        "unit": found.billed.unit,
        "resource": found.billed.resource,
        "currency": found.currency,
        "whole_hours": found.whole,
        "known_hours": found.known,
        "highest": found.peak,
        "unit_hours": found.units,
        "charged": found.charged,
        "price": None if price is None else price.value,
        "price_low": None if price is None else price.low,
        "price_high": None if price is None else price.high,
        "price_days": None if price is None else price.days,
        "money": found.money(found.units),
        "static_money": found.money(found.static),
        "shadow_hours": found.shadow_hours,
        "shadow_money": found.money(found.shadow) if simulated else None,
        "beside_shadow_money": found.money(found.beside) if simulated else None,
        "autoscale_money": found.money(found.autoscale),
        "changes": len(found.changes),
        "advice": found.advice,
        "notes": "; ".join(found.notes),
    }


def hour_of_day(found: Account) -> list[tuple[float, float]]:
    """Of request units, for each hour of the day in UTC: units as scaled and under autoscale, on average of the days."""
    sums = [[0.0, 0.0, 0.0] for _ in range(24)]
    for each in found.hours:
        if each.autoscale is not None:
            place = sums[int(each.start // HOUR) % 24]
            place[0] += each.units
            place[1] += each.autoscale
            place[2] += 1
    return [(manual / (count or 1), auto / (count or 1)) for manual, auto, count in sums]


HEADERS = (
    "target",
    "known",
    "unit-hours",
    "money",
    "static peak",
    "shadow",
    "beside it",
    "price",
    "notes",
)


def line(found: Account) -> tuple[object, ...]:
    """One line of the table of targets."""
    simulated = found.shadow_hours > 0
    return (
        found.billed.target,
        f"{found.known:,.1f} h",
        found.units,
        amount(found.money(found.units), found.currency),
        amount(found.money(found.static), found.currency),
        amount(found.money(found.shadow), found.currency) if simulated else None,
        amount(found.money(found.beside), found.currency) if simulated else None,
        told_price(found),
        "; ".join(each for each in (found.advice, *found.notes) if each),
    )


def amount(money: float | None, currency: str) -> str | None:
    return None if money is None else f"{money:,.2f} {currency}".rstrip()
