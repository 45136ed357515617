"""What the job writes. Times are UTC; null is not known. One row per window and identity.

`window` is "1m", "1h" or "1d", `window_start` its beginning. Percentiles carry their bound in the field's metadata as
`relative_error`: a value lies within that share of the exact percentile by nearest rank (the smallest value that at
least p percent of the samples do not exceed). Everything else is exact, sums of doubles up to their rounding.
"""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.telemetry_aggregation.minutes.buckets import PERCENTS, RELATIVE_ERROR
from spark_jobs.telemetry_aggregation.minutes.cells import ROWS

_TEXT, _LONG, _DOUBLE, _TIME = StringType(), LongType(), DoubleType(), TimestampType()
_BOUND = {"relative_error": RELATIVE_ERROR}
_PERCENTILES = {f"p{percent}" for percent in PERCENTS}
_WINDOW = [StructField("window", _TEXT), StructField("window_start", _TIME)]

SAMPLES = StructType(
    [
        StructField("subject", _TEXT),
        StructField("part", _TEXT),
        StructField("metric", _TEXT),
        StructField("at", _TIME),
        StructField("value", _DOUBLE),
    ]
)
"""Readings of gauges, whatever their source: of a target (`part` is empty), of a consumer's instance or partition."""

GAUGES = StructType(
    [
        StructField(field.name, field.dataType, metadata=_BOUND if field.name in _PERCENTILES else None)
        for field in from_arrow_schema(ROWS)
    ]
)
"""`drain_per_s` is how fast the gauge fell from the first to the last sample (negative: it rose), null with fewer than
two. `time_to_drain_s` is how long the last value lasts at that speed: 0 for an empty backlog, null for one that grows.
"""

FLOWS = StructType(
    [
        *_WINDOW,
        StructField("consumer", _TEXT),
        StructField("hub", _TEXT),
        StructField("consumer_group", _TEXT),
        StructField("intervals", _LONG),
        StructField("instances", _LONG),
        StructField("covered_s", _DOUBLE),
        StructField("received", _LONG),
        StructField("written", _LONG),
        StructField("dead_letters", _LONG),
        StructField("retried", _LONG),
        StructField("attempts", _LONG),
        StructField("throttled", _LONG),
        StructField("checkpoints", _LONG),
        StructField("checkpoints_failed", _LONG),
        StructField("request_units", _DOUBLE),
        StructField("written_units", _DOUBLE),
        StructField("received_per_s", _DOUBLE),
        StructField("written_per_s", _DOUBLE),
        StructField("request_units_per_s", _DOUBLE),
        StructField("throttled_share", _DOUBLE),
        StructField("request_units_per_record", _DOUBLE),
        StructField("paused_share", _DOUBLE),
    ]
)
"""Sums over all instances' intervals that end in the window. Rates are per second of `covered_s`, the time from the
first interval's beginning to the last one's end. `throttled_share` is of attempts, null without any;
`request_units_per_record` charges for records written, null when none was; `paused_share` is of intervals.
"""

SCALING = StructType(
    [
        *_WINDOW,
        StructField("target", _TEXT),
        StructField("decisions", _LONG),
        StructField("wanted_out", _LONG),
        StructField("wanted_in", _LONG),
        StructField("scaled_out", _LONG),
        StructField("scaled_in", _LONG),
        StructField("failed", _LONG),
        StructField("capacity_min", _LONG),
        StructField("capacity_max", _LONG),
        StructField("known_hours", _DOUBLE),
        StructField("unit", _TEXT),
        StructField("capacity_hours", _DOUBLE),
        StructField("cost", _DOUBLE),
    ]
)
"""`wanted_*` are decisions for a change, `scaled_*` effects that moved the target, `failed` those that did not.
`capacity_hours` is capacity over the hours it was known (`known_hours`): instance-hours, or RU/s-hours where `unit` says
so. `cost` is null without a price.
"""

TABLES = {"gauges": GAUGES, "flows": FLOWS, "scaling": SCALING}

QUALITY = StructType(
    [
        StructField("input", _TEXT),
        StructField("read", _LONG),
        StructField("duplicates", _LONG),
        StructField("late", _LONG),
        StructField("ahead", _LONG),
        StructField("invalid", _LONG),
    ]
)
"""What became of the rows of each input: all that were read are aggregated but for these. `ahead`: of a time that has not come yet."""
