"""What is pulled, and for which minutes: minutes are numbered since the epoch, so no time zone has a say. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from math import isfinite

from msgspec import Struct

from tidemark.foundation.errors import TidemarkError

MINUTE = 60
DAY = 1_440
"""Minutes of a day, and of one piece: a pull that is killed asks again for less than a day."""

KEPT_DAYS = 93
"""Days that Azure Monitor keeps what a resource reports by the minute. Source: its documentation of metric retention."""

SETTLING = 10
"""The newest minutes, which are left out. Azure Monitor has a minute 1 to 3 minutes later, and may still add to it; what
is once in the file is not asked for again.
"""

POINTS = 50_000
"""Most points (minutes times series) of one answer: a few megabytes. A day of a plan with up to 34 instances."""


class PullError(TidemarkError):
    """The history cannot be pulled; the text says what was found, and what to do."""


class Span(Struct, frozen=True):
    """Minutes from `begin` up to, and without, `end`."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def minutes(self) -> range:
        return range(self.begin, self.end)


class Source(Struct, frozen=True):
    """One metric of one resource: what is asked of Azure Monitor. `aggregation` is total or average."""

    resource_id: str
    metric: str
    aggregation: str
    filter: str


class PullPlan(Struct, frozen=True):
    """A whole pull. `source` names what is counted in the file, as `<namespace>/<entity>`; `plan` is None where nobody's
    instances are. `notes` say what the numbers are not.
    """

    target: str
    source: str
    arrivals: Source
    plan: Source | None
    notes: tuple[str, ...] = ()


class Minute(Struct, frozen=True):
    """What is known of a minute; None is not known, which is not zero."""

    arrivals: float | None = None
    instances: int | None = None


Minutes = dict[int, Minute]

Point = tuple[float, float | None]
"""When a minute began (seconds since the epoch), and its value."""


def window(now: float, days: int, known: Iterable[int] = ()) -> Span:
    """The minutes of the last `days` that are settled, and still kept; from the newest known one on, if that is further
    back: what is pulled every now and then has no holes between.
    """
    end = int(now // MINUTE) - SETTLING
    begin = min(end - days * DAY, max(known, default=end) + 1)
    return Span(max(begin, end - KEPT_DAYS * DAY + 2 * SETTLING), end)


def missing(wanted: Span, known: Container[int]) -> list[Span]:
    """The minutes of `wanted` that are not known, as spans, the oldest first: Azure Monitor drops these next."""
    spans: list[Span] = []
    for minute in wanted.minutes:
        if minute in known:
            continue
        if spans and spans[-1].end == minute:
            spans[-1] = Span(spans[-1].begin, minute + 1)
        else:
            spans.append(Span(minute, minute + 1))
    return spans


def pieces(spans: Iterable[Span], size: int = DAY) -> Iterator[Span]:
    """The same minutes in spans of at most `size`."""
    for span in spans:
        for begin in range(span.begin, span.end, size):
            yield Span(begin, min(begin + size, span.end))


def answered(series: Iterable[Sequence[Point]], span: Span) -> set[int]:
    """The minutes of `span` that an answer names, with a value or without."""
    return {minute for points in series for at, _ in points if (minute := int(at // MINUTE)) in span.minutes}


def totals(series: Iterable[Sequence[Point]], span: Span) -> list[float | None]:
    """The sum of all series for each minute of `span`; None where none has a value."""
    sums: list[float | None] = [None] * len(span)
    for points in series:
        for index, value in _values(points, span):
            sums[index] = (sums[index] or 0.0) + value
    return sums


def counts(series: Iterable[Sequence[Point]], span: Span) -> list[int | None]:
    """How many series have a value, for each minute of `span`; None where none has: nobody reported, or nobody ran."""
    highest: list[int | None] = [None] * len(span)
    for points in series:
        for index in {index for index, _ in _values(points, span)}:
            highest[index] = (highest[index] or 0) + 1
    return highest


def _values(points: Sequence[Point], span: Span) -> Iterator[tuple[int, float]]:
    for at, value in points:
        minute = int(at // MINUTE)
        if value is not None and isfinite(value) and value >= 0 and minute in span.minutes:
            yield minute - span.begin, value
