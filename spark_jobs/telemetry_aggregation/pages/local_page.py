"""The page of an aggregation on one machine, out of the finished table of gauges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import dataset

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
from tidemark.analysis.report import Report, number

_WORDS = {"1m": "minute", "1h": "hour", "1d": "day"}


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
        gauge_figure(report, {each: _rows(table, finest, each) for each in top})
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
    return min(each["min"] for each in ends), max(each["max"] for each in ends)


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
    found = table.group_by(list(SERIES)).aggregate([("samples", "sum"), ("max", "max")])
    return found.select([*SERIES, "samples_sum", "max_max"]).rename_columns([*SERIES, "samples", "max"])


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
        if max(table.count_rows(filter=_of(each, window)) for each in top) <= POINTS
    )
    return next(fits, windows[-1])


def _rows(table: Any, window: str, series: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = table.to_table(["window_start", "p50", "p99", "max"], filter=_of(series, window))
    found: list[dict[str, Any]] = rows.sort_by("window_start").to_pylist()
    return found
