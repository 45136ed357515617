"""The job's report: the days at a glance, backlogs, flows, and capacity with its cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from spark_jobs.platform.rows import cached, collected
from spark_jobs.telemetry_aggregation.pages.local_page import (
    NOT_BACKLOGS,
    POINTS,
    RATE_LIMIT,
    SERIES,
    SHOWN,
    STOPPING,
    gauge_figure,
    gauge_table,
    quality_table,
)
from tidemark.analysis import plots
from tidemark.analysis.report import Report, number
from tidemark.foundation.wording import duration_text, percent_text

ROWS_SHOWN = 400  # of a table by day: a year of one consumer or target
MINUTE = timedelta(minutes=1)
UNITS = {"instance": "Instance-hours", "RU/s": "RU/s-hours"}
UNREPORTED_S = 15.0
"""Seconds of work that a killed instance did not report, at most: CONSUMER_TELEMETRY_LAND (10 s) and
CONSUMER_TELEMETRY_EVERY (5 s), unless they were set otherwise.
"""


class Days(NamedTuple):
    """The first and the last minute of a table, and its rows by day."""

    first: datetime
    last: datetime
    table: DataFrame


def build(
    tables: Mapping[str, DataFrame], quality: Sequence[Sequence[object]], currency: str, note: str = ""
) -> Report:
    """Reads what the page shows from the finished tables: as much of a year and a thousand series as of a day and one. `note`
    comes before all else.
    """
    days = {name: days_of_table for name, table in tables.items() if (days_of_table := _days(table))}
    report = Report("Telemetry aggregation", _span(days.values()))
    instances = _instances(tables["gauges"]) if "gauges" in days else NO_INSTANCES
    facts = _facts(days, currency)
    if instances.silent:
        facts["Without a final report"] = f"{instances.silent} of {instances.total} instances"
    report.text(note)
    report.facts(facts)
    if "gauges" in days:
        _backlogs(report, tables["gauges"], days["gauges"])
    if "flows" in days:
        _flows(report, tables["flows"], days["flows"])
        if instances.silent:
            _silent(report, instances)
    if "scaling" in days:
        _scaling(report, tables["scaling"], days["scaling"], currency)
    quality_table(report, quality)
    return report


def _days(table: DataFrame) -> Days | None:
    minutes = table.where(F.col("window") == "1m")
    [ends] = collected(minutes.agg(F.min("window_start").alias("first"), F.max("window_start").alias("last")))
    days = table.where(F.col("window") == "1d")
    return None if ends["first"] is None else Days(ends["first"], ends["last"], days)


def _shown(days: Days, *order: Column | str) -> list[Row]:
    """The first rows, by day."""
    return collected(days.table.orderBy("window_start", *order).limit(ROWS_SHOWN))


def _span(days: Collection[Days]) -> str:
    """The first and the last minute of all tables."""
    if not days:
        return "No window yet"
    first, last = min(day.first for day in days), max(day.last for day in days)
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"


def _facts(days: Mapping[str, Days], currency: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    if "flows" in days:
        names = ("attempts", "written", "throttled", "written_units")
        [flows] = collected(days["flows"].table.agg(*(F.sum(name).alias(name) for name in names)))
        facts["Records written"] = number(flows.written)
        facts["429 share"] = percent_text(flows.throttled / flows.attempts, 2) if flows.attempts else "–"  # noqa: RUF001
        if flows.written:
            facts["RU per record"] = number(flows.written_units / flows.written)
    if "scaling" in days:
        sums = {name: F.sum(name) for name in ("scaled_out", "scaled_in", "cost")}
        sums |= {
            name: F.sum(F.when(F.col("unit") == unit, F.col("capacity_hours")))
            for unit, name in UNITS.items()
        }
        [scaling] = collected(days["scaling"].table.agg(*(made.alias(name) for name, made in sums.items())))
        facts["Scale actions"] = number(scaling.scaled_out + scaling.scaled_in)
        facts |= {name: number(scaling[name]) for name in UNITS.values() if scaling[name]}
        if scaling.cost is not None:
            facts["Cost"] = f"{scaling.cost:,.2f} {currency}"
    return facts


def _finest(table: DataFrame, days: Days) -> DataFrame:
    """Minutes where the time has at most POINTS of them, else hours, else days."""
    minutes = (days.last - days.first) // MINUTE + 1
    hours = 24 * ((days.last.date() - days.first.date()).days + 1)
    return table.where(F.col("window") == ("1m" if minutes <= POINTS else "1h" if hours <= POINTS else "1d"))


def _backlogs(report: Report, table: DataFrame, days: Days) -> None:
    report.heading("Backlogs and other gauges")
    peaks = days.table.where(~F.col("metric").isin(*NOT_BACKLOGS)).groupBy(*SERIES)
    highest = peaks.agg(F.max("max").alias("peak")).orderBy(F.desc("peak"), *SERIES).limit(SHOWN)
    top = [tuple(row[name] for name in SERIES) for row in collected(highest)]
    if top:
        finest = _finest(table, days)
        gauge_figure(report, _of_series(finest, top))
    shown = days.table.where(F.col("metric") != STOPPING)
    gauge_table(report, collected(shown.orderBy("window_start", F.desc("max"), *SERIES).limit(10 * SHOWN)))


def _of_series(table: DataFrame, top: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    """The rows of each of these series, in the order of time."""
    # Name by name: Spark 3.5 compares no structs whose fields have other names.
    wanted = reduce(
        or_,
        (
            reduce(and_, (F.col(name) == F.lit(text) for name, text in zip(SERIES, names, strict=True)))
            for names in top
        ),
    )
    rows = collected(
        table.where(wanted).select("window_start", *SERIES, "p50", "p99", "max").orderBy("window_start")
    )
    return {names: [row for row in rows if tuple(row[name] for name in SERIES) == names] for names in top}


def _flows(report: Report, table: DataFrame, days: Days) -> None:
    report.heading("Consumers")
    first = table.select("consumer", "hub").distinct().orderBy("consumer", "hub").limit(SHOWN)
    consumers = [(row.consumer, row.hub) for row in collected(first)]
    drawn = F.concat_ws("\n", "consumer", "hub").isin(*map("\n".join, consumers))
    rows = collected(_finest(table, days).where(drawn).orderBy("window_start"))
    figure, (rates, shares, charges) = plots.new_figure(3, height=2.2, sharex=True)
    for colour, (consumer, hub) in zip(plots.COLOURS, consumers, strict=False):
        of_flow = [row for row in rows if (row.consumer, row.hub) == (consumer, hub)]
        names = ("written_per_s", "throttled_share", "request_units_per_record")
        known = ([row[name] for row in of_flow] for name in names)
        times, (rate, share, charge) = plots.windows([row.window_start for row in of_flow], *known)
        rates.plot(times, rate, color=colour, label=f"{consumer} · {hub}")
        shares.plot(times, [100 * part for part in share], color=colour)
        charges.plot(times, charge, color=colour)
    rates.set_title("Records written per second")
    rates.legend(loc="upper left")
    shares.set_title("Attempts answered 429, percent")
    charges.set_title("Request units per record written")
    plots.time_axis(charges)
    report.figure(figure, caption="Rates and charges by consumer, UTC.", name="consumers")
    report.table(
        ["day", "consumer", "hub", "instances", "written", "written/s", "dead letters", "429 %", "RU/record"],
        [
            [
                f"{r.window_start:%Y-%m-%d}",
                *(r.consumer, r.hub, r.instances, r.written, r.written_per_s, r.dead_letters),
                None if r.throttled_share is None else 100 * r.throttled_share,
                r.request_units_per_record,
            ]
            for r in _shown(days, "consumer", "hub")
        ],
        caption=f"By day; at most {ROWS_SHOWN} rows, the table 'flows' has all.",
    )


class Instances(NamedTuple):
    """All of them, those without a final report, of which `rows` are the first, and the newest minute of any."""

    total: int
    silent: int
    newest: datetime | None
    rows: Sequence[Row]


NO_INSTANCES = Instances(0, 0, None, ())


def _instances(table: DataFrame) -> Instances:
    """By the last minute of each instance of a consumer: whether it said that it stops, and its rate limit."""
    minutes = table.where((F.col("window") == "1m") & F.col("metric").isin(STOPPING, RATE_LIMIT))

    def last(metric: str) -> Column:
        return F.max_by("last", F.when(F.col("metric") == metric, F.col("window_start")))

    frame = minutes.groupBy("subject", "part").agg(
        F.max("window_start").alias("minute"),
        last(STOPPING).alias("stopping"),
        last(RATE_LIMIT).alias("rate_limit"),
    )
    with cached(frame.where(F.col("stopping").isNotNull())) as instances:
        silent = instances.where(F.col("stopping") == 0)
        [all_of] = collected(
            instances.agg(
                F.count("minute").alias("total"),
                F.count_if(F.col("stopping") == 0).alias("silent"),
                F.max("minute").alias("newest"),
            )
        )
        rows = collected(silent.orderBy("minute", "subject", "part").limit(10 * SHOWN))
    return Instances(all_of.total, all_of.silent, all_of.newest, rows)


def _silent(report: Report, instances: Instances) -> None:
    newest = instances.newest
    assert newest is not None  # there are some
    report.heading("What is not known")
    report.text(
        f"{instances.silent} of {instances.total} instances have no final report: killed, or still at work when the records were"
        " read. What an instance did after its last record is counted nowhere on this page. Of a killed one that is"
        f" {UNREPORTED_S:g} s of work at most, unless CONSUMER_TELEMETRY_LAND or CONSUMER_TELEMETRY_EVERY was set otherwise or"
        " the folder could not be written."
    )
    report.table(
        ["consumer", "instance", "last record", "minutes before the newest", "records missing, at most"],
        [
            [
                row.subject,
                row.part,
                f"{row.minute:%Y-%m-%d %H:%M}",
                (newest - row.minute).total_seconds() / 60,
                None if row.rate_limit is None else UNREPORTED_S * row.rate_limit,
            ]
            for row in instances.rows
        ],
        caption=f"At most {10 * SHOWN} rows, UTC. A dash is not known: without a rate limit there is no bound.",
    )


def _scaling(report: Report, table: DataFrame, days: Days, currency: str) -> None:
    report.heading("Scale actions, capacity and cost")
    first = table.select("target").distinct().orderBy("target").limit(SHOWN)
    targets = [row.target for row in collected(first)]
    drawn = _finest(table, days).where(F.col("target").isin(*targets))
    rows = collected(drawn.orderBy("window_start"))
    figure, axes = plots.new_figure(len(targets), height=2.0, sharex=True)
    for panel, target in zip(axes, targets, strict=True):
        of_target = [row for row in rows if row.target == target]
        times = [row.window_start for row in of_target]
        mean = [
            row.capacity_hours / row.known_hours if row.known_hours else float("nan") for row in of_target
        ]
        ends, (held,) = plots.windows(times, mean, to_end=True)
        panel.step(ends, held, where="post", color=plots.GREEN, label="capacity")
        for name, mark, colour in (("scaled_out", "^", plots.RED), ("scaled_in", "v", plots.BLUE)):
            at = [(time, value) for time, value, row in zip(times, mean, of_target, strict=True) if row[name]]
            if at:
                panel.plot(*zip(*at, strict=True), mark, color=colour, label=name.replace("_", " "))
        panel.set_title(f"{target}, {of_target[0].unit}")
        panel.legend(loc="upper left", ncols=3)
    plots.time_axis(axes[-1])
    report.figure(figure, caption="Mean capacity per window, and when it was changed, UTC.", name="capacity")
    report.table(
        [
            *("day", "target", "decisions", "out", "in", "failed", "min", "max", "known"),
            *("capacity-hours", "unit", f"cost {currency}".strip()),
        ],
        [
            [
                f"{r.window_start:%Y-%m-%d}",
                *(r.target, r.decisions, r.scaled_out, r.scaled_in, r.failed, r.capacity_min, r.capacity_max),
                *(duration_text(3600 * r.known_hours), r.capacity_hours, r.unit, r.cost),
            ]
            for r in _shown(days, "target")
        ],
        caption=(
            f"By day; at most {ROWS_SHOWN} rows, the table 'scaling' has all. A dash is not known; cost needs a price."
        ),
    )
