"""Schemas of what the jobs read. Each source gives exactly one of these; each job's outputs are beside the job.

Times are timestamps (UTC, as the session). What is not known is null, never zero. Capacities, counts and sequence
numbers are longs. Every field is nullable, as Spark makes those of files; the identifying ones are never null, and maps
are empty rather than null: a record without them is refused by its source.
"""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """What a task gives Spark for the schema."""
    return to_arrow_schema(schema, timezone="UTC")


_TEXT, _LONG, _DOUBLE, _TIME = StringType(), LongType(), DoubleType(), TimestampType()
_FLAG, _BYTES = BooleanType(), BinaryType()
_TEXTS = MapType(_TEXT, _TEXT)
_NUMBERS = MapType(_TEXT, _DOUBLE)

EVENTS = StructType(
    [
        StructField("hub", _TEXT),
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("offset", _TEXT),
        StructField("enqueued_at", _TIME),
        StructField("body", _BYTES),
        StructField("properties", _TEXTS),
        StructField("system_properties", _TEXTS),
        StructField("file", _TEXT),
    ]
)
"""Events of a hub, from capture files or live (`file` is then null). (`hub`, `partition`, `sequence_number`) identify
an event. Values of properties are texts: numbers as JSON writes them, bytes that are no UTF-8 as base64.
"""

PARTITION_STATE = StructType(
    [
        StructField("partition", _TEXT),
        StructField("last_enqueued", _LONG),
        StructField("received", _LONG),
        StructField("low_water", _LONG),
        StructField("lag", _LONG),
        StructField("in_flight", _LONG),
    ]
)
"""As `consumer.telemetry.records.PartitionRecord`."""

TELEMETRY = StructType(
    [
        StructField("kind", _TEXT),
        StructField("at", _TIME),
        StructField("consumer", _TEXT),
        StructField("instance", _TEXT),
        StructField("hub", _TEXT),
        StructField("consumer_group", _TEXT),
        # interval
        StructField("seconds", _DOUBLE),
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
        StructField("rate_limit", _DOUBLE),
        StructField("backlog_count", _LONG),
        StructField("backlog_bytes", _LONG),
        StructField("oldest_age_s", _DOUBLE),
        StructField("in_flight_batches", _LONG),
        StructField("paused", _FLAG),
        StructField("stopping", _FLAG),
        StructField("partitions", ArrayType(PARTITION_STATE)),
        # checkpoint
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("offset", _TEXT),
        StructField("epoch", _LONG),
        StructField("left", _LONG),
        StructField("file", _TEXT),
    ]
)
"""Records of `consumer.telemetry.records`: `kind` is "interval" or "checkpoint", and the columns of the other kind are
null. An interval is identified by (`consumer`, `instance`, `at`), a checkpoint also by `partition`.
"""

DECISIONS = StructType(
    [
        StructField("target", _TEXT),
        StructField("at", _TIME),
        StructField("kind", _TEXT),
        StructField("key", _TEXT),
        StructField("line", _TEXT),
        StructField("reason", _TEXT),
        StructField("current", _LONG),
        StructField("desired", _LONG),
        StructField("by", _TEXT),
        StructField("metrics", _NUMBERS),
        # decisions
        StructField("proposed", _LONG),
        StructField("minimum", _LONG),
        StructField("maximum", _LONG),
        StructField("recommendation", _TEXT),
        StructField("inputs", _BYTES),
        # effects
        StructField("outcome", _TEXT),
        StructField("from_capacity", _LONG),
        StructField("to_capacity", _LONG),
        StructField("reached", _LONG),
        StructField("action_id", _TEXT),
    ]
)
"""The scaling log: `scaling.model.LogEntry` with its recommendation and effect laid open. `kind` is "decision",
"effect", "control" or "verify"; (`target`, `at`, `kind`, `key`) identify an entry, and a later copy replaces an earlier.
`recommendation` is JSON, `inputs` what `scaling.analysis.replay.decode_inputs` reads.
"""

METRICS = StructType(
    [
        StructField("target", _TEXT),
        StructField("metric", _TEXT),
        StructField("at", _TIME),
        StructField("value", _DOUBLE),
    ]
)
"""Samples the autoscaler collected; (`target`, `metric`, `at`) identify one."""

APP_EVENTS = StructType(
    [
        StructField("timestamp", _TIME),
        StructField("name", _TEXT),
        StructField("item_count", IntegerType()),
        StructField("measurements", _NUMBERS),
        StructField("dimensions", _TEXTS),
        StructField("operation_id", _TEXT),
        StructField("role", _TEXT),
        StructField("sdk_version", _TEXT),
        StructField("source", _TEXT),
        StructField("item_id", _TEXT),
    ]
)
"""Custom events of Application Insights; each stands for `item_count` events that happened. `source` is the table:
"customEvents" (classic) or "AppEvents" (workspace). `item_id` is the stored record's own, null where the export leaves it out.
"""
