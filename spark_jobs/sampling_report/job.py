"""The sampling report: extract events of Application Insights, correct them by itemCount, find what broke, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Annotated, Any

from msgspec import Struct
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from typer import Option

from spark_jobs import cli
from spark_jobs.frame import JobOptions, JobSettings, finish
from spark_jobs.platform.progress import watch
from spark_jobs.platform.rows import RowAccount, cached, collected
from spark_jobs.sampling_report import page
from spark_jobs.sampling_report.breaks import BreakSettings
from spark_jobs.sampling_report.changes import Change, Share, changes
from spark_jobs.sampling_report.kql import Question
from spark_jobs.sampling_report.transforms import FIRST_BIN, binned, chosen, filled, names, once, shares
from spark_jobs.sampling_report.verdicts import LOSSES, Analysis, Day, analyse, lost_events
from spark_jobs.schemas import row_schema
from spark_jobs.sources.records.app_insights import read_app_insights
from spark_jobs.tables.results import Results
from tidemark.analysis.errors import InputError
from tidemark.analysis.limits import RowCount
from tidemark.analysis.option_values import seconds
from tidemark.analysis.options import with_groups
from tidemark.analysis.report import Report
from tidemark.foundation.log.terminal import Console

JOB = "sampling-report"
DAY = timedelta(days=1)
LIMITED = dict.fromkeys(("copies", "without-item-count", "sampled", "lost", "quarantined"), "events")
"""`sampled` are events that no row is of, `lost` those that are missing and no sampling explains."""
MOST_BINS = 20_000
"""More would fit neither a plot nor the driver's patience: two years of hours are 17,520."""
_LISTED = 20  # names in an error message

