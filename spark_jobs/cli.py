"""`tidemark spark <job>`: one command per job. A job's libraries are loaded when its command is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from spark_jobs.errors import GATE_CLOSED, GateClosedError, JobError, job_errors
from tidemark.foundation.app_settings import COMMAND_ROOT, settings_of
from tidemark.foundation.sanitize import raising_no_secrets
from tidemark.foundation.version import install_hint

SUMMARIES: dict[str, str] = {
    "telemetry-aggregation": "Backlogs, rates, 429 share, RU per record, lag, scale actions and cost by minute, hour, day.",
    "sampling-report": "What Application Insights sampled, what it lost, and on which day that began.",
    "reconciliation": "Which events of the hub are neither in Cosmos DB nor dead letters. Exit status 3 if any.",
    "backtest": "Recorded metrics against a grid of rules: SLO misses, cost, actions, and what to set.",
    "advise": "Recorded load under today's policy, Azure Monitor, KEDA and service_level: cost, waits, what to set.",
    "cost": "What Azure billed, by target and change: against a static peak, the shadow, autoscale of RU/s.",
    "seasons": "What targets need by the hour of the week, as a schedule to paste, with its error.",
    "backfill": "Capture files into Cosmos DB through the consumer's sink, at a global rate, resumable.",
}

JOBS = {name: f"spark_jobs.{name.replace('-', '_')}.job" for name in SUMMARIES}
"""Command to module. A module has `command`, a typer function whose docstring is the help."""

HERE = ("advise", "backtest", "cost", "seasons", "telemetry-aggregation")
"""What runs on one machine without Spark, too: in a module `local` beside `job`."""

COMMANDS = {"spark", "runs", *HERE}


def local_module(name: str) -> str:
    return JOBS[name].removesuffix("job") + "local"


# The options that jobs share, by the same names everywhere.
Output = Annotated[
    str | None, Option("--output", show_default="spark-output/<job>", help="Folder of the results.")
]
Format = Annotated[
    str, Option("--format", envvar="TIDEMARK_SPARK_FORMAT", help="Tables as parquet, delta or iceberg.")
]
Cores = Annotated[int | None, Option("--cores", min=1, show_default="all", help="Cores in local mode.")]
Memory = Annotated[str, Option("--memory", help="Memory of Spark in local mode.")]
Quarantine = Annotated[
    str | None, Option("--quarantine", help="Folder for what cannot be read; without it, that is an error.")
]
Root = Annotated[
    Path, Option("--root", help="Folder of .env and local.settings.json; the environment wins over both.")
]
ROOT_FOLDER = COMMAND_ROOT
Since = Annotated[
    str | None, Option("--from", help="Only from this time on: ISO 8601, UTC; today, yesterday.")
]
Until = Annotated[str | None, Option("--to", help="Only before this time: ISO 8601, UTC; today, yesterday.")]
CaptureLag = Annotated[
    str,
    Option(help="With --from or --to: how late Capture may have written a file. Later ones are not read."),
]
CAPTURE_LAG = "1h"
Allow = Annotated[
    list[str] | None,
    Option(help="NAME=NUMBER or NAME=SHARE that may be left out; more is exit status 3. Repeat per name."),
]


def app_settings(root: Path) -> dict[str, str]:
    """The app's settings: local.settings.json and `.env` in `root`, then the environment. Raises InputError."""
    with job_errors():
        return settings_of(root)


def default_output(job: str) -> str:
    return str(Path("spark-output") / job)


app = typer.Typer(
    name="spark",
    help="Reports, gates and replays over telemetry and captured events, with Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def mount(parent: typer.Typer) -> None:
    """Adds `spark`, and what runs on one machine without it, to the `tidemark` command."""
    parent.add_typer(app)
    for name in HERE:
        _add(parent, name, local_module(name), SUMMARIES[name])
    _add(
        parent,
        "runs",
        "spark_jobs.reports.runs",
        "What the runs of a job read, counted and left out, by its output folder.",
    )


def run_command(
    command: Callable[..., Any], argv: Sequence[str] | None = None, *, name: str | None = None
) -> None:
    """Runs one job's command as a program and ends it: for `python -m spark_jobs.<job>.job` and spark-submit.

    A JobError becomes one line on stderr and exit status 1, also where a task of Spark raised it.
    """
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command()(command)
    try:
        with raising_no_secrets():
            single(args=list(sys.argv[1:] if argv is None else argv), prog_name=name)
    except Exception as error:
        told = _told(error)
        if told is None:
            raise
        if isinstance(told, GateClosedError):
            typer.echo(str(told), err=True)
            raise SystemExit(GATE_CLOSED) from None
        typer.echo(f"error: {told}", err=True)
        raise SystemExit(1) from None


def _told(error: Exception) -> JobError | None:
    """The error that is for people: itself, or the one of a task that Spark's exception carries; None if neither."""
    if isinstance(error, JobError):
        return error
    if "pyspark" not in sys.modules:  # some commands do without, and start faster so
        return None
    from spark_jobs.platform.failures import input_error_of  # noqa: PLC0415

    return input_error_of(error)


def _add(parent: typer.Typer, name: str, module: str, summary: str) -> None:
    # The job parses its own arguments: so the list of jobs and their summaries need none of their libraries.
    @parent.command(
        name,
        help=summary,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def run(context: typer.Context) -> None:
        run_command(_command_of(name, module), context.args, name=context.command_path)


def _command_of(name: str, module: str) -> Callable[..., Any]:
    try:
        command: Callable[..., Any] = importlib.import_module(module).command
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "spark_jobs":
            raise  # not an extra that is missing: the package itself is broken
        typer.echo(f"error: '{name}' needs the package '{package}': {install_hint('spark')}", err=True)
        raise SystemExit(1) from None
    return command


for _name, _module in JOBS.items():
    _add(app, _name, _module, SUMMARIES[_name])


def main() -> None:
    app()
