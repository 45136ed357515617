"""Schemas of what the jobs read. Each source gives exactly one of these; each job's outputs are beside the job.

Times are timestamps (UTC, as the session). What is not known is null, never zero. Capacities, counts and sequence
numbers are longs. Every field is nullable, as Spark makes those of files; the identifying ones are never null, and maps
are empty rather than null: a record without them is refused by its source.
"""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from tidemark.analysis import arrow_columns


def row_schema(text: str, **others: T.DataType) -> T.StructType:
    """A schema of "name kind, name kind": of `arrow_columns.KINDS`, and of `others` by the name that the text has for them."""
    types = {kind: from_arrow_type(arrow) for kind, arrow in arrow_columns.KINDS.items()} | others
    return T.StructType([T.StructField(name, types[kind]) for name, kind in arrow_columns.named_kinds(text)])


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """What a task gives Spark for the schema."""
    return to_arrow_schema(schema, timezone="UTC")


EVENTS = row_schema(arrow_columns.EVENTS)
"""Events of a hub, from capture files or live (`file` is then null). (`hub`, `partition`, `sequence_number`) identify
an event. Values of properties are texts: numbers as JSON writes them, bytes that are no UTF-8 as base64.
"""

PARTITION_STATE = row_schema("""
    partition text, last_enqueued long, received long, low_water long, lag long, in_flight long
""")
"""As `consumer.telemetry.records.PartitionRecord`."""

TELEMETRY = row_schema(
    """
    kind text, at time, consumer text, instance text, hub text, consumer_group text,

    seconds double, received long, written long, dead_letters long, retried long, attempts long, throttled long,
    checkpoints long, checkpoints_failed long, request_units double, written_units double,
    rate_limit double, backlog_count long, backlog_bytes long, oldest_age_s double,
    in_flight_batches long, paused flag, stopping flag, partitions partition_states, partition text,
    sequence_number long, offset text, epoch long, left long, file text
    """,
    partition_states=T.ArrayType(PARTITION_STATE),
)
"""Records of `consumer.telemetry.records`: `kind` is "interval" or "checkpoint", and the columns of the other kind are
null. An interval is identified by (`consumer`, `instance`, `at`), a checkpoint also by `partition`.
"""

DECISIONS = row_schema("""
    target text, at time, kind text, key text, line text, reason text, current long, desired long,
    by text, metrics numbers, proposed long, minimum long, maximum long, recommendation text,
    inputs bytes, outcome text, from_capacity long, to_capacity long, reached long, action_id text, shadow long
""")
"""The scaling log: `scaling.model.LogEntry` with its recommendation and effect laid open. `kind` is "decision",
"effect", "control" or "verify"; (`target`, `at`, `kind`, `key`) identify an entry, and a later copy replaces an earlier.
`recommendation` is JSON, `shadow` the capacity that the simulated rules imagined, `inputs` what `scaling.analysis.replay.decode_inputs` reads.
"""

METRICS = row_schema("target text, metric text, at time, value double")
"""Samples the autoscaler collected; (`target`, `metric`, `at`) identify one."""

APP_EVENTS = row_schema("""
    timestamp time, name text, item_count int, measurements numbers, dimensions texts,
    operation_id text, role text, sdk_version text, source text, item_id text
""")
"""Custom events of Application Insights; each stands for `item_count` events that happened. `source` is the table:
"customEvents" (classic) or "AppEvents" (workspace). `item_id` is the stored record's own, null where the export leaves it out.
"""
