"""The types of our columns by short names, as Arrow has them. Pure."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]

KINDS: dict[str, pa.DataType] = {
    "text": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "time": pa.timestamp("us", "UTC"),
    "flag": pa.bool_(),
    "bytes": pa.binary(),
    "texts": pa.map_(pa.string(), pa.string()),
    "numbers": pa.map_(pa.string(), pa.float64()),
}

EVENTS = """
    hub text, partition text, sequence_number long, offset text, enqueued_at time, body bytes,
    properties texts, system_properties texts, file text
"""
"""Of `schemas.EVENTS`, for those who make them without Spark."""


def named_kinds(text: str) -> list[tuple[str, str]]:
    """Name and kind of each column in "name kind, name kind"."""
    return [(name, kind) for name, kind in (column.split() for column in text.split(","))]


def arrow_columns(text: str) -> pa.Schema:
    """The schema of "name kind, name kind"."""
    return pa.schema([(name, KINDS[kind]) for name, kind in named_kinds(text)])
