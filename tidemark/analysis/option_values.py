"""Values of command-line options that several jobs share. Pure but for `today`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tidemark.analysis.errors import InputError
from tidemark.foundation.durations import parse_duration

DAYS_BACK = {"today": 0, "yesterday": 1}


def moment(option: str, text: str | None, now: datetime | None = None) -> datetime | None:
    """A time in ISO 8601; without a zone it is UTC. `today` and `yesterday` are when that day begins in UTC, for schedules that
    know no dates. `now` is the time that these count from (the clock's). Raises InputError naming the option.
    """
    if text is None:
        return None
    if text in DAYS_BACK:
        day = (now or datetime.now(UTC)).astimezone(UTC) - timedelta(days=DAYS_BACK[text])
        return day.replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{option} is '{text}'; accepted: ISO 8601, such as 2026-11-21 or 2026-11-21T08:00:00Z, today and yesterday"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def check_span(since: datetime | None, until: datetime | None) -> None:
    """Raises InputError where --to is not after --from."""
    if since is not None and until is not None and until <= since:
        raise InputError(f"--to ({until}) must be after --from ({since})")


def seconds(option: str, text: str) -> float:
    """Of a length such as 90s, 15m, 6h, 1d. Raises InputError naming the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def price_of(text: str) -> tuple[str, float]:
    """Of `--price`: target and amount. Raises InputError."""
    target, _, amount = text.rpartition("=")
    try:
        value = float(amount)
    except ValueError:
        value = -1.0
    if not target or not 0 <= value < float("inf"):
        raise InputError(
            f"--price is '{text}'; accepted: TARGET=AMOUNT with an amount of 0 or more, plan-orders=0.19"
        )
    return target, value
