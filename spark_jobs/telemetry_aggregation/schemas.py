"""What the job writes. Times are UTC; null is not known. One row per window and identity.

`window` is "1m", "1h" or "1d", `window_start` its beginning. Percentiles carry their bound in the field's metadata as
`relative_error`: a value lies within that share of the exact percentile by nearest rank (the smallest value that at
least p percent of the samples do not exceed). Everything else is exact, sums of doubles up to their rounding.
"""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from spark_jobs.schemas import row_schema
from spark_jobs.telemetry_aggregation.kernel.buckets import PERCENTS, RELATIVE_ERROR
from spark_jobs.telemetry_aggregation.kernel.rows import ROWS

_BOUND = {"relative_error": RELATIVE_ERROR}
_PERCENTILES = {f"p{percent}" for percent in PERCENTS}

SAMPLES = row_schema("subject text, part text, metric text, at time, value double")
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

FLOWS = row_schema("""
    window text, window_start time, consumer text, hub text, consumer_group text, intervals long,
    instances long, covered_s double, received long, written long, dead_letters long, retried long,
    attempts long, throttled long, checkpoints long, checkpoints_failed long, request_units double,
    written_units double, received_per_s double, written_per_s double, request_units_per_s double,
    throttled_share double, request_units_per_record double, paused_share double
""")
"""Sums over all instances' intervals that end in the window. Rates are per second of `covered_s`, the time from the
first interval's beginning to the last one's end. `throttled_share` is of attempts, null without any;
`request_units_per_record` charges for records written, null when none was; `paused_share` is of intervals.
"""

SCALING = row_schema("""
    window text, window_start time, target text, decisions long, wanted_out long, wanted_in long,
    scaled_out long, scaled_in long, failed long, capacity_min long, capacity_max long,
    known_hours double, unit text, capacity_hours double, cost double
""")
"""`wanted_*` are decisions for a change, `scaled_*` effects that moved the target, `failed` those that did not: each action counts
once, at the first of its effects that moved the target, or else the first that did not.
`capacity_hours` is capacity over the hours it was known (`known_hours`): instance-hours, or RU/s-hours where `unit` says
so. `cost` is null without a price.
"""

TABLES = {"gauges": GAUGES, "flows": FLOWS, "scaling": SCALING}

COUNTS = ("read", "duplicates", "late", "ahead", "invalid")

QUALITY = row_schema(f"input text, {', '.join(f'{name} long' for name in COUNTS)}")
"""What became of the rows of each input: all that were read are aggregated but for these. `ahead`: of a time that has not come yet."""
