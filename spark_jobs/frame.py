"""What all jobs share: options, settings, and how a run ends. Its page is made when its results are published, so that a page
that fails costs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pyspark.sql import SparkSession
from typer import Option

from spark_jobs.platform.progress import watch
from spark_jobs.platform.user_code import OWN_MODULES, find_own_modules
from spark_jobs.reports.report_files import write_report
from spark_jobs.sources.files.spark_files import set_aside
from spark_jobs.sources.registration import spark_session
from spark_jobs.tables.plain import check_format
from spark_jobs.tables.results import KEEP, Results
from tidemark.analysis.limits import (
    Limits,
    RowCount,
    check_sum,
    exceeded_limits,
    raise_for_failures,
    read_limits,
)
from tidemark.analysis.option_values import check_span, moment, seconds
from tidemark.analysis.options import ROOT_FOLDER, Allow, Root, Since, Until, app_settings
from tidemark.analysis.report import Report

Arrivals = Annotated[
    str | None, Option(help="Arrivals as CSV or .parquet: t, arrivals and, for several targets, target.")
]
Log = Annotated[str | None, Option(help="Scaling log: folder of JSON lines, or table://<connection>.")]
CaptureLag = Annotated[
    str,
    Option(help="With --from or --to: how late Capture may have written a file. Later ones are not read."),
]
CAPTURE_LAG = "1h"


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of every job."""

    since: Since = None
    until: Until = None
    output: Annotated[
        str | None, Option("--output", show_default="spark-output/<job>", help="Folder of the results.")
    ] = None
    format_: Annotated[
        str,
        Option(
            "--format",
            envvar="TIDEMARK_SPARK_FORMAT",
            help="Tables as delta; with parquet or iceberg also as such, in a folder of that name.",
        ),
    ] = "delta"
    keep: Annotated[
        str, Option(help="How long old versions of the tables are kept, for those who read them.")
    ] = "7d"
    quarantine: Annotated[
        str | None,
        Option("--quarantine", help="Folder for what cannot be read; without it, that is an error."),
    ] = None
    allow: Allow = None
    cores: Annotated[
        int | None, Option("--cores", min=1, show_default="all", help="Cores in local mode.")
    ] = None
    memory: Annotated[str, Option("--memory", help="Memory of Spark in local mode.")] = "2g"

    def read(self, job: str, limited: Collection[str]) -> dict[str, Any]:
        """The fields of JobSettings. Raises InputError naming the option at fault."""
        return {
            "output": self.output or str(Path("spark-output") / job),
            "fmt": check_format(self.format_),
            "keep": seconds("--keep", self.keep),
            "quarantine": self.quarantine,
            "since": moment("--from", self.since),
            "until": moment("--to", self.until),
            "allow": read_limits(self.allow or (), limited),
        }

    def session(self, job: str) -> SparkSession:
        return spark_session(job, cores=self.cores, memory=self.memory)


@dataclass(frozen=True, kw_only=True)
class AppJobOptions(JobOptions):
    """The options of a job that reads what belongs to an app, or its configuration."""

    root: Root = ROOT_FOLDER

    def read(self, job: str, limited: Collection[str]) -> dict[str, Any]:
        settings = {**app_settings(self.root), OWN_MODULES: str(self.root.resolve())}
        find_own_modules(settings)  # the code of a transform is compared
        return {**super().read(job, limited), "app_settings": settings}


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The settings of every job, parsed. Raises InputError for those that cannot be."""

    output: str = "spark-output"
    """Folder of the results."""
    fmt: str = "delta"
    keep: float = KEEP
    """Seconds for which old versions of the tables are kept."""
    quarantine: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    allow: Limits = field(default_factory=dict)
    """How much may be left out, by the names in the job's LIMITED."""
    app_settings: Mapping[str, str] | None = field(default=None, repr=False)
    """What a configuration, an app and the scaling log's table refer to; None: the environment."""

    def __post_init__(self) -> None:
        check_format(self.fmt)
        check_span(self.since, self.until)

    @property
    def other_root(self) -> str | None:
        """The app's folder, where a command must name it."""
        folder = (self.app_settings or {}).get(OWN_MODULES)
        return None if folder == str(ROOT_FOLDER.resolve()) else folder


def option_words(given: Mapping[str, Any]) -> list[str]:
    """The options that have a value, as words of a command."""
    return [word for option, value in given.items() if value for word in (option, value)]


def finish(
    spark: SparkSession,
    results: Results,
    settings: JobSettings,
    make_page: Callable[[], Report],
    *,
    rows: Sequence[RowCount],
    inputs: Mapping[str, object],
    counts: Mapping[str, float | None],
    limited: Mapping[str, str],
    asked: Mapping[str, object] | None = None,
    findings: Sequence[str] = (),
) -> str:
    """Ends a run whose tables are written, in this order: publishes them, makes the page, writes them in another format where
    one is asked for, removes old versions, checks the limits. Returns where the page is; the folder where there can be none.

    Every input that was read is in `rows`. `counts` and `asked` are kept with the run; `findings` are reasons why its answer
    is no, besides exceeded limits. Raises JobError, before anything is published, where a row is in no count; CheckFailedError, when
    all is written, where more was left out than is allowed and there are no findings, which the job itself reports.
    """
    for row in rows:
        check_sum(*row)
    counted = {**counts, "quarantined": set_aside(spark, settings.quarantine)}
    exceeded = exceeded_limits(settings.allow, counted, limited)
    results.tell(
        inputs=inputs,
        counts=counted,
        settings={"from": settings.since, "to": settings.until, **(asked or {})},
        failures=[*findings, *exceeded],
    )
    with watch(spark, "writing the report"):
        results.publish()
        page = write_report(spark, partial(_page, make_page, results), settings.output)
    if settings.fmt != "delta":
        with watch(spark, f"writing tables as {settings.fmt}"):
            results.export()
    results.vacuum(settings.keep)
    if not findings:
        raise_for_failures(exceeded, page)
    return page


def _page(make_page: Callable[[], Report], results: Results) -> Report:
    report = make_page()
    if note := results.export_note():
        report.text(note)
    if not results.keeps_runs:
        report.next_steps = [step for step in report.next_steps if not step[1].startswith("tidemark runs ")]
    return report
