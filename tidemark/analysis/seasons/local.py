"""`tidemark seasons`: one target's profile and schedule on one machine, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rich.markup import escape
from typer import Argument, Option

from tidemark.analysis.advise import local as advise
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.arrow_columns import arrow_columns
from tidemark.analysis.backtest.local import write_rows
from tidemark.analysis.backtest.replay.history import HistoryError
from tidemark.analysis.errors import InputError
from tidemark.analysis.gates import check, closed_by, read_limits
from tidemark.analysis.options import ROOT_FOLDER, Allow, Root, app_settings
from tidemark.analysis.report import Report, write_page
from tidemark.analysis.seasons import tables
from tidemark.analysis.seasons.periods import schedule
from tidemark.analysis.seasons.profile import Profile, profile, told
from tidemark.analysis.seasons.tables import GATES, totals
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.settings_reader import share as read_share

console = Console()

Zone = Annotated[str, Option("--time-zone", help="Whose clock the load follows, such as Europe/Berlin.")]
Share = Annotated[
    str, Option(help="Of the weeks: in so many an hour's floor is enough for its busiest quarter.")
]
SHARE = "50%"


def zone_of(text: str) -> str:
    """Raises InputError."""
    try:
        return ZoneInfo(text).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(
            f"--time-zone is '{text}'; accepted are IANA names such as Europe/Amsterdam, and UTC"
        ) from None


def share_of(text: str) -> float:
    """Raises InputError."""
    try:
        return read_share(text)
    except ValueError as error:
        raise InputError(f"--share: {error}") from None


def command(
    history: Annotated[
        Path,
        Argument(
            help="Arrivals as CSV or Parquet (`tidemark history pull`; t, arrivals), or a scaling log as JSON "
            "(`tidemark log --json`)."
        ),
    ],
    target: Annotated[
        str | None, Option(help="A target of tidemark.toml; needed where the history holds several.")
    ] = None,
    log: Annotated[
        Path | None, Option(help="Scaling log beside arrivals: tells what an instance serves.")
    ] = None,
    service_rate: advise.ServiceRate = None,
    concurrency: advise.Concurrency = None,
    start_up: advise.StartUp = None,
    minimum: advise.Minimum = None,
    maximum: advise.Maximum = None,
    metric: advise.Metric = None,
    time_zone: Zone = "UTC",
    share: Share = SHARE,
    output: Annotated[Path, Option("--output", help="Folder of page and tables.")] = Path("seasons-output"),
    config: advise.Config = advise.CONFIG,
    root: Root = ROOT_FOLDER,
    allow: Allow = None,
) -> None:
    """What a target needs by the hour of the week, as a `schedule` to paste, with its error on weeks that were held out.

    Out of three weeks of arrivals or more. Writes the tables floors and schedules, and one page with plots.
    """
    limits = read_limits(allow or (), GATES.keys() - {"quarantined"})
    options = advise.options_of(
        service_rate=service_rate, concurrency=concurrency, start_up=start_up, wait=None, late=None,
        minimum=minimum, maximum=maximum, metric=metric, price=None, currency="",
    )  # fmt: skip
    zone, wanted = zone_of(time_zone), share_of(share)
    found = _found(history, log, target, options, zone, wanted, (config, root))
    for name, columns in tables.ALL.items():
        write_rows(tables.rows_of(found)[name], output / f"{name}.parquet", arrow_columns(columns))
    show(found)

    def report() -> Report:
        from tidemark.analysis.seasons.page import report_of  # noqa: PLC0415 - matplotlib takes a second

        return report_of([found])

    check(closed_by(limits, totals([found]), GATES), write_page(report, output, console))


def _found(
    history: Path,
    log: Path | None,
    target: str | None,
    options: Options,
    zone: str,
    wanted: float,
    where: tuple[Path, Path],
) -> Profile:
    targets = advise.read_targets(where[0], app_settings(where[1]))
    queue = advise.metric_for(advise.spec_of(target, targets), options)
    name, readings = advise.chosen(advise.read_history(history, log, queue), target, targets)
    try:
        question = prepare(name, readings, options, advise.spec_of(name, targets))
        return profile(question, zone=zone, share=wanted)
    except HistoryError as error:
        raise InputError(str(error)) from error


def show(found: Profile) -> None:
    """The schedule and its error on the terminal."""
    console.print(f"{escape(found.target)}: {told(found)}", soft_wrap=True)
    if not found.worth:
        console.print(f"[bold]{escape(one_line(tables.NOT_WORTH))}[/]", soft_wrap=True)
        return
    console.print("\n[dim]for tidemark.toml, beside the target's other rules:[/]\n")
    console.print(schedule(found), markup=False, highlight=False, soft_wrap=True)
