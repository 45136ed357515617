"""The sampling report: extract events of Application Insights, correct them by itemCount, find what broke, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Annotated, Any

from msgspec import Struct
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from typer import Option

from spark_jobs import cli
from spark_jobs.errors import InputError
from spark_jobs.platform.output import check_format
from spark_jobs.platform.progress import watch
from spark_jobs.platform.results import Results
from spark_jobs.platform.rows import RowAccount, cached, collected
from spark_jobs.reports.report_files import write_report
from spark_jobs.sampling_report import page
from spark_jobs.sampling_report.breaks import BreakSettings
from spark_jobs.sampling_report.changes import Change, Share, changes
from spark_jobs.sampling_report.kql import Question
from spark_jobs.sampling_report.transforms import FIRST_BIN, binned, chosen, filled, names, once, shares
from spark_jobs.sampling_report.verdicts import LOSSES, Analysis, Day, analyse, lost_events
from spark_jobs.schemas import row_schema
from spark_jobs.sources.files.spark_files import set_aside
from spark_jobs.sources.records.app_insights import read_app_insights
from spark_jobs.sources.registration import spark_session
from tidemark.analysis.gates import Limits, check, check_sum, exceeded, read_limits
from tidemark.analysis.option_values import check_span, moment, seconds
from tidemark.analysis.options import Allow, Since, Until
from tidemark.analysis.report import Report
from tidemark.foundation.log.terminal import Console

JOB = "sampling-report"
DAY = timedelta(days=1)
GATES = ("copies", "without-item-count", "sampled", "lost", "quarantined")
"""`sampled` are events that no row is of, `lost` those that are missing and no sampling explains."""
MOST_BINS = 20_000
"""More would fit neither a plot nor the driver's patience: two years of hours are 17,520."""
_LISTED = 20  # names in an error message

FINDINGS = row_schema("""
    day text, kind text, sentence text, rate_ratio double, count_ratio double, sum_ratio double,
    strength double, events_missing double, changed text
""")
"""One row per break; ratios are of the level after it to the level before. `strength` is in standard errors."""


class Settings(Struct, frozen=True):
    """Raises InputError for what cannot be."""

    input: str
    event: str | None = None
    """None: the only one there is."""
    measurement: str | None = None
    bin: timedelta = DAY
    since: datetime | None = None
    until: datetime | None = None
    ignore: frozenset[date] = frozenset()
    rules: BreakSettings = BreakSettings()
    output: str = cli.default_output(JOB)
    fmt: str = "parquet"
    quarantine: str | None = None
    allow: Limits = {}
    """Of GATES: what may be missing; shares are of the events that the rows stand for."""

    def __post_init__(self) -> None:
        check_format(self.fmt)
        if self.bin < timedelta(seconds=1) or self.bin % timedelta(seconds=1):
            raise InputError(f"--bin is {self.bin}; accepted: whole seconds, from 1 s")
        check_span(self.since, self.until)


class _Found(Struct, frozen=True):
    """What the extract holds: the event's name, its table, if its rows have ids, and the whole export's time."""

    event: str
    source: str
    with_ids: bool
    first: datetime
    last: datetime


def run(settings: Settings, spark: SparkSession) -> tuple[page.Findings, str]:
    """Reads, judges and reports; returns what was found, and the report's path. Raises JobError; GateClosedError, when all is
    written, where more is missing than is allowed.
    """
    with cached(read_app_insights(spark, settings.input, quarantine=settings.quarantine)) as events:
        return _looked_at(spark, events, settings)  # twice: parsing it again would be most of the work


def _looked_at(spark: SparkSession, events: DataFrame, settings: Settings) -> tuple[page.Findings, str]:
    results = Results.begin(spark, settings.output, job=JOB, fmt=settings.fmt)
    with watch(spark, "looking for the event"):
        found = _choose(collected(names(events)), settings)
        account = RowAccount("--input")
        stored = chosen(events, account, found.event, settings.since, settings.until)
    with cached(once(stored) if found.with_ids else stored.withColumn("copies", F.lit(1))) as kept:
        [row] = collected(kept.select(F.count("*").alias("rows"), F.sum(F.col("copies") - 1).alias("copies")))
        if not row["rows"]:
            raise InputError(f"{settings.input} holds none of the events between --from and --to")
        _check_measurement(kept, settings)
        copies = row["copies"]
        account.check(rows=row["rows"], copies=copies)
        findings, path, closed = _judged(spark, results, kept, found, settings, copies=copies)
    check(closed, path)
    return findings, path


