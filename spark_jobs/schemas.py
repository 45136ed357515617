"""Schemas of what the jobs read. Each source gives exactly one of these; each job's outputs are beside the job.

Times are timestamps (UTC, as the session). What is not known is null, never zero. Capacities, counts and sequence
numbers are longs.
"""

from __future__ import annotations

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

_TEXT, _LONG, _DOUBLE, _TIME = StringType(), LongType(), DoubleType(), TimestampType()
_FLAG, _BYTES = BooleanType(), BinaryType()
_TEXTS = MapType(_TEXT, _TEXT)
_NUMBERS = MapType(_TEXT, _DOUBLE, valueContainsNull=False)

EVENTS = StructType(
    [
        StructField("hub", _TEXT, nullable=False),
        StructField("partition", _TEXT, nullable=False),
        StructField("sequence_number", _LONG, nullable=False),
        StructField("offset", _TEXT, nullable=False),
        StructField("enqueued_at", _TIME, nullable=False),
        StructField("body", _BYTES),
        StructField("properties", _TEXTS, nullable=False),
        StructField("system_properties", _TEXTS, nullable=False),
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
"""As `consumer.telemetry_records.PartitionRecord`."""

TELEMETRY = StructType(
    [
        StructField("kind", _TEXT, nullable=False),
        StructField("at", _TIME, nullable=False),
        StructField("consumer", _TEXT, nullable=False),
        StructField("instance", _TEXT, nullable=False),
        StructField("hub", _TEXT, nullable=False),
        StructField("consumer_group", _TEXT, nullable=False),
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
        StructField("partitions", ArrayType(PARTITION_STATE, containsNull=False)),
        # checkpoint
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("offset", _TEXT),
        StructField("epoch", _LONG),
        StructField("left", _LONG),
        StructField("file", _TEXT),
    ]
)
"""Records of `consumer.telemetry_records`: `kind` is "interval" or "checkpoint", and the columns of the other kind are
null. An interval is identified by (`consumer`, `instance`, `at`), a checkpoint also by `partition`.
"""

CONSUMER_STATS = StructType(
    [
        StructField("consumer", _TEXT, nullable=False),
        StructField("instance", _TEXT, nullable=False),
        StructField("at", _TIME, nullable=False),
        StructField("hub", _TEXT),
        StructField("consumer_group", _TEXT),
        StructField("rate_limit", _DOUBLE),
        StructField("received_per_s", _DOUBLE),
        StructField("written_per_s", _DOUBLE),
        StructField("retried_per_s", _DOUBLE),
        StructField("throttled_share", _DOUBLE),
        StructField("ru_per_record", _DOUBLE),
        StructField("last_ru_per_record", _DOUBLE),
        StructField("ru_per_s", _DOUBLE),
        StructField("backlog_count", _LONG),
        StructField("backlog_bytes", _LONG),
        StructField("oldest_age_s", _DOUBLE),
        StructField("dead_letters_total", _LONG),
        StructField("written_total", _LONG),
        StructField("failed_total", _LONG),
        StructField("retried_total", _LONG),
        StructField("throttled_total", _LONG),
        StructField("partitions", ArrayType(PARTITION_STATE, containsNull=False)),
        StructField("paused", _FLAG),
        StructField("stopping", _FLAG),
    ]
)
"""The table ConsumerStats: how each instance stood when it last wrote its row; as `scaling.consumer_stats`."""

DECISIONS = StructType(
    [
        StructField("target", _TEXT, nullable=False),
        StructField("at", _TIME, nullable=False),
        StructField("kind", _TEXT, nullable=False),
        StructField("key", _TEXT, nullable=False),
        StructField("line", _TEXT),
        StructField("reason", _TEXT),
        StructField("current", _LONG),
        StructField("desired", _LONG),
        StructField("by", _TEXT),
        StructField("metrics", _NUMBERS, nullable=False),
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
`recommendation` is JSON, `inputs` what `scaling.replay.decode_inputs` reads.
"""

METRICS = StructType(
    [
        StructField("target", _TEXT, nullable=False),
        StructField("metric", _TEXT, nullable=False),
        StructField("at", _TIME, nullable=False),
        StructField("value", _DOUBLE, nullable=False),
    ]
)
"""Samples the autoscaler collected; (`target`, `metric`, `at`) identify one."""

APP_EVENTS = StructType(
    [
        StructField("timestamp", _TIME, nullable=False),
        StructField("name", _TEXT, nullable=False),
        StructField("item_count", IntegerType(), nullable=False),
        StructField("measurements", _NUMBERS, nullable=False),
        StructField("dimensions", _TEXTS, nullable=False),
        StructField("operation_id", _TEXT),
        StructField("role", _TEXT),
        StructField("sdk_version", _TEXT),
        StructField("source", _TEXT, nullable=False),
    ]
)
"""Custom events of Application Insights; each stands for `item_count` events that happened. `source` is the table:
"customEvents" (classic) or "AppEvents" (workspace).
"""
