"""Columns of EVENTS in Arrow, from whatever source: names, types, times and texts of properties. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from spark_jobs.sources.columns.avro_container import CorruptFileError
from tidemark.analysis.arrow_columns import EVENTS, arrow_columns

_SCHEMA = arrow_columns(EVENTS)
EVENT_COLUMNS = tuple(_SCHEMA.names)

STEP_BACK = 60_000_000
"""Microseconds by which the times of a hub's partition may go back where its numbers go on. Chosen: clocks of brokers are corrected by
less, and a hub is hardly deleted, made anew and filled in less.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_US_TIME = re.compile(
    r"(\d{1,2})/(\d{1,2})/(\d{4}) (\d{1,2}):(\d\d):(\d\d)(?:\.(\d{1,7}))? ([AP])M", re.ASCII
)


class Origin(NamedTuple):
    """What all events of a file have in common, or of a partition read live: `file` is None then."""

    hub: str
    partition: str
    file: str | None = None


class EventRow(NamedTuple):
    """An event read by itself; `enqueued_at` is microseconds since 1970."""

    sequence_number: int
    offset: str
    enqueued_at: int
    body: bytes | None
    properties: Mapping[str, Any]
    system_properties: Mapping[str, Any]


def batch_of(rows: Iterable[EventRow], origin: Origin, columns: Collection[str]) -> pa.RecordBatch:
    """Rows as a batch of `columns`."""
    events = list(rows)
    chosen = [column for column in EVENT_COLUMNS if column in columns]
    arrays = [pa.array(_values(events, origin, column), _SCHEMA.field(column).type) for column in chosen]
    return pa.RecordBatch.from_arrays(arrays, names=chosen)


def _values(events: list[EventRow], origin: Origin, column: str) -> list[Any]:
    if column in Origin._fields:
        return [getattr(origin, column)] * len(events)
    values = [getattr(event, column) for event in events]
    return list(map(_texts, values)) if column in {"properties", "system_properties"} else values


def _texts(values: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    return [(name, text_of(value)) for name, value in values.items()]


def text_of(value: Any) -> str | None:
    """A property's value as text: numbers and truth values as JSON has them, bytes as UTF-8, else as base64."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return _text_of_bytes(value)
    if isinstance(value, float) and not isfinite(value):
        return json.dumps(value)  # NaN, Infinity: as Python's JSON writes what JSON has no word for
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    return str(value)


def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def constant(text: str, count: int) -> pa.Array:
    raw = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * len(raw)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw * count)]
    )


@lru_cache(maxsize=4096)
def instant(text: str) -> int:
    """Microseconds since 1970 of a time as Capture writes it ("11/21/2026 8:02:14 AM"), or in ISO 8601; UTC.

    Raises CorruptFileError.
    """
    try:
        match = _US_TIME.fullmatch(text)
        time = us_moment(match) if match else datetime.fromisoformat(text)
    except ValueError as error:
        raise CorruptFileError(
            f"the time of an event is '{text[:60]}'; accepted are forms like '11/21/2026 8:02:14 AM' and"
            " '2026-11-21T08:02:14Z'"
        ) from error
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // _MICROSECOND


def us_moment(match: re.Match[str]) -> datetime:
    """UTC, of month, day, year, hour, minute, second, fraction, and A or P, if there is one. Raises ValueError."""
    month, day, year, hour, minute, second = (int(part) for part in match.groups()[:6])
    if match[8] and not 1 <= hour <= 12:
        raise ValueError(match[0])
    hour = hour % 12 + 12 * (match[8] == "P") if match[8] else hour
    fraction = int((match[7] or "0").ljust(6, "0")[:6])
    return datetime(year, month, day, hour, minute, second, fraction, tzinfo=UTC)
