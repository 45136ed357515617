"""Rows of TELEMETRY, DECISIONS and METRICS from what the consumer and the autoscaler wrote. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import Any

import msgspec
from msgspec import Raw, Struct

from consumer.telemetry.records import CheckpointRecord, IntervalRecord
from scaling.log_entry import LogEntry
from spark_jobs.sources.records.records import RejectedError

Row = dict[str, Any]

_telemetry = msgspec.json.Decoder(IntervalRecord | CheckpointRecord)
_MAX_LONG = 2**63


class _Recommendation(Struct):
    """What is laid open of a `scaling.model.Recommendation`."""

    proposed: int | None = None
    minimum: int | None = None
    maximum: int | None = None


class _Effect(Struct):
    """What is laid open of a `scaling.model.Effect`."""

    action_id: str
    outcome: str
    from_capacity: int
    to_capacity: int
    reached: int | None


class _Shadow(Struct):
    current: int


class _Entry(Struct):
    """A `scaling.model.LogEntry` as JSON has it: NaN is null there."""

    target: str
    at: float
    kind: str
    key: str
    line: str
    reason: str
    current: int | None = None
    desired: int | None = None
    recommendation: Raw = Raw(b"null")
    effect: _Effect | None = None
    by: str | None = None
    metrics: dict[str, float | None] = {}
    inputs: bytes | None = None
    shadow: _Shadow | None = None


_entry = msgspec.json.Decoder(_Entry)
_recommendation = msgspec.json.Decoder(_Recommendation | None)


def moment(at: float) -> datetime:
    """Raises RejectedError for a time that no timestamp holds."""
    try:
        if not isfinite(at) or at < 0:
            raise ValueError(at)
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        raise RejectedError(f"the time {at} is not accepted; a time is seconds since 1970") from None


def telemetry_row(line: bytes) -> Row:
    """A row of TELEMETRY. Raises RejectedError."""
    try:
        record = _telemetry.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RejectedError(f"not a telemetry record: {error}") from None
    row = msgspec.structs.asdict(record)
    row["kind"] = record.__struct_config__.tag
    row["at"] = moment(record.at)
    if isinstance(record, IntervalRecord):
        row["partitions"] = [msgspec.structs.asdict(partition) for partition in record.partitions]
    return _within_long(row)


def decision_row(line: bytes) -> Row:
    """A row of DECISIONS from an entry's JSON, as `tidemark log --json` prints it. Raises RejectedError."""
    try:
        entry = _entry.decode(line)
        recommendation = _recommendation.decode(entry.recommendation)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RejectedError(f"not an entry of the scaling log: {error}") from None
    text = bytes(entry.recommendation).decode() if recommendation is not None else None
    metrics = {name: value for name, value in entry.metrics.items() if value is not None}
    row = {name: getattr(entry, name) for name in ("target", "kind", "key", "line", "reason", "by", "inputs")}
    row |= {"at": moment(entry.at), "current": entry.current, "desired": entry.desired}
    row |= {"shadow": None if entry.shadow is None else entry.shadow.current}
    row |= {"metrics": list(metrics.items()), "recommendation": text}
    for part in (recommendation, entry.effect):
        if part is not None:
            row |= msgspec.structs.asdict(part)
    return _within_long(row)


def entry_row(entry: LogEntry) -> Row:
    """A row of DECISIONS. Raises RejectedError."""
    return decision_row(msgspec.json.encode(entry))


def _within_long(row: Row) -> Row:
    for name, value in row.items():
        if isinstance(value, int) and not -_MAX_LONG <= value < _MAX_LONG:
            raise RejectedError(f"{name} is {value}; accepted are numbers of 64 bits")
    return row
