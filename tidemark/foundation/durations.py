"""Reads durations such as `10m` as seconds, and writes them. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?"
)


SHORTEST = 1e-9
"""Seconds: the least that is more than 0, where a limit has to be named."""


def parse_duration(value: object) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, `2d`, or of a bare number of seconds. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        text = str(value).strip().replace(" ", "")
        match = _DURATION.fullmatch(text)
        if not text or match is None or not any(match.groups()):
            raise ValueError(f"found {value!r}; accepted are durations such as '90s', '10m', '1h30m', '2d'")
        factors = (86_400, 3_600, 60, 1)
        seconds = sum(
            float(part) * factor for part, factor in zip(match.groups(), factors, strict=True) if part
        )
    if not 0 <= seconds < 1e9:
        raise ValueError(f"found {value!r}; a duration is 0 or more")
    return seconds


def seconds_text(seconds: float) -> str:
    """A duration as files have it: `parse_duration` reads it as the same number, which it does not with an exponent."""
    text = f"{Decimal(repr(float(seconds))):f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}s"


def duration(value: object) -> float:
    """`parse_duration` for a file that people write. A number needs a unit, because 3 could mean minutes."""
    seconds = parse_duration(value)
    if seconds and not isinstance(value, str):
        raise ValueError(
            f"found {value!r}, a number without a unit; accepted are '{value}s', '{value}m', '{value}h'"
        )
    return seconds


def duration_within(value: object, least: float, most: float, accepted: str) -> float:
    """`parse_duration` with limits. Raises ValueError saying what is `accepted`."""
    seconds = parse_duration(value)
    if not least <= seconds <= most:
        raise ValueError(f"found {value!r}; accepted is {accepted}")
    return seconds


def positive_duration(value: object) -> float:
    """Like `duration`, and above 0."""
    seconds = duration(value)
    if not seconds:
        raise ValueError(f"found {value!r}; the duration must be above 0")
    return seconds
