"""The keys of a metric's table that say how it is windowed. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from scaling.config.checks import number
from scaling.schedules.timetable import Timetable
from scaling.window import MAX_SAMPLES, MAX_VALUE, WindowSpec
from tidemark.foundation.durations import duration
from tidemark.foundation.settings_reader import Reader, whole

DEFAULT_WINDOW = 600.0  # ten minutes, the classic rule's window
MAX_FAILURES = 60  # an hour of failed reads, at one a minute
SAMPLES_PER_MISSING = 20  # one in twenty may be missing by default: docs/adr/0015


def read_window(reader: Reader, collecting: Timetable) -> WindowSpec:
    """Notes what cannot be."""
    interval = collecting.interval
    span = reader.take("window", DEFAULT_WINDOW, duration)
    if span < interval:
        reader.problem(
            "window",
            f"found {span:g} s, below the collection interval of {interval:g} s (COLLECT_SCHEDULE, or the target's "
            "interval)",
        )
    if span / interval > MAX_SAMPLES:
        reader.problem(
            "window",
            f"{span:g} s at one sample every {interval:g} s are {span / interval:.0f} samples; "
            f"a window holds at most {MAX_SAMPLES}",
        )
    fewest, most = collecting.samples(span)
    # Five points, as the classic rule asks for; fewer where the window cannot hold five.
    samples = reader.take("min_samples", min(5, fewest), whole(1))
    if samples > most:
        reader.problem("min_samples", f"found {samples}; a window of {span:g} s holds {most} samples")
    missing = reader.take("missing_allowed", fewest // SAMPLES_PER_MISSING, whole(0))
    if missing * 2 > fewest:
        reader.problem("missing_allowed", f"found {missing}; at most half of the {fewest} samples may be")
    return WindowSpec(
        span=span,
        interval=interval,
        min_samples=samples,
        schedule=collecting.uneven,
        time_zone=collecting.time_zone if collecting.uneven else "UTC",
        missing_allowed=missing,
        **reader.found(
            max_age=duration,
            missing_in_a_row=whole(1),
            failures_allowed=whole(0, MAX_FAILURES),
            default=number(0, MAX_VALUE),
        ),
    )


def with_timing(
    reader: Reader, window: WindowSpec, given: Collection[str], counts: float, delay: float
) -> WindowSpec:
    """The same for a source whose samples count so many seconds each, and are so old at least when they are read. `given` are the
    keys that the table has.
    """
    if counts <= window.interval:
        return structs.replace(window, delay=delay)
    most = max(int(window.span / counts + 1e-9), 1)
    if window.span < counts:
        text = f"found {window.span:g} s, below the {counts:g} s that a sample of this metric counts"
        reader.problem("window", text)
    if "min_samples" in given and window.min_samples > most:
        text = f"found {window.min_samples}; a window of {window.span:g} s holds {most} samples of {counts:g} s each"
        reader.problem("min_samples", text)
    missing = window.missing_allowed if "missing_allowed" in given else most // SAMPLES_PER_MISSING
    return structs.replace(
        window,
        delay=delay,
        interval=counts,
        min_samples=min(window.min_samples, most),
        missing_allowed=missing,
        schedule="",  # samples come with the grains, not with the schedule
    )
