"""The page of an aggregation on one machine, out of the finished table of gauges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import dataset

from spark_jobs.reports.report import Report, number
from spark_jobs.telemetry_aggregation.pages.charts import (
    GAUGE_COLUMNS,
    NOT_BACKLOGS,
    POINTS,
    SERIES,
    SHOWN,
    gauge_figure,
    gauge_table,
    quality_table,
)

_WORDS = {"1m": "minute", "1h": "hour", "1d": "day"}


def report_of(gauges: Path, windows: Sequence[str], quality: Sequence[object], metrics: Path) -> Report:
    """`windows` are those of the table, the finest first, each with rows; `quality` is the row of QUALITY, `metrics` what was
    read. Columns that the page shows are read of a long table, and minutes only of series that are drawn.
    """
    table = dataset.dataset(gauges)
    widest = pc.field("window") == windows[-1]
    span = pc.min_max(
        table.to_table(["window_start"], filter=pc.field("window") == windows[0]).column(0)
    ).as_py()
    last = table.to_table(["window_start", *GAUGE_COLUMNS], filter=widest)
    report = Report(
        "Telemetry aggregation", f"{span['min']:%Y-%m-%d %H:%M} to {span['max']:%Y-%m-%d %H:%M} UTC"
    )
    samples = pc.sum(last.column("samples")).as_py()
    count = len(last.group_by(list(SERIES)).aggregate([]))
    report.facts({"Samples": number(samples), "Series": number(count)})
    report.heading("Backlogs and other gauges")
    top = _highest(last)
    if top:
        finest = _finest(table, windows, top)
        gauge_figure(report, {each: _rows(table, finest, each) for each in top})
    order = [("window_start", "ascending"), ("max", "descending"), *((name, "ascending") for name in SERIES)]
    gauge_table(report, last.sort_by(order).slice(0, 10 * SHOWN).to_pylist(), window=_WORDS[windows[-1]])
    quality_table(report, [quality])
    more = ("--metrics", metrics, "--decisions", "scaling-log/")
    report.next_step(
        "adds scale actions, capacity and cost out of the scaling log, with Spark",
        *("tidemark", "spark", "telemetry-aggregation", *more),
    )
    return report


def _highest(last: pa.Table) -> list[tuple[str, ...]]:
    backlogs = last.filter(~pc.field("metric").isin(NOT_BACKLOGS))
    peaks = backlogs.group_by(list(SERIES)).aggregate([("max", "max")])
    order = [("max_max", "descending"), *((name, "ascending") for name in SERIES)]
    return [tuple(row[name] for name in SERIES) for row in peaks.sort_by(order).slice(0, SHOWN).to_pylist()]


def _of(series: tuple[str, ...], window: str) -> Any:
    conditions = (pc.field(name) == value for name, value in zip(SERIES, series, strict=True))
    return reduce(and_, conditions, pc.field("window") == window)


def _finest(table: Any, windows: Sequence[str], top: Sequence[tuple[str, ...]]) -> str:
    """The finest of which a series has POINTS at most, else the widest."""
    fits = (
        window
        for window in windows
        if max(table.count_rows(filter=_of(each, window)) for each in top) <= POINTS
    )
    return next(fits, windows[-1])


def _rows(table: Any, window: str, series: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = table.to_table(["window_start", "p50", "p99", "max"], filter=_of(series, window))
    found: list[dict[str, Any]] = rows.sort_by("window_start").to_pylist()
    return found
