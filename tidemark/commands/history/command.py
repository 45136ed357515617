"""`tidemark history pull`: recorded arrivals and instance counts from Azure Monitor into a file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from typer import Option

from scaling.config.policy import PolicySpec
from scaling.service.assembly import read_config
from tidemark.commands.access.where import fail
from tidemark.commands.history.azure_monitor import MetricsReader
from tidemark.commands.history.choosing import Options, chosen
from tidemark.commands.history.journal import place_of
from tidemark.commands.history.model import KEPT_DAYS, MINUTE, SETTLING, PullError, PullPlan
from tidemark.commands.history.pull import Puller, Result
from tidemark.foundation.app_settings import COMMAND_ROOT, load_settings, policy_file
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line, without_secrets
from tidemark.foundation.settings_reader import ConfigError
from tidemark.foundation.wording import count_text, duration_text, time_text

app = typer.Typer(
    name="history",
    help="Recorded load, to try policies on before they decide anything.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

CLOCK_OFFSET_TOLD = 60.0
"""Seconds between this machine's clock and Azure's from which on it is reported. Chosen: a bin of the history is a minute."""


@app.callback()
def history() -> None:
    """Recorded load, to try policies on before they decide anything."""


@app.command("pull")
def pull_command(
    target: Annotated[
        str, Option(help="A target of tidemark.toml; or, with --resource-id and --entity, any name.")
    ],
    out: Annotated[Path, Option(help="File to write or to go on with: .csv, .csv.gz or .parquet.")],
    days: Annotated[
        int, Option(min=1, max=KEPT_DAYS, help="How far back; Azure Monitor keeps 93 days.")
    ] = 30,
    metric: Annotated[
        str,
        Option(
            help="The target's metric whose queue, topic or event hub is meant; needed where there are several."
        ),
    ] = "",
    resource_id: Annotated[
        str,
        Option(
            help="Resource id of the namespace or storage account; without it, that of the connection, in the plan's group."
        ),
    ] = "",
    entity: Annotated[str, Option(help="Queue, topic or event hub; without it, the metric's.")] = "",
    plan_id: Annotated[
        str, Option(help="Resource id of the App Service plan; without it, the plan that the target scales.")
    ] = "",
    instances: Annotated[bool, Option(help="Whether instances of the plan are counted.")] = True,
    root: Annotated[
        Path, Option(help="Folder of tidemark.toml, .env and local.settings.json.")
    ] = COMMAND_ROOT,
) -> None:
    """Arrivals of a queue, topic or event hub and instances of the plan, minute by minute, from Azure Monitor.

    A minute without a value is empty, not 0. A pull that is stopped goes on where it was; a later one adds what is new.
    `tidemark backtest GRID --arrivals FILE` replays the file. Needs the role Monitoring Reader.
    """
    options = Options(
        target=target,
        metric=metric,
        resource_id=resource_id,
        entity=entity,
        plan_id=plan_id,
        instances=instances,
    )
    try:
        settings = load_settings(root, about=f"{resource_id}{plan_id}")
        wanted = chosen(options, policies_of(settings, root), settings)
        for note in wanted.notes:
            errors.print(f"[yellow]note:[/] {escape(one_line(note))}", soft_wrap=True)
        result = asyncio.run(_pull(wanted, days, out, settings))
    except (PullError, ConfigError, SettingsError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        kept = place_of(out)
        remark = f"what was read is in {kept}, and the same command goes on there"
        fail(f"stopped; {remark if kept.exists() else 'nothing was read yet'}")
    for line in summary(result, wanted, out):
        console.print(escape(line), soft_wrap=True)


def policies_of(settings: Mapping[str, str], root: Path) -> dict[str, PolicySpec]:
    """The targets' policies; none where there is no configuration. Raises ConfigError for one with problems."""
    if not policy_file(root, settings).exists():
        return {}
    return {name: policy.spec for name, policy in read_config(settings, root=root).policies.items()}


async def _pull(wanted: PullPlan, days: int, out: Path, settings: Mapping[str, str]) -> Result:
    reader = MetricsReader(settings)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    async with aclosing(reader):
        with Progress(*columns, console=errors) as bar:
            return await Puller(reader, _Bar(bar), time.time).pull(wanted, days, out)


class _Bar:
    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("reading", total=None)

    def begin(self, minutes: int) -> None:
        self._bar.update(self._task, total=minutes)

    def advance(self, minutes: int) -> None:
        self._bar.update(self._task, advance=minutes)

    def waiting(self, reason: str) -> None:
        self._bar.console.print(f"[yellow]{escape(one_line(without_secrets(reason)))}[/]", soft_wrap=True)


def summary(result: Result, wanted: PullPlan, out: Path) -> Iterator[str]:
    """What the file holds, in words."""
    minutes = result.minutes
    first, last = min(minutes), max(minutes) + 1
    arrivals = sum(minute.arrivals is not None for minute in minutes.values())
    yield (
        f"{out}: {wanted.source} from {time_text(first * MINUTE)} to {time_text(last * MINUTE)}, "
        f"{count_text(len(minutes), 'minute')} ({result.new} new)"
    )
    yield f"{arrivals} have a number of arrivals; the other {len(minutes) - arrivals} are gaps, not zeros"
    if wanted.plan is None:
        yield "instances are not counted: no App Service plan is named (--plan-id), or --no-instances is given"
    else:
        known = sum(minute.instances is not None for minute in minutes.values())
        yield f"{known} have a number of instances"
    if result.untold:
        yield (
            f"left out of the answers although asked for again, and so gaps: {count_text(result.untold, 'minute')}"
        )
    if abs(result.clock_offset) >= CLOCK_OFFSET_TOLD:
        side = "ahead of" if result.clock_offset > 0 else "behind"
        yield f"this machine's clock is {duration_text(abs(result.clock_offset))} {side} Azure's, which was used"
    yield f"the newest {SETTLING} minutes are left out: Azure Monitor may still add to them"
