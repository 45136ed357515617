"""The tables of the costs, and their rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from math import nan
from typing import Any

from tidemark.analysis.cost.account import Account, price_text
from tidemark.analysis.cost.spans import HOUR

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(at: float) -> datetime:
    return _EPOCH + timedelta(microseconds=round(at * 1e6))


Columns = dict[str, Callable[[Account, Any], Any]]
"""Name and type of each column, and how its value is found: of the account, and of a day, an hour or a change."""

TARGETS: Columns = {
    "target text": lambda account, _: account.billed.target,
    "unit text": lambda account, _: account.billed.unit,
    "resource text": lambda account, _: account.billed.resource,
    "currency text": lambda account, _: account.currency,
    "whole_hours double": lambda account, _: account.whole,
    "known_hours double": lambda account, _: account.known,
    "highest long": lambda account, _: account.peak,
    "unit_hours double": lambda account, _: account.units,
    "charged double": lambda account, _: account.charged,
    "price double": lambda account, _: account.price and account.price.value,
    "price_low double": lambda account, _: account.price and account.price.low,
    "price_high double": lambda account, _: account.price and account.price.high,
    "price_days long": lambda account, _: account.price and account.price.days,
    "money double": lambda account, _: account.money(account.units),
    "static_money double": lambda account, _: account.money(account.static),
    "shadow_hours double": lambda account, _: account.shadow_hours,
    "shadow_money double": lambda account, _: account.money(account.shadow) if account.simulated else None,
    "beside_shadow_money double": lambda account, _: (
        account.money(account.beside) if account.simulated else None
    ),
    "autoscale_money double": lambda account, _: account.money(account.autoscale),
    "changes long": lambda account, _: len(account.changes),
    "advice text": lambda account, _: account.advice,
    "notes text": lambda account, _: "; ".join(account.notes),
}
"""One row per target. `unit_hours` are instance-hours, or hours of 100 RU/s, of the `known_hours`; `money` is theirs.
`static_money`: with the highest capacity all that time. `shadow_money` is of `shadow_hours`, `beside_shadow_money` what the
target itself cost in these. `charged` is what the export says of the resource, null where others share it.
"""

DAYS: Columns = {
    "target text": lambda account, _: account.billed.target,
    "day time": lambda _, day: _EPOCH + timedelta(days=day.day),
    "charged double": lambda account, day: None if account.billed.shared else day.billed,
    "known_hours double": lambda _, day: day.known,
    "unit_hours double": lambda _, day: day.units,
    "money double": lambda account, day: account.money(day.units),
}

HOURS: Columns = {
    "target text": lambda account, _: account.billed.target,
    "hour time": lambda _, hour: _time(hour.start),
    "known_s double": lambda _, hour: hour.known,
    "highest long": lambda _, hour: hour.highest,
    "used double": lambda _, hour: hour.used,
    "unit_hours double": lambda _, hour: hour.units,
    "autoscale_unit_hours double": lambda _, hour: hour.autoscale,
    "money double": lambda account, hour: account.money(hour.units),
    "autoscale_money double": lambda account, hour: account.money(hour.autoscale),
}
"""Autoscale is of request units only, up to the highest RU/s of all hours; its units are at the manual price."""

CHANGES: Columns = {
    "target text": lambda account, _: account.billed.target,
    "at time": lambda _, change: _time(change.change.at),
    "from_capacity long": lambda _, change: change.change.before,
    "to_capacity long": lambda _, change: change.change.after,
    "held_s double": lambda _, change: change.change.held,
    "unit_hours double": lambda _, change: change.units,
    "money double": lambda account, change: account.money(change.units),
    "reason text": lambda _, change: change.change.reason,
    "line text": lambda _, change: change.change.line,
}
"""`money` is what the change cost (or saved, below 0) until the next one, against the capacity as it was before."""

ALL = {
    name: ", ".join(columns)
    for name, columns in (("targets", TARGETS), ("days", DAYS), ("hours", HOURS), ("changes", CHANGES))
}


def rows_of(account: Account) -> dict[str, list[dict[str, Any]]]:
    def rows(columns: Columns, items: Iterable[Any]) -> list[dict[str, Any]]:
        readers = [(column.partition(" ")[0], read) for column, read in columns.items()]
        return [{name: read(account, item) for name, read in readers} for item in items]

    return {
        "targets": rows(TARGETS, [None]),
        "days": rows(DAYS, account.days),
        "hours": rows(HOURS, account.hours),
        "changes": rows(CHANGES, account.changes),
    }


def hour_of_day(account: Account) -> list[tuple[float, float]]:
    """Of request units, for each hour of the day in UTC: units as scaled and under autoscale, on average of the days; of an hour that
    is in none of them, nothing is known.
    """
    sums = [[0.0, 0.0, 0.0] for _ in range(24)]
    for hour in account.hours:
        if hour.autoscale is not None:
            place = sums[int(hour.start // HOUR) % 24]
            place[0] += hour.units
            place[1] += hour.autoscale
            place[2] += 1
    return [(manual / (count or nan), auto / (count or nan)) for manual, auto, count in sums]


LINE: dict[str, Callable[[Account], object]] = {
    "target": lambda account: account.billed.target,
    "known": lambda account: f"{account.known:,.1f} h",
    "unit-hours": lambda account: account.units,
    "money": lambda account: amount(account, account.units),
    "static peak": lambda account: amount(account, account.static),
    "shadow": lambda account: amount(account, account.shadow) if account.simulated else None,
    "beside it": lambda account: amount(account, account.beside) if account.simulated else None,
    "price": price_text,
    "notes": lambda account: "; ".join(note for note in (account.advice, *account.notes) if note),
}
"""The table of targets for people."""


def line(account: Account) -> tuple[object, ...]:
    """One line of the table of targets."""
    return tuple(read(account) for read in LINE.values())


def amount(account: Account, units: float | None) -> str | None:
    """What so many units cost, with the currency; None where no price is known."""
    money = account.money(units)
    return None if money is None else f"{money:,.2f} {account.currency}".rstrip()
