"""Reads Retry-After and similar headers: how long an answer asks to wait."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime

_HEADERS = (("x-ms-retry-after-ms", 0.001), ("retry-after-ms", 0.001), ("Retry-After", 1.0))


def retry_after(headers: Mapping[str, str], *, cosmos: bool = False) -> float | None:
    """Seconds a service asks to wait, never below 0; None without such a header, or with an unreadable one.

    Retry-After holds seconds or an HTTP date (RFC 9110, 10.2.3); a date counts from the answer's own `Date`, and from this
    machine's clock where there is none. With `cosmos` only Cosmos DB's own header counts: a gateway's Retry-After may ask
    for minutes.
    """
    for name, scale in _HEADERS[: 1 if cosmos else None]:
        text = str(headers.get(name) or "").strip()
        try:
            # HTTP libraries join a repeated header by commas.
            seconds = max(float(value) for value in text.split(",")) * scale
        except ValueError:
            sent = str(headers.get("Date") or "")
            seconds = _seconds_until(text, sent) if name == "Retry-After" else math.nan
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _seconds_until(date: str, sent: str) -> float:
    """From one HTTP date to another; from now without a second one, NaN for an invalid date."""
    begin = _http_date(sent)
    return _http_date(date) - (time.time() if math.isnan(begin) else begin)


def _http_date(text: str) -> float:
    """The time of an HTTP date, which is in UTC also without a zone (RFC 9110, 5.6.7); NaN for an invalid one."""
    with suppress(ValueError, TypeError, OverflowError):
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    return math.nan
