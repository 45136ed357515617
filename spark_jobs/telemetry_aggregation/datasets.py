"""The job's inputs: what identifies a record, which columns matter, and the states of a minute made of its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from spark_jobs.telemetry_aggregation import transforms
from spark_jobs.telemetry_aggregation.capacity import carried, scaling_states
from spark_jobs.telemetry_aggregation.gauges import gauge_states
from spark_jobs.telemetry_aggregation.minutes.windows import micros

States = Mapping[str, DataFrame]
"""By table: gauges, flows, scaling."""

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

    `states(records, since, until)` makes the states (of `tables`) of [since, until), both in microseconds; records before `since`
    are such as `carry(records, since)` kept.
    """

    name: str
    tables: tuple[str, ...]
    keys: tuple[str, ...]
    prepare: Callable[[DataFrame], DataFrame]
    valid: Column
    states: Callable[[DataFrame, Column, Column], States]
    carry: Callable[[DataFrame, Column], DataFrame] | None = None


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
        states=lambda records, _since, _until: {
            "gauges": gauge_states(transforms.samples_of_metrics(records))
        },
    )


def telemetry() -> Dataset:
    """The consumer's records as TELEMETRY."""

    def states(records: DataFrame, _since: Column, _until: Column) -> States:
        return {
            "gauges": gauge_states(transforms.samples_of_telemetry(records)),
            "flows": transforms.flow_states(records),
        }

    return Dataset(
        name="telemetry",
        tables=("gauges", "flows"),
        keys=("kind", "consumer", "instance", "partition", "at"),
        prepare=lambda frame: frame.select(*TELEMETRY_COLUMNS),
        valid=F.expr("true"),
        states=states,
    )


def decisions(*, hold: int, with_samples: bool) -> Dataset:
    """The scaling log as DECISIONS. `hold` as in `capacity`; its metrics are left out where samples come themselves."""

    def states(records: DataFrame, since: Column, until: Column) -> States:
        scaling = {"scaling": scaling_states(records, since=since, until=until, hold=hold)}
        if not with_samples:
            return scaling
        new = records.where(micros("at") >= since)
        return {"gauges": gauge_states(transforms.samples_of_decisions(new)), **scaling}

    return Dataset(
        name="decisions",
        tables=("gauges", "scaling") if with_samples else ("scaling",),
        keys=("target", "at", "kind", "key"),
        # Maps cannot be compared, and copies are: entries in the order of their names can.
        prepare=lambda frame: frame.select(
            *DECISION_COLUMNS, F.array_sort(F.map_entries("metrics")).alias("metrics")
        ),
        valid=F.expr("true"),
        states=states,
        carry=carried,
    )
