"""`tidemark seasons`: one target's profile and schedule on one machine, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rich.markup import escape
from typer import Option

from tidemark.analysis.advise.local import read_question, read_targets
from tidemark.analysis.advise.options import QueueOptions
from tidemark.analysis.arrow_columns import arrow_columns
from tidemark.analysis.backtest.replay.history import HistoryError
from tidemark.analysis.errors import InputError
from tidemark.analysis.limits import read_limits
from tidemark.analysis.options import (
    CONFIG,
    ROOT_FOLDER,
    Allow,
    Config,
    History,
    LogBeside,
    Root,
    TargetName,
    app_settings,
    with_groups,
)
from tidemark.analysis.results import finish
from tidemark.analysis.seasons import tables
from tidemark.analysis.seasons.periods import schedule
from tidemark.analysis.seasons.profile import Profile, error_text, profile
from tidemark.analysis.seasons.tables import LIMITED, totals
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


@with_groups
def command(
    *,
    history: History,
    target: TargetName = None,
    log: LogBeside = None,
    load: QueueOptions,
    time_zone: Zone = "UTC",
    share: Share = SHARE,
    output: Annotated[
        Path, Option("--output", file_okay=False, writable=True, help="Folder of page and tables.")
    ] = Path("seasons-output"),
    config: Config = CONFIG,
    root: Root = ROOT_FOLDER,
    allow: Allow = None,
) -> None:
    """What a target needs by the hour of the week, as a `schedule` to paste, with its error on weeks that were held out.

    Out of three weeks of arrivals or more. Writes the tables floors and schedules, and one page with plots.
    """
    limits = read_limits(allow or (), LIMITED.keys() - {"quarantined"})
    options, zone, wanted = load.read(), zone_of(time_zone), share_of(share)
    targets = read_targets(config, app_settings(root))
    question = read_question(history, log, target, options, targets)
    try:
        learned = profile(question, zone=zone, share=wanted)
    except HistoryError as error:
        raise InputError(str(error)) from error
    show(learned)
    made = tables.rows_of(learned)
    finish(
        [learned],
        output,
        {name: (made[name], arrow_columns(columns)) for name, columns in tables.ALL.items()},
        "tidemark.analysis.seasons.page",
        counts=totals([learned]),
        limited=LIMITED,
        allow=limits,
    )


def show(learned: Profile) -> None:
    """The schedule and its error on the terminal."""
    console.print(f"{escape(learned.target)}: {error_text(learned)}", soft_wrap=True)
    if not learned.worth:
        console.print(f"[bold]{escape(one_line(tables.NOT_WORTH))}[/]", soft_wrap=True)
        return
    console.print("\n[dim]for tidemark.toml, beside the target's other rules:[/]\n")
    console.print(schedule(learned), markup=False, highlight=False, soft_wrap=True)
