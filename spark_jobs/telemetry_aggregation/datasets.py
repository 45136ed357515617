"""The job's inputs: what identifies a record, which columns matter, and what is made of its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.telemetry_aggregation import transforms
from spark_jobs.telemetry_aggregation.capacity import scaling_states

Parts = Mapping[str, DataFrame]
"""By table: samples for gauges, states of minutes for flows and scaling."""

DECISION_COLUMNS = (
    *("target", "at", "kind", "key"),
    *("current", "desired", "outcome", "from_capacity", "reached"),
)
TELEMETRY_COLUMNS = (
    *("kind", "at", "consumer", "instance", "hub", "consumer_group"),
    *("partition", "left", "partitions", "paused"),
    *(*transforms.COUNTERS, *transforms.AMOUNTS, *transforms.INSTANCE_GAUGES),
)


@dataclass(frozen=True, slots=True)
class Dataset:
    """One kind of input. Records have `at`; those with equal `keys` are copies of one.

    `parts(records, until)` makes parts of `tables` from records before `until`, in microseconds. A row of `scaling` is made of
    records up to `reach` (microseconds) away from its window, too. With `has_copies` records are given with their copies, which
    the kernel drops: it sorts samples anyway.
    """

    name: str
    tables: tuple[str, ...]
    keys: tuple[str, ...]
    prepare: Callable[[DataFrame], DataFrame]
    valid: Column
    parts: Callable[[DataFrame, Column], Parts]
    reach: int = 0
    has_copies: bool = False


def metrics() -> Dataset:
    """Samples as METRICS."""
    return Dataset(
        name="metrics",
        tables=("gauges",),
        keys=("target", "metric", "at"),
        prepare=lambda frame: frame.select("target", "metric", "at", "value"),
        valid=F.coalesce(F.abs("value") < F.lit(float("inf")), F.expr("false"))  # not null, NaN or infinite
        & F.col("target").isNotNull()
        & F.col("metric").isNotNull(),
        parts=lambda records, _until: {"gauges": transforms.samples_of_metrics(records)},
        has_copies=True,
    )


def telemetry() -> Dataset:
    """The consumer's records as TELEMETRY."""

    def parts(records: DataFrame, _until: Column) -> Parts:
        return {
            "gauges": transforms.samples_of_telemetry(records),
            "flows": transforms.flow_states(records),
        }

    return Dataset(
        name="telemetry",
        tables=("gauges", "flows"),
        keys=("kind", "consumer", "instance", "partition", "at"),
        prepare=lambda frame: frame.select(*TELEMETRY_COLUMNS),
        valid=F.expr("true"),
        parts=parts,
    )


def decisions(*, hold: int, with_samples: bool) -> Dataset:
    """The scaling log as DECISIONS. `hold` as in `capacity`; its metrics are left out where samples come themselves."""

    def parts(records: DataFrame, until: Column) -> Parts:
        scaling = {"scaling": scaling_states(records, until=until, hold=hold)}
        return {"gauges": transforms.samples_of_decisions(records), **scaling} if with_samples else scaling

    return Dataset(
        name="decisions",
        tables=("gauges", "scaling") if with_samples else ("scaling",),
        keys=("target", "at", "kind", "key"),
        # Maps cannot be compared, and copies are: entries in the order of their names can.
        prepare=lambda frame: frame.select(
            *DECISION_COLUMNS, F.array_sort(F.map_entries("metrics")).alias("metrics")
        ),
        valid=F.expr("true"),
        parts=parts,
        reach=hold,
    )
