"""Numbers, times and counts in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isfinite


def number_text(value: float) -> str:
    """A number with at most two decimals, or two significant digits below 0.1: 812, 0.25, 12000, 0.0041."""
    if not isfinite(value) or abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.1 else f"{value:.2g}"


def duration_text(seconds: float) -> str:
    """`45 s`, `10 min`, `1 h 30 min`, `2 d`."""
    rounded = round(seconds)
    if rounded < 60 or (rounded < 600 and rounded % 60):
        return f"{rounded} s"
    days, rest = divmod(round(rounded / 60), 1_440)
    hours, minutes = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def count_text(count: int, noun: str, plural: str = "", *, style: str = "") -> str:
    """`0 samples`, `1 sample`, `2 samples`; `plural` if it is irregular, and `style` formats the count: `1,204 samples` with ','."""
    return f"{count:{style}} {noun if count == 1 else plural or f'{noun}s'}"


def percent_text(share: float, decimals: int | None = None) -> str:
    """`8 %`, `0.41 %`: a share in per cent, with so many decimals; two digits, for small shares, where none are named."""
    percent = 100.0 * share
    if decimals is None and abs(percent) < 99.5:
        return f"{percent:.2g} %"
    return f"{percent:.{decimals or 0}f} %"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The known word that is most like an unknown one, as a question; `otherwise` if none is like it."""
    similar = get_close_matches(word, list(known), n=1)
    return f"did you mean '{similar[0]}'?" if similar else otherwise


def time_text(at: float) -> str:
    """A time in UTC, to the second."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"


def file_problem(error: BaseException) -> str:
    """Why a file cannot be used, in words: `Permission denied` of `[Errno 13] Permission denied: 'a.toml'`. The caller names the file."""
    return getattr(error, "strerror", None) or str(error)