def _judged(
    spark: SparkSession, results: Results, kept: DataFrame, found: _Found, settings: Settings, *, copies: int
) -> tuple[page.Findings, str, Sequence[str]]:
    with cached(_bins(kept, found, settings, settings.bin)) as bins:
        with watch(spark, "counting and correcting"):
            rows = collected(bins.orderBy("bin_start"))
            daily = rows if settings.bin == DAY else collected(_bins(kept, found, settings, DAY))
        days = _days(daily, found, settings)
        analysis = analyse(days, settings.rules)
        with watch(spark, "comparing what changed"):
            changed = _changes(kept, days, analysis)
        lost = {
            place: missing
            for place, finding in enumerate(analysis.findings)
            if (missing := lost_events(days, analysis.count, finding)) is not None
        }
        question = Question(found.event, settings.measurement, settings.bin, settings.since, settings.until)
        events = kept.count()  # cached
        check_sum("the events", events, {"bins": sum(row["rows"] for row in rows)})
        findings = page.Findings(question, found.source, rows, copies, days, analysis, changed, lost)
        with watch(spark, f"writing {settings.output}"):
            results.write("bins", bins)
            table = spark.createDataFrame(_rows(analysis, changed, lost), FINDINGS)
            results.write("findings", table.coalesce(1))
            closed = _account(spark, results, findings, settings)
            results.publish()
            path = write_report(spark, partial(_page, findings, settings), settings.output)
    return findings, path, closed


def _page(findings: page.Findings, settings: Settings) -> Report:
    report = page.build(findings)
    if any(findings.lost.values()):
        report.next_step(
            "which events of the hub were never written",
            "tidemark",
            "spark",
            "reconciliation",
            "--capture",
            "capture/",
        )
    else:
        gate = ("--event", findings.question.event, "--allow", "lost=0")
        report.next_step(
            "as a gate: exit status 3 on the day that events begin to be lost",
            *("tidemark", "spark", "sampling-report", "--input", settings.input, *gate),
        )
    return report


def _account(
    spark: SparkSession, results: Results, findings: page.Findings, settings: Settings
) -> Sequence[str]:
    """What the run says of itself; returns why its gate is closed."""
    rows, unknown, events = (
        sum(getattr(each, name) or 0 for each in findings.bins)
        for name in ("rows", "without_item_count", "corrected_count")
    )
    counts: dict[str, float | None] = {
        "rows": rows,
        "events": events,
        "copies": findings.copies,
        "without-item-count": unknown,
        "sampled": events - (rows - unknown),
        "lost": sum(findings.lost.values()),
        "quarantined": set_aside(spark, settings.quarantine),
    }
    closed = exceeded(settings.allow, counts, events)
    asked = {
        "event": findings.question.event,
        "from": settings.since,
        "to": settings.until,
        "bin": settings.bin,
    }
    results.tell(inputs={"input": settings.input}, counts=counts, settings=asked, closed=closed)
    return closed


def _choose(rows: Sequence[Any], settings: Settings) -> _Found:
    if not rows:
        raise InputError(f"{settings.input} holds no events; accepted: exports of customEvents or AppEvents")
    by_name = {row["name"]: row for row in rows}
    if (settings.event is None and len(by_name) > 1) or settings.event not in {None, *by_name}:
        known = ", ".join(sorted(f"'{name}'" for name in by_name)[:_LISTED])
        asked = "is not given" if settings.event is None else f"'{settings.event}' is not there"
        raise InputError(f"--event {asked}; {settings.input} holds {len(by_name)}: {known}")
    event = settings.event or next(iter(by_name))
    own = [row for row in rows if row["name"] == event]
    # All events of the export say how far it goes: one that is no longer tracked at all has no last day of its own.
    first, last = min(row["first"] for row in rows), max(row["last"] for row in rows)
    source = max(own, key=lambda row: row["rows"])["source"]
    return _Found(event, source, any(row["with_id"] for row in own), first, last)


def _check_measurement(kept: DataFrame, settings: Settings) -> None:
    if (
        settings.measurement is None
        or not kept.where(F.col("measurements")[F.lit(settings.measurement)].isNotNull()).isEmpty()
    ):
        return
    known = kept.select(F.explode(F.map_keys("measurements")).alias("name")).distinct().limit(_LISTED)
    listed = ", ".join(sorted(f"'{row['name']}'" for row in collected(known))) or "none"
    raise InputError(f"--measurement '{settings.measurement}' is in no event; there are: {listed}")


def _range(found: _Found, settings: Settings) -> tuple[datetime, datetime]:
    """From when to when the events were looked at, the end excluded."""
    end = found.last + timedelta(microseconds=1)
    return max(found.first, settings.since or found.first), min(end, settings.until or end)


