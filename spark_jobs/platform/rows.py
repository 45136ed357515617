"""Rows of a frame, brought to the driver: times with their zone. Frames of a time range, or used more than once.

`DataFrame.collect` gives times as the driver's local clock would show them, without a zone. On a driver in Berlin noon in
UTC comes as 13:00, and in autumn an hour comes twice. So jobs collect with the functions here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from tidemark.analysis.limits import RowCount, check_sum

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def collected(frame: DataFrame) -> list[Row]:
    """All rows, in the frame's order; a time is a datetime in UTC, exact to the microsecond.

    Raises TypeError for times inside of structs, arrays and maps: select them as columns.
    """
    kinds = {field.name: field.dataType for field in frame.schema}
    nested = [name for name, kind in kinds.items() if not isinstance(kind, TimestampType) and _has_time(kind)]
    if nested:
        raise TypeError(f"times inside of {', '.join(nested)}; select them as columns of their own")
    times = {name for name, kind in kinds.items() if isinstance(kind, TimestampType)}
    if not times:
        return frame.collect()
    counted = frame.select(
        *(F.unix_micros(name).alias(name) if name in times else F.col(name) for name in kinds)
    )
    row = Row(*kinds)
    return [
        row(*(_moment(value) if name in times else value for name, value in zip(kinds, values, strict=True)))
        for values in counted.collect()
    ]


def first_of(frame: DataFrame) -> Row | None:
    """The first row as `collected` gives it; None where there is none."""
    return next(iter(collected(frame.limit(1))), None)


def between(frame: DataFrame, time: str, since: datetime | None, until: datetime | None) -> DataFrame:
    """The rows whose column `time` is from `since` on and before `until`; None does not bound."""
    if since is not None:
        frame = frame.where(F.col(time) >= F.lit(since))
    return frame if until is None else frame.where(F.col(time) < F.lit(until))


class RowAccount:
    """What became of the rows of an input: counted where they are read, in the pass that reads them, and where they are used.

    `what` names the input, for errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: list[tuple[Observation, DataFrame]] = []

    def without(
        self, frame: DataFrame, reasons: Mapping[str, Column], *, rows: Column | None = None
    ) -> DataFrame:
        """The rows for which no reason to leave them out holds; a row counts for the first reason that does. `rows` is of how
        many it is (1).
        """
        whys = [F.when(is_left_out, F.lit(name)) for name, is_left_out in reasons.items()]
        why, one_row = F.coalesce(*whys, F.lit("")), F.lit(1) if rows is None else rows
        sums = {"read": one_row, **{name: F.when(why == name, one_row) for name in reasons}}
        counts = [F.coalesce(F.sum(column), F.lit(0)).alias(name) for name, column in sums.items()]
        seen = Observation()
        self._seen.append((seen, frame.select(*counts)))
        observed = frame.observe(seen, *counts)
        return observed.where(why == "") if reasons else observed

    def check(self, *, rest: str | None = None, **used: int) -> RowCount:
        """What became of the rows, after an action over what `without` gave. Raises JobError where the rows that were read are
        not those left out and those `used`. With `rest` the others count by this name, where nobody else counts them.
        """
        counts: dict[str, int] = {}
        for seen, again in self._seen:
            # Of a pass that gives no row at all, Spark may drop what was observed, and never report it.
            count_of = seen.get if any(used.values()) else collected(again)[0].asDict()
            for name, count in count_of.items():
                counts[name] = counts.get(name, 0) + count
        read = counts.pop("read")
        parts = {**counts, **used}
        if rest is not None:
            parts[rest] = max(read - sum(parts.values()), 0)
        check_sum(self._what, read, parts)
        return RowCount(self._what, read, parts)


OUTSIDE = "outside of the time asked for"
"""A reason to leave rows out."""


def outside(time: Column, since: datetime | float | None, until: datetime | float | None) -> Column:
    """Whether a time is before `since`, or `until` or later, or not known where there is a bound; None does not bound."""
    within = F.lit(True)
    for bound, is_within in ((since, time.__ge__), (until, time.__lt__)):
        within = within if bound is None else within & is_within(F.lit(bound))
    return ~F.coalesce(within, F.lit(False))


@contextmanager
def cached(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame, kept for the actions of the block where the session allows that (serverless compute does not): else it is
    made anew for each.
    """
    with suppress(PySparkException):
        frame = frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _moment(microseconds: Any) -> datetime | None:
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


def _has_time(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_time(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_time(kind.elementType)
    if isinstance(kind, MapType):
        return _has_time(kind.keyType) or _has_time(kind.valueType)
    return isinstance(kind, TimestampType)
