"""The tables of the costs, and their rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.analysis.cost.account import Account, price_text
from tidemark.analysis.cost.spans import HOUR

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(at: float) -> datetime:
    return _EPOCH + timedelta(microseconds=round(at * 1e6))


Columns = dict[str, Callable[[Account, Any], Any]]
"""Name and type of each column, and how its value is found: of the account, and of a day, an hour or a change."""

TARGETS: Columns = {
    "target text": lambda found, _: found.billed.target,
    "unit text": lambda found, _: found.billed.unit,
    "resource text": lambda found, _: found.billed.resource,
    "currency text": lambda found, _: found.currency,
    "whole_hours double": lambda found, _: found.whole,
    "known_hours double": lambda found, _: found.known,
    "highest long": lambda found, _: found.peak,
    "unit_hours double": lambda found, _: found.units,
    "charged double": lambda found, _: found.charged,
    "price double": lambda found, _: found.price and found.price.value,
    "price_low double": lambda found, _: found.price and found.price.low,
    "price_high double": lambda found, _: found.price and found.price.high,
    "price_days long": lambda found, _: found.price and found.price.days,
    "money double": lambda found, _: found.money(found.units),
    "static_money double": lambda found, _: found.money(found.static),
    "shadow_hours double": lambda found, _: found.shadow_hours,
    "shadow_money double": lambda found, _: found.money(found.shadow) if found.simulated else None,
    "beside_shadow_money double": lambda found, _: found.money(found.beside) if found.simulated else None,
    "autoscale_money double": lambda found, _: found.money(found.autoscale),
    "changes long": lambda found, _: len(found.changes),
    "advice text": lambda found, _: found.advice,
    "notes text": lambda found, _: "; ".join(found.notes),
}
"""One row per target. `unit_hours` are instance-hours, or hours of 100 RU/s, of the `known_hours`; `money` is theirs.
`static_money`: with the highest capacity all that time. `shadow_money` is of `shadow_hours`, `beside_shadow_money` what the
target itself cost in these. `charged` is what the export says of the resource, null where others share it.
"""

DAYS: Columns = {
    "target text": lambda found, _: found.billed.target,
    "day time": lambda _, each: _EPOCH + timedelta(days=each.day),
    "charged double": lambda found, each: None if found.billed.shared else each.billed,
    "known_hours double": lambda _, each: each.known,
    "unit_hours double": lambda _, each: each.units,
    "money double": lambda found, each: found.money(each.units),
}

HOURS: Columns = {
    "target text": lambda found, _: found.billed.target,
    "hour time": lambda _, each: _time(each.start),
    "known_s double": lambda _, each: each.known,
    "highest long": lambda _, each: each.highest,
    "used double": lambda _, each: each.used,
    "unit_hours double": lambda _, each: each.units,
    "autoscale_unit_hours double": lambda _, each: each.autoscale,
    "money double": lambda found, each: found.money(each.units),
    "autoscale_money double": lambda found, each: found.money(each.autoscale),
}
"""Autoscale is of request units only, up to the highest RU/s of all hours; its units are at the manual price."""

CHANGES: Columns = {
    "target text": lambda found, _: found.billed.target,
    "at time": lambda _, each: _time(each.change.at),
    "from_capacity long": lambda _, each: each.change.before,
    "to_capacity long": lambda _, each: each.change.after,
    "held_s double": lambda _, each: each.change.held,
    "unit_hours double": lambda _, each: each.units,
    "money double": lambda found, each: found.money(each.units),
    "reason text": lambda _, each: each.change.reason,
    "line text": lambda _, each: each.change.line,
}
"""`money` is what the change cost (or saved, below 0) until the next one, against the capacity as it was before."""

ALL = {
    name: ", ".join(columns)
    for name, columns in (("targets", TARGETS), ("days", DAYS), ("hours", HOURS), ("changes", CHANGES))
}


def rows_of(found: Account) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table."""

    def rows(columns: Columns, items: Iterable[Any]) -> list[dict[str, Any]]:
        readers = [(column.partition(" ")[0], read) for column, read in columns.items()]
        return [{name: read(found, each) for name, read in readers} for each in items]

    return {
        "targets": rows(TARGETS, [None]),
        "days": rows(DAYS, found.days),
        "hours": rows(HOURS, found.hours),
        "changes": rows(CHANGES, found.changes),
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


LINE: dict[str, Callable[[Account], object]] = {
    "target": lambda found: found.billed.target,
    "known": lambda found: f"{found.known:,.1f} h",
    "unit-hours": lambda found: found.units,
    "money": lambda found: amount(found, found.units),
    "static peak": lambda found: amount(found, found.static),
    "shadow": lambda found: amount(found, found.shadow) if found.simulated else None,
    "beside it": lambda found: amount(found, found.beside) if found.simulated else None,
    "price": price_text,
    "notes": lambda found: "; ".join(each for each in (found.advice, *found.notes) if each),
}
"""The table of targets for people."""


def line(found: Account) -> tuple[object, ...]:
    """One line of the table of targets."""
    return tuple(read(found) for read in LINE.values())


def amount(found: Account, units: float | None) -> str | None:
    """What so many units cost, with the currency; None where no price is known."""
    money = found.money(units)
    return None if money is None else f"{money:,.2f} {found.currency}".rstrip()
