"""Parts of the pages of both commands, with and without Spark: rows in, figures and tables out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from matplotlib.axes import Axes

from spark_jobs.telemetry_aggregation.kernel.buckets import RELATIVE_ERROR
from tidemark.analysis import plots
from tidemark.analysis.report import Report

POINTS = 400  # windows per plot: more cannot be told apart on the page
SHOWN = 4  # series per figure; the tables have all
SERIES = ("subject", "part", "metric")
STOPPING, RATE_LIMIT = "consumer.stopping", "consumer.rate_limit"
NOT_BACKLOGS = ("consumer.oldest_age", RATE_LIMIT, "consumer.in_flight", STOPPING)
GAUGE_COLUMNS = (*SERIES, "samples", "p50", "p95", "p99", "max", "last")


class GaugeRow(Protocol):
    """A row of the table GAUGES: Spark's, or a dictionary."""

    def __getitem__(self, name: str, /) -> Any: ...


def gauge_figure(report: Report, series: Mapping[tuple[str, ...], Sequence[GaugeRow]]) -> None:
    """A plot for each series, whose rows are in the order of time."""
    figure, axes = plots.new_figure(len(series), height=2.2, sharex=True)
    for each, (names, rows) in zip(axes, series.items(), strict=True):
        _draw(each, names, rows)
    plots.time_axis(axes[-1])
    report.figure(figure, caption=f"The {len(series)} series with the highest peaks, UTC.", name="backlogs")


def _draw(axes: Axes, names: tuple[str, ...], rows: Sequence[GaugeRow]) -> None:
    times = [row["window_start"] for row in rows]
    middle = [row["p50"] for row in rows]
    axes.fill_between(
        times, middle, [row["p99"] for row in rows], alpha=0.25, color=plots.BLUE, label="p50 to p99"
    )
    axes.plot(times, middle, color=plots.BLUE, label="p50")
    axes.plot(times, [row["max"] for row in rows], color=plots.ORANGE, linewidth=0.9, label="max")
    axes.set_title(" · ".join(filter(None, names)))
    axes.legend(loc="upper left", ncols=3)


def gauge_table(report: Report, rows: Iterable[GaugeRow], *, window: str = "day") -> None:
    """The first 10 * SHOWN rows; `window` is the width of them, in words."""
    form = "%Y-%m-%d" if window == "day" else "%Y-%m-%d %H:%M"
    report.table(
        [window, *GAUGE_COLUMNS],
        [[row["window_start"].strftime(form), *(row[name] for name in GAUGE_COLUMNS)] for row in rows],
        caption=(
            f"By {window}, the greatest first; at most {10 * SHOWN} rows. Percentiles are within {RELATIVE_ERROR:.0%} of the"
            " exact value."
        ),
    )


def quality_table(report: Report, quality: Iterable[Sequence[object]]) -> None:
    """Rows of the table QUALITY."""
    report.heading("What was read")
    report.table(
        ["input", "rows read", "duplicates dropped", "too late", "ahead of the clock", "invalid"],
        quality,
        caption=(
            "Rows that came after their minute was closed are below the checkpoint, in the folder late; rows of a time that had not come yet, from"
            " a clock that is ahead, are left out, and a stream keeps them there in the folder ahead; invalid samples are no finite"
            " numbers."
        ),
    )
