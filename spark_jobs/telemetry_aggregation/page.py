"""The job's report: the days at a glance, backlogs, flows, and capacity with its cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from spark_jobs.platform.rows import collected
from spark_jobs.reports import plots
from spark_jobs.reports.report import Report, number
from spark_jobs.telemetry_aggregation.minutes.buckets import RELATIVE_ERROR

POINTS = 400  # windows per plot: more cannot be told apart on the page
SHOWN = 4  # series per figure; the tables have all
STOPPING, RATE_LIMIT = "consumer.stopping", "consumer.rate_limit"
NOT_BACKLOGS = ("consumer.oldest_age", RATE_LIMIT, "consumer.in_flight", STOPPING)
UNTOLD_S = 15.0
"""Seconds of work that a killed instance has told nobody of, at most: CONSUMER_TELEMETRY_LAND (10 s) and
CONSUMER_TELEMETRY_EVERY (5 s), unless they were set otherwise.
"""


def build(tables: Mapping[str, DataFrame], quality: Sequence[Row], currency: str) -> Report:
    """Reads what the page shows from the finished tables."""
    report = Report("Telemetry aggregation", _span(tables))
    days = {name: _by_time(table.where(F.col("window") == "1d")) for name, table in tables.items()}
    instances = _instances(tables["gauges"]) if days.get("gauges") else []
    silent = [row for row in instances if not row.stopping]
    facts = _facts(days, currency)
    if silent:
        facts["Without a last word"] = f"{len(silent)} of {len(instances)} instances"
    report.facts(facts)
    if days.get("gauges"):
        _backlogs(report, tables["gauges"], days["gauges"])
    if days.get("flows"):
        _flows(report, tables["flows"], days["flows"])
        if silent:
            _silent(report, silent, instances)
    if days.get("scaling"):
        _scaling(report, tables["scaling"], days["scaling"], currency)
    _quality(report, quality)
    return report


def _by_time(table: DataFrame) -> list[Row]:
    return collected(table.orderBy("window_start"))


def _span(tables: Mapping[str, DataFrame]) -> str:
    """The first and the last minute of all tables."""
    ends = []
    for table in tables.values():
        minutes = table.where(F.col("window") == "1m")
        [row] = collected(
            minutes.agg(F.min("window_start").alias("first"), F.max("window_start").alias("last"))
        )
        ends += [at for at in row if at]
    return f"{min(ends):%Y-%m-%d %H:%M} to {max(ends):%Y-%m-%d %H:%M} UTC" if ends else "No window yet"


def _facts(days: Mapping[str, Sequence[Row]], currency: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    flows = days.get("flows", ())
    if flows:
        attempts, written = sum(row.attempts for row in flows), sum(row.written for row in flows)
        facts["Records written"] = number(written)
        facts["429 share"] = f"{sum(row.throttled for row in flows) / attempts:.2%}" if attempts else "–"  # noqa: RUF001
        if written:
            facts["RU per record"] = number(sum(row.written_units for row in flows) / written)
    scaling = days.get("scaling", ())
    if scaling:
        facts["Scale actions"] = number(sum(row.scaled_out + row.scaled_in for row in scaling))
        for unit, name in (("instance", "Instance-hours"), ("RU/s", "RU/s-hours")):
            hours = [row.capacity_hours for row in scaling if row.unit == unit and row.capacity_hours]
            if hours:
                facts[name] = number(sum(hours))
        costs = [row.cost for row in scaling if row.cost is not None]
        if costs:
            facts["Cost"] = f"{sum(costs):,.2f} {currency}"
    return facts


def _finest(table: DataFrame, days: Sequence[Row]) -> DataFrame:
    """Minutes where there are at most POINTS of them, else hours, else days."""
    minutes = table.where(F.col("window") == "1m")
    if minutes.select("window_start").distinct().count() <= POINTS:
        return minutes
    span = (days[-1].window_start - days[0].window_start).days + 1
    return table.where(F.col("window") == ("1h" if 1 < span * 24 <= POINTS else "1d"))


def _backlogs(report: Report, table: DataFrame, days: Sequence[Row]) -> None:
    report.heading("Backlogs and other gauges")
    peaks: dict[tuple[str, str, str], float] = defaultdict(float)
    for row in days:
        if row.metric not in NOT_BACKLOGS:
            series = (row.subject, row.part, row.metric)
            peaks[series] = max(peaks[series], row.max)
    top = sorted(peaks, key=lambda series: (-peaks[series], series))[:SHOWN]
    if top:
        finest = _finest(table, days)
        figure, axes = plots.new_figure(len(top), height=2.2, sharex=True)
        for each, series in zip(axes, top, strict=True):
            _plot_gauge(each, series, finest)
        plots.time_axis(axes[-1])
        report.figure(figure, caption=f"The {len(top)} series with the highest peaks, UTC.", name="backlogs")
    names = ("subject", "part", "metric", "samples", "p50", "p95", "p99", "max", "last")
    shown = [row for row in days if row.metric != STOPPING]
    greatest = sorted(shown, key=lambda row: (row.window_start, -row.max))[: 10 * SHOWN]
    report.table(
        ["day", *names],
        [[f"{row.window_start:%Y-%m-%d}", *(row[name] for name in names)] for row in greatest],
        caption=(
            f"By day, the greatest first; at most {10 * SHOWN} rows. Percentiles are within {RELATIVE_ERROR:.0%} of the"
            " exact value."
        ),
    )


def _plot_gauge(axes: Axes, series: tuple[str, str, str], table: DataFrame) -> None:
    subject, part, metric = series
    chosen = table.where(
        (F.col("subject") == subject) & (F.col("part") == part) & (F.col("metric") == metric)
    )
    rows = collected(chosen.select("window_start", "p50", "p99", "max").orderBy("window_start"))
    times = [row.window_start for row in rows]
    axes.fill_between(
        times, [r.p50 for r in rows], [r.p99 for r in rows], alpha=0.25, color=plots.BLUE, label="p50 to p99"
    )
    axes.plot(times, [r.p50 for r in rows], color=plots.BLUE, label="p50")
    axes.plot(times, [r.max for r in rows], color=plots.ORANGE, linewidth=0.9, label="max")
    axes.set_title(" · ".join(filter(None, series)))
    axes.legend(loc="upper left", ncols=3)


def _flows(report: Report, table: DataFrame, days: Sequence[Row]) -> None:
    report.heading("Consumers")
    rows = collected(_finest(table, days).orderBy("window_start"))
    consumers = sorted({(row.consumer, row.hub) for row in rows})[:SHOWN]
    figure, (rates, shares, charges) = plots.new_figure(3, height=2.2, sharex=True)
    for colour, (consumer, hub) in zip(plots.COLOURS, consumers, strict=False):
        own = [row for row in rows if (row.consumer, row.hub) == (consumer, hub)]
        times = [row.window_start for row in own]
        rates.plot(times, [row.written_per_s for row in own], color=colour, label=f"{consumer} · {hub}")
        shares.plot(times, [100 * plots.drawn_value(row.throttled_share) for row in own], color=colour)
        charges.plot(times, [plots.drawn_value(row.request_units_per_record) for row in own], color=colour)
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
            for r in days
        ],
        caption="By day.",
    )


def _instances(table: DataFrame) -> list[Row]:
    """The last minute of each instance of a consumer: whether it said that it stops, and its rate limit."""
    minutes = table.where((F.col("window") == "1m") & F.col("metric").isin(STOPPING, RATE_LIMIT))

    def last(metric: str) -> Column:
        return F.max_by("last", F.when(F.col("metric") == metric, F.col("window_start")))

    found = minutes.groupBy("subject", "part").agg(
        F.max("window_start").alias("minute"),
        last(STOPPING).alias("stopping"),
        last(RATE_LIMIT).alias("rate_limit"),
    )
    return collected(found.where(F.col("stopping").isNotNull()).orderBy("minute", "subject", "part"))


def _silent(report: Report, silent: Sequence[Row], instances: Sequence[Row]) -> None:
    newest = max(row.minute for row in instances)
    report.heading("What is not known")
    report.text(
        f"{len(silent)} of {len(instances)} instances have no last word: killed, or still at work when the records were"
        " read. What an instance did after its last record is counted nowhere on this page. Of a killed one that is"
        f" {UNTOLD_S:g} s of work at most, unless CONSUMER_TELEMETRY_LAND or CONSUMER_TELEMETRY_EVERY was set otherwise or"
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
                None if row.rate_limit is None else UNTOLD_S * row.rate_limit,
            ]
            for row in silent[: 10 * SHOWN]
        ],
        caption=f"At most {10 * SHOWN} rows, UTC. A dash is not known: without a rate limit there is no bound.",
    )


def _scaling(report: Report, table: DataFrame, days: Sequence[Row], currency: str) -> None:
    report.heading("Scale actions, capacity and cost")
    rows = collected(_finest(table, days).orderBy("window_start"))
    targets = sorted({row.target for row in rows})[:SHOWN]
    figure, axes = plots.new_figure(len(targets), height=2.0, sharex=True)
    for each, target in zip(axes, targets, strict=True):
        own = [row for row in rows if row.target == target]
        times = [row.window_start for row in own]
        mean = [row.capacity_hours / row.known_hours if row.known_hours else float("nan") for row in own]
        each.step(times, mean, where="post", color=plots.GREEN, label="capacity")
        for name, mark, colour in (("scaled_out", "^", plots.RED), ("scaled_in", "v", plots.BLUE)):
            at = [(time, value) for time, value, row in zip(times, mean, own, strict=True) if row[name]]
            if at:
                each.plot(*zip(*at, strict=True), mark, color=colour, label=name.replace("_", " "))
        each.set_title(f"{target}, {own[0].unit}")
        each.legend(loc="upper left", ncols=3)
    plots.time_axis(axes[-1])
    report.figure(figure, caption="Mean capacity per window, and when it was changed, UTC.", name="capacity")
    report.table(
        [
            *("day", "target", "decisions", "out", "in", "failed", "min", "max", "known h"),
            *("capacity-hours", "unit", f"cost {currency}".strip()),
        ],
        [
            [
                f"{r.window_start:%Y-%m-%d}",
                *(r.target, r.decisions, r.scaled_out, r.scaled_in, r.failed, r.capacity_min, r.capacity_max),
                *(r.known_hours, r.capacity_hours, r.unit, r.cost),
            ]
            for r in days
        ],
        caption="By day. A dash is not known; cost needs a price.",
    )


def _quality(report: Report, quality: Sequence[Row]) -> None:
    report.heading("What was read")
    report.table(
        ["input", "rows read", "duplicates dropped", "too late", "ahead of the clock", "invalid"],
        quality,
        caption=(
            "Rows that came after their minute was closed are in the folder late; rows of a time that had not come yet, from"
            " a clock that is ahead, are left out, and a stream keeps them in the folder ahead; invalid samples are no finite"
            " numbers."
        ),
    )
