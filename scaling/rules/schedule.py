"""Floors and ceilings by day, time and time zone. Pure: the time is the view's."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from scaling.model import Reason, Verdict
from scaling.rules.view import MetricsView

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)|24:00")


def parse_days(text: str) -> frozenset[int]:
    """Weekday numbers (Monday 0) of `mon-fri`, `sat,sun`, `daily`. Raises ValueError."""
    if text.strip().lower() == "daily":
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if first not in DAYS or last not in DAYS:
            raise ValueError(
                f"found '{text}'; accepted are 'daily', days {', '.join(DAYS)}, and ranges such as 'mon-fri'"
            )
        start, end = DAYS.index(first), DAYS.index(last)
        days.update((start + offset) % 7 for offset in range((end - start) % 7 + 1))
    return frozenset(days)


def parse_clock(text: str) -> int:
    """Minutes after midnight of `HH:MM` (00:00 to 24:00). Raises ValueError."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"found '{text}'; accepted are times such as '08:00', '17:30' and '24:00'")
    hours, minutes = text.strip().split(":")
    return int(hours) * 60 + int(minutes)


class Period(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"begin": "from", "end": "to"}
):
    """On `days`, from `from` to `to` (over midnight where `to` is not later; the day is that of `from`)."""

    days: str = "daily"
    begin: str = "00:00"
    end: str = "24:00"
    floor: int | None = None
    ceiling: int | None = None
    label: str = ""


class _Compiled(Struct, frozen=True):
    days: frozenset[int]
    begin: int
    end: int
    period: Period

    def active(self, weekday: int, minute: int) -> bool:
        if self.begin < self.end:
            return weekday in self.days and self.begin <= minute < self.end
        after_midnight = minute < self.end and (weekday - 1) % 7 in self.days
        return after_midnight or (minute >= self.begin and weekday in self.days)


class ScheduleRule:
    """Bounds the capacity while a period is active: the highest floor, the lowest ceiling of all of them."""

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        periods: tuple[Period, ...]
        time_zone: str = "UTC"

        def problems(self) -> dict[str, str]:
            problems: dict[str, str] = {}
            try:
                ZoneInfo(self.time_zone)
            except (ZoneInfoNotFoundError, ValueError, OSError):
                problems["time_zone"] = (
                    f"found '{self.time_zone}'; accepted are IANA names such as 'Europe/Amsterdam'"
                )
            if not self.periods:
                problems["periods"] = "give at least one period"
            for index, period in enumerate(self.periods):
                for error in _period_errors(period):
                    problems[f"periods[{index}].{error[0]}"] = error[1]
            return problems

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._zone = ZoneInfo(params.time_zone)
        self._periods = tuple(
            _Compiled(parse_days(p.days), parse_clock(p.begin), parse_clock(p.end), p) for p in params.periods
        )

    def metrics(self) -> tuple[str, ...]:
        return ()

    def evaluate(self, view: MetricsView, /) -> Verdict:
        local = datetime.fromtimestamp(view.now, self._zone)
        weekday, minute = local.weekday(), local.hour * 60 + local.minute
        active = [c.period for c in self._periods if c.active(weekday, minute)]
        return Verdict(
            None,
            Reason.WITHIN_TARGET,
            floor=max((p.floor for p in active if p.floor is not None), default=None),
            ceiling=min((p.ceiling for p in active if p.ceiling is not None), default=None),
            note="; ".join(f"{self._name}: {p.label or p.days} {p.begin}-{p.end}" for p in active),
        )


def _period_errors(period: Period) -> list[tuple[str, str]]:
    errors = []
    for option, parse, value in (
        ("days", parse_days, period.days),
        ("from", parse_clock, period.begin),
        ("to", parse_clock, period.end),
    ):
        try:
            parse(value)
        except ValueError as error:
            errors.append((option, str(error)))
    if period.floor is None and period.ceiling is None:
        errors.append(("floor", "give 'floor', 'ceiling' or both"))
    elif min(v for v in (period.floor, period.ceiling) if v is not None) < 0:
        errors.append(("floor", "floors and ceilings are 0 or more"))
    elif period.floor is not None and period.ceiling is not None and period.floor > period.ceiling:
        errors.append(("floor", f"found floor {period.floor} above ceiling {period.ceiling}"))
    return errors