FINDINGS = row_schema("""
    day text, kind text, sentence text, rate_ratio double, count_ratio double, sum_ratio double,
    strength double, events_missing double, changed text
""")
"""One row per break; ratios are of the level after it to the level before. `strength` is in standard errors."""


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """Raises InputError for what cannot be. Shares of `allow` are of the events that the rows stand for."""

    input: str
    event: str | None = None
    """None: the only one there is."""
    measurement: str | None = None
    bin: timedelta = DAY
    ignore: frozenset[date] = frozenset()
    rules: BreakSettings = field(default_factory=BreakSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bin < timedelta(seconds=1) or self.bin % timedelta(seconds=1):
            raise InputError(f"--bin is {self.bin}; accepted: whole seconds, from 1 s")


class _Extract(Struct, frozen=True):
    """What the extract holds: the event's name, its table, if its rows have ids, and the whole export's time."""

    event: str
    source: str
    with_ids: bool
    first: datetime
    last: datetime


def run(settings: Settings, spark: SparkSession) -> tuple[page.Findings, str]:
    """Reads, judges and reports; returns what was found, and the report's path. Raises JobError; CheckFailedError, when all is
    written, where more is missing than is allowed.
    """
    with cached(read_app_insights(spark, settings.input, quarantine=settings.quarantine)) as events:
        return _looked_at(spark, events, settings)  # twice: parsing it again would be most of the work


def _looked_at(spark: SparkSession, events: DataFrame, settings: Settings) -> tuple[page.Findings, str]:
    results = Results.begin(spark, settings.output, job=JOB, fmt=settings.fmt)
    with watch(spark, "looking for the event"):
        chosen_names = _choose(collected(names(events)), settings)
        account = RowAccount("--input")
        stored = chosen(events, account, chosen_names.event, settings.since, settings.until)
    with cached(once(stored) if chosen_names.with_ids else stored.withColumn("copies", F.lit(1))) as kept:
        [row] = collected(kept.select(F.count("*").alias("rows"), F.sum(F.col("copies") - 1).alias("copies")))
        if not row["rows"]:
            raise InputError(f"{settings.input} holds none of the events between --from and --to")
        _check_measurement(kept, settings)
        read = account.check(rows=row["rows"], copies=row["copies"])
        return _judged(spark, results, kept, chosen_names, settings, read)


def _judged(
    spark: SparkSession,
    results: Results,
    kept: DataFrame,
    extract: _Extract,
    settings: Settings,
    read: RowCount,
) -> tuple[page.Findings, str]:
    with cached(_bins(kept, extract, settings, settings.bin)) as bins:
        with watch(spark, "counting and correcting"):
            rows = collected(bins.orderBy("bin_start"))
            daily = rows if settings.bin == DAY else collected(_bins(kept, extract, settings, DAY))
        days = _days(daily, extract, settings)
        analysis = analyse(days, settings.rules)
        with watch(spark, "comparing what changed"):
            changed = _changes(kept, days, analysis)
        lost = {
            place: missing
            for place, finding in enumerate(analysis.findings)
            if (missing := lost_events(days, analysis.count, finding)) is not None
        }
        question = Question(extract.event, settings.measurement, settings.bin, settings.since, settings.until)
        binned_rows = RowCount(
            "the events", kept.count(), {"bins": sum(row["rows"] for row in rows)}
        )  # cached
        copies = read.counts["copies"]
        findings = page.Findings(question, extract.source, rows, copies, days, analysis, changed, lost)
        with watch(spark, f"writing {settings.output}"):
            results.write("bins", bins)
            table = spark.createDataFrame(_rows(analysis, changed, lost), FINDINGS)
            results.write("findings", table.coalesce(1))
    return findings, _finish(spark, results, findings, settings, [read, binned_rows])


def _page(findings: page.Findings, settings: Settings) -> Report:
    report = page.build(findings)
    check = ("--event", findings.question.event, "--allow", "lost=0")
    report.next_step(
        "as a check: exit status 3 where events are lost",
        *("tidemark", "spark", "sampling-report", "--input", settings.input, *check),
    )
    return report


def _finish(
    spark: SparkSession,
    results: Results,
    findings: page.Findings,
    settings: Settings,
    read: Sequence[RowCount],
) -> str:
    """Returns the report's path."""
    rows, unknown, events = (
        sum(getattr(row, name) or 0 for row in findings.bins)
        for name in ("rows", "without_item_count", "corrected_count")
    )
    counts: dict[str, float | None] = {
        "rows": rows,
        "events": events,
        "copies": findings.copies,
        "without-item-count": unknown,
        "sampled": events - (rows - unknown),
        "lost": sum(findings.lost.values()),
    }
    return finish(
        spark,
        results,
        settings,
        partial(_page, findings, settings),
        rows=read,
        inputs={"input": settings.input},
        counts=counts,
        limited=LIMITED,
        asked={"event": findings.question.event, "bin": settings.bin},
    )


def _choose(rows: Sequence[Any], settings: Settings) -> _Extract:
    if not rows:
        raise InputError(f"{settings.input} holds no events; accepted: exports of customEvents or AppEvents")
    by_name = {row["name"]: row for row in rows}
    if (settings.event is None and len(by_name) > 1) or settings.event not in {None, *by_name}:
        known = ", ".join(sorted(f"'{name}'" for name in by_name)[:_LISTED])
        asked = "is not given" if settings.event is None else f"'{settings.event}' is not there"
        raise InputError(f"--event {asked}; {settings.input} holds {len(by_name)}: {known}")
    event = settings.event or next(iter(by_name))
    of_event = [row for row in rows if row["name"] == event]
    # All events of the export say how far it goes: one that is no longer tracked at all has no last day of its own.
    first, last = min(row["first"] for row in rows), max(row["last"] for row in rows)
    source = max(of_event, key=lambda row: row["rows"])["source"]
    return _Extract(event, source, any(row["with_id"] for row in of_event), first, last)


def _check_measurement(kept: DataFrame, settings: Settings) -> None:
    if (
        settings.measurement is None
        or not kept.where(F.col("measurements")[F.lit(settings.measurement)].isNotNull()).isEmpty()
    ):
        return
    known = kept.select(F.explode(F.map_keys("measurements")).alias("name")).distinct().limit(_LISTED)
    listed = ", ".join(sorted(f"'{row['name']}'" for row in collected(known))) or "none"
    raise InputError(f"--measurement '{settings.measurement}' is in no event; there are: {listed}")


def _range(extract: _Extract, settings: Settings) -> tuple[datetime, datetime]:
    """From when to when the events were looked at, the end excluded."""
    end = extract.last + timedelta(microseconds=1)
    return max(extract.first, settings.since or extract.first), min(end, settings.until or end)


def _bins(kept: DataFrame, extract: _Extract, settings: Settings, width: timedelta) -> DataFrame:
    begin, end = _range(extract, settings)
    bounds = begin, end - timedelta(microseconds=1)
    first, last = (at - (at - FIRST_BIN) % width for at in bounds)
    many = (last - first) // width + 1
    if many > MOST_BINS:
        raise InputError(f"--bin {settings.bin} gives {many:,} bins; at most {MOST_BINS:,} are accepted")
    return filled(binned(kept, width, settings.measurement), first, last, width)


def _days(bins: Sequence[Row], extract: _Extract, settings: Settings) -> list[Day]:
    """Days as judged: of one that is cut off, or ignored, nothing is known."""
    begin, end = _range(extract, settings)
    days = []
    for row in bins:
        day = row.bin_start.date()
        # Where the range that was asked for reaches the edge of a day, the day is whole.
        starts, ends = row.bin_start, row.bin_start + DAY
        cut_begin = starts < begin and (settings.since is None or settings.since > starts)
        cut_end = ends > end and (settings.until is None or settings.until < ends)
        if cut_begin or cut_end or day in settings.ignore:
            days.append(Day(day, None, None))
            continue
        errors = row.corrected_count_error or 0.0, row.corrected_sum_error or 0.0
        rate, count, total = row.sampling_rate, row.corrected_count, row.corrected_sum
        days.append(Day(day, rate, count, errors[0], total, errors[1]))
    return days


def _changes(kept: DataFrame, days: Sequence[Day], analysis: Analysis) -> dict[int, list[Change]]:
    """What changed with each break, as far as the breaks are at least a day apart."""
    by_index: dict[int, list[Change]] = {}
    for place, finding in enumerate(analysis.findings):
        after = min(7, (days[-1].day - finding.day).days + 1)
        at = datetime.combine(finding.day, time(), UTC)
        rows = collected(shares(kept, at, after))
        by_index[place] = changes(
            Share(**{name: row[name] for name in Share.__struct_fields__}) for row in rows
        )
    return by_index


def _rows(
    analysis: Analysis, changed: Mapping[int, Sequence[Change]], lost: Mapping[int, float]
) -> list[tuple[object, ...]]:
    return [
        (
            finding.day.isoformat(),
            str(finding.kind),
            finding.sentence(),
            *(None if change is None else change.ratio for change in finding.breaks),
            max(change.strength for change in finding.breaks if change is not None),
            lost.get(place),
            "; ".join(change.sentence() for change in changed.get(place, ())) or None,
        )
        for place, finding in enumerate(analysis.findings)
    ]


@with_groups
def command(
    *,
    input_: Annotated[str, Option("--input", help="Folder or file of the export; a local path or a URL.")],
    event: Annotated[str | None, Option(show_default="the only one", help="Name of the event.")] = None,
    measurement: Annotated[
        str | None, Option(show_default="events are counted only", help="Custom measurement to sum up, too.")
    ] = None,
    bin_: Annotated[str, Option("--bin", help="Length of a bin: 1d, 6h, 15m.")] = "1d",
    ignore: Annotated[
        list[str] | None, Option(help="A day to leave out of the judgement, 2026-12-25; may be repeated.")
    ] = None,
    minimum_days: Annotated[int, Option(help="A change of fewer days is an incident, not a break.")] = 4,
    least_change: Annotated[float, Option(help="Smallest change of a level that counts, as a share.")] = 0.2,
    job: JobOptions,
) -> None:
    """Counts and sums of an Application Insights event, corrected by itemCount; when sampling or a loss began."""
    try:
        rules = BreakSettings(minimum_days, least_change)
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_', '-')}") from None
    settings = Settings(
        input=input_,
        event=event,
        measurement=measurement,
        bin=timedelta(seconds=seconds("--bin", bin_)),
        ignore=frozenset(map(_date, ignore or ())),
        rules=rules,
        **job.read(JOB, LIMITED),
    )
    findings, path = run(settings, job.session(JOB))
    _tell(findings, path)


def _tell(findings: page.Findings, path: str) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    for finding in findings.analysis.findings:
        style = "bold red" if finding.kind in LOSSES else "bold"
        console.print(f"{finding.day}  {finding.kind}", style=style)
        console.print(f"  {finding.sentence()}")
    if not findings.analysis.findings:
        console.print("no break found")
    if findings.copies:
        console.print(f"{findings.copies:,} rows are in more than one file of the export; each counts once")
    console.print(f"report: {path}")


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError(f"--ignore is '{text}'; accepted: a date such as 2026-12-25") from None


if __name__ == "__main__":
    cli.run_command(command, name=JOB)
