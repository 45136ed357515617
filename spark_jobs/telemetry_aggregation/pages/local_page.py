"""The page of an aggregation on one machine, out of the finished table of gauges; and the parts that Spark's page has, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from pyarrow import dataset

from spark_jobs.telemetry_aggregation.kernel.buckets import RELATIVE_ERROR
from tidemark.analysis import plots
from tidemark.analysis.report import Report, number
from tidemark.foundation.wording import percent_text

_WORDS = {"1m": "minute", "1h": "hour", "1d": "day"}
POINTS = 400  # windows per plot: more cannot be distinguished on the page
SHOWN = 4  # series per figure; the tables have all
SERIES = ("subject", "part", "metric")
STOPPING, RATE_LIMIT = "consumer.stopping", "consumer.rate_limit"
NOT_BACKLOGS = ("consumer.oldest_age", RATE_LIMIT, "consumer.in_flight", STOPPING)
UNITS = {"consumer.oldest_age": "s", RATE_LIMIT: "events/s"}
"""Of the consumer's metrics that are not counts of events."""
GAUGE_COLUMNS = (*SERIES, "samples", "p50", "p95", "p99", "max", "last")


class GaugeRow(Protocol):
    """A row of the table GAUGES: Spark's, or a dictionary."""

    def __getitem__(self, name: str, /) -> Any: ...


def gauge_figure(report: Report, series: Mapping[tuple[str, ...], Sequence[GaugeRow]]) -> None:
    """A plot for each series, whose rows are in the order of time."""
    figure, axes = plots.new_figure(len(series), height=2.2, sharex=True)
    for panel, (names, rows) in zip(axes, series.items(), strict=True):
        _draw(panel, names, rows)
    plots.time_axis(axes[-1])
    report.figure(figure, caption=f"The {len(series)} series with the highest peaks, UTC.", name="backlogs")


def _draw(axes: Axes, names: tuple[str, ...], rows: Sequence[GaugeRow]) -> None:
    values = ([row[name] for row in rows] for name in ("p50", "p99", "max"))
    times, (middle, high, highest) = plots.windows([row["window_start"] for row in rows], *values)
    axes.fill_between(times, middle, high, alpha=0.25, color=plots.BLUE, label="p50 to p99")
    axes.plot(times, middle, color=plots.BLUE, label="p50")
    axes.plot(times, highest, color=plots.ORANGE, linewidth=0.9, label="max")
    *series, metric = names
    axes.set_title(" · ".join(filter(None, (*series, _cell("metric", metric)))))
    axes.legend(loc="upper left", ncols=3)


def gauge_table(report: Report, rows: Iterable[GaugeRow], *, window: str = "day") -> None:
    """The first 10 * SHOWN rows; `window` is the width of them, in words."""
    form = "%Y-%m-%d" if window == "day" else "%Y-%m-%d %H:%M"
    report.table(
        [window, *GAUGE_COLUMNS],
        [
            [row["window_start"].strftime(form), *(_cell(name, row[name]) for name in GAUGE_COLUMNS)]
            for row in rows
        ],
        caption=(
            f"By {window}, the greatest first; at most {10 * SHOWN} rows. Percentiles are within {percent_text(RELATIVE_ERROR, 0)} of the"
            " exact value."
        ),
    )


def _cell(column: str, value: Any) -> Any:
    """A consumer's own metric with its unit; of the others nobody knows it."""
    unit = UNITS.get(value, "events") if column == "metric" and value.startswith("consumer.") else ""
    return f"{value},\N{NO-BREAK SPACE}{unit}" if unit else value


def quality_table(report: Report, quality: Iterable[Sequence[object]]) -> None:
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


# -- of one machine


def report_of(gauges: Path, windows: Sequence[str], quality: Sequence[object], metrics: Path) -> Report:
    """`windows` are those of the table, the finest first, each with rows; `quality` is the row of QUALITY, `metrics` what was
    read. The table is gone through batch by batch, however long it is; kept are the rows that the page shows.
    """
    table = dataset.dataset(gauges)
    first, last = _ends(table, windows[0])
    series, rows = _summary(table, windows[-1])
    report = Report("Telemetry aggregation", f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC")
    report.facts({"Samples": number(pc.sum(series.column("samples")).as_py()), "Series": number(len(series))})
    report.heading("Backlogs and other gauges")
    top = _highest(series)
    if top:
        finest = _finest(table, windows, top)
        gauge_figure(report, {names: _rows(table, finest, names) for names in top})
    gauge_table(report, rows.to_pylist(), window=_WORDS[windows[-1]])
    quality_table(report, [quality])
    more = ("--metrics", metrics, "--decisions", "scaling-log/")
    report.next_step(
        "adds scale actions, capacity and cost out of the scaling log, with Spark",
        *("tidemark", "spark", "telemetry-aggregation", *more),
    )
    return report


def _ends(table: Any, window: str) -> tuple[datetime, datetime]:
    batches = table.to_batches(columns=["window_start"], filter=pc.field("window") == window)
    ends = [pc.min_max(batch.column(0)).as_py() for batch in batches if batch.num_rows]
    return min(end["min"] for end in ends), max(end["max"] for end in ends)


def _summary(table: Any, window: str) -> tuple[pa.Table, pa.Table]:
    """Of windows of this width: each series with its samples and its peak (`max`), and the rows to show."""
    order = [("window_start", "ascending"), ("max", "descending"), *((name, "ascending") for name in SERIES)]
    columns = ["window_start", *GAUGE_COLUMNS]
    series: list[pa.Table] = []
    rows = None
    for batch in table.to_batches(columns=columns, filter=pc.field("window") == window):
        part = pa.table(batch)
        series.append(_by_series(part))
        rows = (part if rows is None else pa.concat_tables([rows, part])).sort_by(order).slice(0, 10 * SHOWN)
    return _by_series(pa.concat_tables(series)), rows


def _by_series(table: pa.Table) -> pa.Table:
    totals = table.group_by(list(SERIES)).aggregate([("samples", "sum"), ("max", "max")])
    return totals.select([*SERIES, "samples_sum", "max_max"]).rename_columns([*SERIES, "samples", "max"])


def _highest(series: pa.Table) -> list[tuple[str, ...]]:
    backlogs = series.filter(~pc.field("metric").isin(NOT_BACKLOGS))
    order = [("max", "descending"), *((name, "ascending") for name in SERIES)]
    return [
        tuple(row[name] for name in SERIES) for row in backlogs.sort_by(order).slice(0, SHOWN).to_pylist()
    ]


def _of(series: tuple[str, ...], window: str) -> Any:
    conditions = (pc.field(name) == value for name, value in zip(SERIES, series, strict=True))
    return reduce(and_, conditions, pc.field("window") == window)


def _finest(table: Any, windows: Sequence[str], top: Sequence[tuple[str, ...]]) -> str:
    """The finest of which a series has POINTS at most, else the widest."""
    fits = (
        window
        for window in windows
        if max(table.count_rows(filter=_of(names, window)) for names in top) <= POINTS
    )
    return next(fits, windows[-1])


def _rows(table: Any, window: str, series: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = table.to_table(["window_start", "p50", "p99", "max"], filter=_of(series, window))
    ordered: list[dict[str, Any]] = rows.sort_by("window_start").to_pylist()
    return ordered