def _bins(kept: DataFrame, found: _Found, settings: Settings, width: timedelta) -> DataFrame:
    begin, end = _range(found, settings)
    bounds = begin, end - timedelta(microseconds=1)
    first, last = (at - (at - FIRST_BIN) % width for at in bounds)
    many = (last - first) // width + 1
    if many > MOST_BINS:
        raise InputError(f"--bin {settings.bin} gives {many:,} bins; at most {MOST_BINS:,} are accepted")
    return filled(binned(kept, width, settings.measurement), first, last, width)


def _days(bins: Sequence[Row], found: _Found, settings: Settings) -> list[Day]:
    """Days as judged: of one that is cut off, or ignored, nothing is known."""
    begin, end = _range(found, settings)
    days = []
    for each in bins:
        day = each.bin_start.date()
        # Where the range that was asked for reaches the edge of a day, the day is whole.
        starts, ends = each.bin_start, each.bin_start + DAY
        cut_begin = starts < begin and (settings.since is None or settings.since > starts)
        cut_end = ends > end and (settings.until is None or settings.until < ends)
        if cut_begin or cut_end or day in settings.ignore:
            days.append(Day(day, None, None))
            continue
        errors = each.corrected_count_error or 0.0, each.corrected_sum_error or 0.0
        rate, count, total = each.sampling_rate, each.corrected_count, each.corrected_sum
        days.append(Day(day, rate, count, errors[0], total, errors[1]))
    return days


def _changes(kept: DataFrame, days: Sequence[Day], analysis: Analysis) -> dict[int, list[Change]]:
    """What changed with each break, as far as the breaks are at least a day apart."""
    found: dict[int, list[Change]] = {}
    for place, finding in enumerate(analysis.findings):
        after = min(7, (days[-1].day - finding.day).days + 1)
        at = datetime.combine(finding.day, time(), UTC)
        rows = collected(shares(kept, at, after))
        found[place] = changes(Share(**{name: row[name] for name in Share.__struct_fields__}) for row in rows)
    return found


def _rows(
    analysis: Analysis, changed: Mapping[int, Sequence[Change]], lost: Mapping[int, float]
) -> list[tuple[object, ...]]:
    return [
        (
            finding.day.isoformat(),
            str(finding.kind),
            finding.sentence(),
            *(None if each is None else each.ratio for each in finding.breaks),
            max(each.strength for each in finding.breaks if each is not None),
            lost.get(place),
            "; ".join(change.sentence() for change in changed.get(place, ())) or None,
        )
        for place, finding in enumerate(analysis.findings)
    ]


def command(
    input_: Annotated[str, Option("--input", help="Folder or file of the export; a local path or a URL.")],
    event: Annotated[str | None, Option(show_default="the only one", help="Name of the event.")] = None,
    measurement: Annotated[
        str | None, Option(show_default="events are counted only", help="Custom measurement to sum up, too.")
    ] = None,
    bin_: Annotated[str, Option("--bin", help="Length of a bin: 1d, 6h, 15m.")] = "1d",
    since: Since = None,
    until: Until = None,
    ignore: Annotated[
        list[str] | None, Option(help="A day to leave out of the judgement, 2026-12-25; may be repeated.")
    ] = None,
    minimum_days: Annotated[int, Option(help="A change of fewer days is an incident, not a break.")] = 4,
    allow: Allow = None,
    least_change: Annotated[float, Option(help="Smallest change of a level that counts, as a share.")] = 0.2,
    output: cli.Output = None,
    format_: cli.Format = "parquet",
    quarantine: cli.Quarantine = None,
    cores: cli.Cores = None,
    memory: cli.Memory = "2g",
) -> None:
    """Counts and sums of an Application Insights event, corrected by itemCount; when sampling or a loss began."""
    try:
        rules = BreakSettings(minimum_days, least_change)
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_', '-')}") from None
    found, path = run(
        Settings(
            input=input_,
            event=event,
            measurement=measurement,
            bin=timedelta(seconds=seconds("--bin", bin_)),
            since=moment("--from", since),
            until=moment("--to", until),
            ignore=frozenset(map(_date, ignore or ())),
            rules=rules,
            output=output or cli.default_output(JOB),
            fmt=format_,
            quarantine=quarantine,
            allow=read_limits(allow or (), GATES),
        ),
        spark_session("sampling report", cores=cores, memory=memory),
    )
    _tell(found, path)


def _tell(found: page.Findings, path: str) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    for finding in found.analysis.findings:
        style = "bold red" if finding.kind in LOSSES else "bold"
        console.print(f"{finding.day}  {finding.kind}", style=style)
        console.print(f"  {finding.sentence()}")
    if not found.analysis.findings:
        console.print("no break found")
    if found.copies:
        console.print(f"{found.copies:,} rows are in more than one file of the export; each counts once")
    console.print(f"report: {path}")


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError(f"--ignore is '{text}'; accepted: a date such as 2026-12-25") from None


if __name__ == "__main__":
    cli.run_command(command, name=JOB)
