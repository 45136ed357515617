"""The steps `cast` and `time`: values of one type made another. What cannot be converted exactly is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

from consumer.mapping.steps.paths import WrongTypeError, kind, value_text

_NUMBER = re.compile(r"-?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,3})?")
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
_TICKS = {"epoch_s": 1_000_000, "epoch_ms": 1_000, "epoch_us": 1}
"""Microseconds of a unit."""


def _number(value: Any, where: str) -> int | float:
    """A text's number; a whole one stays whole."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = value_text(value, where)
    if isinstance(value, str | Decimal) and _NUMBER.fullmatch(text.strip()):
        number = float(text) if set(text) & set(".eE") else int(text)
        if isinstance(number, int) or isfinite(number):
            return number
    raise WrongTypeError(f"'{where}' is {kind(value)} that is no number")


def _integer(value: Any, where: str) -> int:
    if isinstance(value, bool):
        return int(value)
    number = _number(value, where)
    if isinstance(number, float) and not number.is_integer():
        raise WrongTypeError(f"'{where}' has a fraction; expected a whole number")
    return int(number)


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    truth = _TRUTHS.get(value_text(value, where).strip().lower())
    if truth is None:
        raise WrongTypeError(f"'{where}' is {kind(value)}; expected true, false, 1 or 0")
    return truth


CASTS: Mapping[str, Callable[[Any, str], Any]] = {
    "text": value_text,
    "number": _number,
    "integer": _integer,
    "boolean": _boolean,
}
"""Types of `cast`, by name. Each gets a value and its path. Raise WrongTypeError."""


def read_form(form: str) -> str:
    """A form of time: iso, epoch_s, epoch_ms, epoch_us, or a format of strftime. Raises ValueError."""
    if form != "iso" and form not in _TICKS and "%" not in form:
        raise ValueError(
            f"found {form!r}; accepted: iso, {', '.join(_TICKS)}, or a format such as '%Y-%m-%d %H:%M:%S'"
        )
    return form


def convert_time(value: Any, where: str, source: str, target: str) -> Any:
    """A time in another form. A text without a zone is UTC. Raises WrongTypeError."""
    try:
        return _written(_time(value, where, source), target)
    except (ValueError, OverflowError) as error:
        raise WrongTypeError(f"'{where}' is no time of the form {source}: {error}") from None


def _time(value: Any, where: str, form: str) -> datetime:
    if isinstance(value, datetime):  # decoded as a time already
        time = value
    elif form in _TICKS:
        number = _number(value, where)
        if isinstance(number, float) and not isfinite(number):
            raise ValueError("not finite")
        return _EPOCH + round(Decimal(str(number)) * _TICKS[form]) * _MICROSECOND
    elif not isinstance(value, str):
        raise WrongTypeError(f"'{where}' is {kind(value)}; expected a text of the form {form}")
    else:
        time = datetime.fromisoformat(value) if form == "iso" else datetime.strptime(value, form)  # noqa: DTZ007 - set below
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)


def _written(time: datetime, form: str) -> Any:
    if form in _TICKS:
        ticks = (time - _EPOCH) // _MICROSECOND
        return ticks // _TICKS[form] if ticks % _TICKS[form] == 0 else ticks / _TICKS[form]
    if form != "iso":
        return time.strftime(form)
    precision = (
        "seconds" if time.microsecond == 0 else "microseconds" if time.microsecond % 1000 else "milliseconds"
    )
    return time.isoformat(timespec=precision).replace("+00:00", "Z")
