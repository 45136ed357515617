"""Converts a JSON value to the value that a column's type takes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec
from sqlalchemy import ARRAY, JSON, Date, DateTime, LargeBinary, Time, Uuid
from sqlalchemy.types import TypeEngine

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999; databases and Python have no dates outside them."""

Coercer = Callable[[Any], Any]
"""Raises ValueError or TypeError, with a sentence, for a value that the column can never take."""


def coercer(column: TypeEngine[Any]) -> Coercer:
    """Most values are left to the database; objects and lists become JSON text."""
    if isinstance(column, JSON):
        column.none_as_null = True  # a name that is not in the body is NULL, not the JSON value null
        return _same
    if isinstance(column, DateTime):
        return _aware if column.timezone else _utc
    return next((coerce for kind, coerce in _BY_TYPE.items() if isinstance(column, kind)), _scalar)


def _same(value: Any) -> Any:
    return value


def _scalar(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value


def _aware(value: Any) -> datetime | None:
    """Reads ISO 8601 text, UTC unless it has a time zone, or epoch seconds."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _from_epoch(value)
    time = datetime.fromisoformat(_text(value, "a date and time"))
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _from_epoch(seconds: float) -> datetime:
    if not _FIRST_SECOND <= seconds < _LAST_SECOND + 1:
        raise ValueError(
            f"{seconds:g} is no time in epoch seconds; accepted: {_FIRST_SECOND} to {_LAST_SECOND}, the years 1 to 9999."
            " Were these milliseconds, microseconds or nanoseconds?"
        )
    return _EPOCH + timedelta(seconds=seconds)


def _utc(value: Any) -> datetime | None:
    time = _aware(value)
    try:
        return None if time is None else time.astimezone(UTC).replace(tzinfo=None)
    except OverflowError as error:
        raise ValueError(f"'{value}' is beyond the years 1 to 9999 in UTC") from error


def _read_by(read: Callable[[str], Any], expected: str) -> Coercer:
    return lambda value: None if value is None else read(_text(value, expected))


def _text(value: Any, expected: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected {expected}, found a JSON {type(value).__name__}")
    return value


_BY_TYPE: dict[type[TypeEngine[Any]], Coercer] = {
    ARRAY: _same,
    Date: _read_by(date.fromisoformat, "a date"),
    Time: _read_by(time.fromisoformat, "a time"),
    Uuid: _read_by(uuid.UUID, "a UUID"),
    LargeBinary: _read_by(str.encode, "text"),
}
