"""From the records of the inputs to the tables of all windows. DataFrame in, DataFrame out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from operator import and_
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.platform.rows import RowAccount, cached, collected
from spark_jobs.telemetry_aggregation.capacity import scaling
from spark_jobs.telemetry_aggregation.datasets import Dataset
from spark_jobs.telemetry_aggregation.gauges import gauges
from spark_jobs.telemetry_aggregation.kernel.samples import SERIES
from spark_jobs.telemetry_aggregation.schemas import TABLES
from spark_jobs.telemetry_aggregation.transforms import distinct, flows, micros
from tidemark.analysis.errors import InputError

Counts = tuple[int, int, int, int, int]
"""As QUALITY has them: read, twice there, late, ahead of the clock, invalid."""


class InputRecords(NamedTuple):
    """Valid records of an input, before `until` (microseconds). `rows` is how many there are at most, None if nobody knows;
    `account` counts what is left out, where that is not known before they are read.
    """

    dataset: Dataset
    records: DataFrame
    until: int
    rows: int | None = None
    account: RowAccount | None = None


def records_once(
    dataset: Dataset, frame: DataFrame, limit: int, used: ExitStack
) -> tuple[InputRecords, Counts]:
    """The valid records until `limit` (microseconds), each once and cached while `used` lasts, and what became of all.

    Raises InputError when there is none: an empty input is an error of the path more often than a quiet day.
    """
    account, at = RowAccount(f"--{dataset.name}"), micros("at")
    valid = dataset.valid & F.col("at").isNotNull()
    rows = account.without(dataset.prepare(frame), {"invalid": ~valid, "ahead": at > limit})
    kept = used.enter_context(cached(distinct(rows, dataset.keys, copies=True)))
    totals = F.count("*").alias("kept"), F.sum(F.col("copies") - 1).alias("twice"), F.max(at).alias("newest")
    [row] = collected(kept.select(*totals))
    if not row.kept:
        raise InputError(f"--{dataset.name} holds no valid record in the time asked for")
    _, read, counts, _ = account.check(kept=row.kept, duplicates=row.twice)
    quality = read, row.twice, 0, counts["ahead"], counts["invalid"]
    return InputRecords(dataset, kept.drop("copies"), row.newest), quality


class Prices(Protocol):
    """Per instance-hour, or per 100 RU/s-hour for `request_unit_targets`."""

    @property
    def prices(self) -> Mapping[str, float]: ...

    @property
    def request_unit_targets(self) -> frozenset[str]: ...


def tables_of(taken: Sequence[InputRecords], prices: Prices) -> dict[str, DataFrame]:
    """The tables of all windows that the records make, which may come from several inputs."""
    names = {name for records in taken for name in records.dataset.tables}
    return {name: table_of(name, taken, prices) for name in TABLES if name in names}


def table_of(name: str, taken: Sequence[InputRecords], prices: Prices) -> DataFrame:
    """A table of all windows out of the records of the inputs that have part in it, of which there is one at least."""
    given = [records for records in taken if name in records.dataset.tables]
    if name == "gauges":
        made = [
            _gauges([records for records in given if records.dataset.has_copies is flag])
            for flag in (False, True)
        ]
        return united(filter(None, made))
    states = united(part_of(name, records) for records in given)
    if name == "flows":
        return flows(states)
    return scaling(states, prices.prices, prices.request_unit_targets)


def _gauges(taken: Sequence[InputRecords]) -> DataFrame | None:
    if not taken:
        return None
    samples = united(part_of("gauges", records) for records in taken)
    known = [records.rows for records in taken if records.rows is not None]
    rows = sum(known) if len(known) == len(taken) else samples.count()
    return gauges(samples, rows, distinct=taken[0].dataset.has_copies)


def part_of(name: str, taken: InputRecords) -> DataFrame:
    return taken.dataset.parts(taken.records, F.lit(taken.until))[name]


def united(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def days_of(name: str, taken: Sequence[InputRecords]) -> set[str]:
    """The days of which the table has rows, as text: a record may make none."""
    days = set()
    for records in taken:
        part, time = part_of(name, records), F.col("at")
        if name == "gauges":  # what the kernel leaves out
            part = part.where(
                (F.abs("value") < float("inf")) & reduce(and_, (F.col(key).isNotNull() for key in SERIES))
            )
        else:
            time = F.timestamp_micros("minute")
        day = F.date_format(time, "yyyy-MM-dd").alias("day")
        days |= {row.day for row in collected(part.select(day).distinct())}
    return days
