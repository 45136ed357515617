"""How long an answer asks to wait: the one reader of Retry-After and of its relatives."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime

_HEADERS = (("x-ms-retry-after-ms", 0.001), ("retry-after-ms", 0.001), ("Retry-After", 1.0))


def retry_after(headers: Mapping[str, str], *, cosmos: bool = False) -> float | None:
    """Seconds a service asks to wait, never below 0; None where it does not ask, or in words that nobody knows.

    Retry-After holds seconds or an HTTP date (RFC 9110, 10.2.3); a date counts from the answer's own `Date`, and from this
    machine's clock where there is none. With `cosmos` only Cosmos DB's own header counts: a gateway's Retry-After may ask
    for minutes.
    """
    for name, scale in _HEADERS[: 1 if cosmos else None]:
        text = str(headers.get(name) or "").strip()
        try:
            seconds = (
                max(float(each) for each in text.split(",")) * scale
            )  # a header that came twice is joined
        except ValueError:
            seconds = (
                _seconds_until(text, str(headers.get("Date") or "")) if name == "Retry-After" else math.nan
            )
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _seconds_until(date: str, sent: str) -> float:
    """From one HTTP date to another; from now where the answer has none, NaN for what is no date."""
    begin = _http_date(sent)
    return _http_date(date) - (time.time() if math.isnan(begin) else begin)


def _http_date(text: str) -> float:
    """A date of HTTP, which is in UTC also where it names no zone (RFC 9110, 5.6.7); NaN for what is none."""
    with suppress(ValueError, TypeError, OverflowError):
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    return math.nan
