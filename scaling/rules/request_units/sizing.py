"""How many request units consumers need: what one consumer needs, from numbers and metrics. Pure.

    RU/s of one consumer = records per second x RU per record x headroom

The sizing of the two rules that keep instances and throughput in step (`request_units_for_rate`,
`within_request_units`), which have to agree: give both the same options.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Literal

from msgspec import Struct

from scaling.model import Evidence, Reason
from scaling.rules.view import MetricsView
from scaling.window import Summary

Source = float | str
"""A number, or the name of a metric."""

_ROUNDING = 1e-9  # share; 3 x 1,000 x 6.3 must not need a unit more than 18,900


class UnknownError(Exception):
    """A metric that is needed is not known."""

    def __init__(self, metric: str, reason: Reason) -> None:
        super().__init__(f"{metric} is not known")
        self.reason = reason


def known(view: MetricsView, metric: str) -> Summary:
    """Raises UnknownError where the metric has a problem."""
    summary = view.metric(metric)
    if summary.problem is not None:
        raise UnknownError(metric, summary.problem)
    return summary


class Unit(Struct, frozen=True):
    """What one consumer needs, in RU/s, with the numbers it was worked out from."""

    request_units: float
    rate: float
    charge: float
    headroom: float
    gap: bool
    evidence: tuple[Evidence, ...]

    def needed(self, consumers: float) -> int:
        """RU/s for so many consumers."""
        exact = consumers * self.request_units
        return ceil(exact * (1 - _ROUNDING))

    def affordable(self, request_units: float) -> int:
        """How many consumers so many RU/s suffice for."""
        return floor(request_units / self.request_units * (1 + _ROUNDING))

    @property
    def text(self) -> str:
        headroom = "" if self.headroom == 1 else f" x {self.headroom:g}"
        return f"{self.rate:g} records/s x {self.charge:g} RU{headroom}"


class DemandParams(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options both rules have: where the numbers come from. `first_ru_per_record` is the charge while the metric
    of `ru_per_record` is not known.
    """

    rate: Source
    ru_per_record: Source
    first_ru_per_record: float | None = None
    headroom: float = 1.2  # partitions are never loaded evenly
    statistic: Literal["average", "maximum", "latest"] = "maximum"

    def metrics(self) -> tuple[str, ...]:
        return tuple(source for source in (self.rate, self.ru_per_record) if isinstance(source, str))

    def problems(self) -> dict[str, str]:
        problems: dict[str, str] = {}
        for option in ("consumers", "rate", "ru_per_record", "first_ru_per_record"):
            source = getattr(self, option, None)
            if source in ("", ()) or (isinstance(source, float) and not source > 0):
                shown = f"{source:g}" if isinstance(source, float) else "nothing"
                other = "" if option.startswith("first") else " or the name of a metric"
                problems[option] = f"found {shown}; a number above 0{other} is accepted"
        if self.first_ru_per_record is not None and not isinstance(self.ru_per_record, str):
            problems["first_ru_per_record"] = "is of no use where ru_per_record is a number already"
        if not 1 <= self.headroom <= 10:
            problems["headroom"] = f"found {self.headroom:g}; 1 to 10 is accepted"
        return problems

    def of(self, view: MetricsView, rule: str) -> Unit:
        """What one consumer needs now. Raises UnknownError; nothing (0 RU/s) is not known, either."""
        gap, numbers, evidence = False, [], []
        for source, first in ((self.rate, None), (self.ru_per_record, self.first_ru_per_record)):
            if not isinstance(source, str):
                numbers.append(source)
                continue
            summary = view.metric(source)
            value = summary.statistic(self.statistic)
            if summary.problem is not None or value <= 0:
                if first is None:
                    raise UnknownError(source, summary.problem or Reason.INVALID_METRIC)
                numbers.append(first)
                continue
            gap = gap or summary.gap
            numbers.append(value)
            evidence.append(view.evidence(rule, source, self.statistic, "~", value))
        rate, charge = numbers
        needed = rate * charge * self.headroom
        return Unit(needed, rate, charge, self.headroom, gap, tuple(evidence))
