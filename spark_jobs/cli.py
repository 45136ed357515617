"""`tidemark spark <job>`: one command per job. A job's libraries are loaded when its command is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from tidemark.analysis import cli as analysis
from tidemark.analysis.errors import JobError

SUMMARIES: dict[str, str] = {
    "telemetry-aggregation": "Backlogs, rates, 429 share, RU per record, lag, scale actions and cost by minute, hour, day.",
    "sampling-report": "What Application Insights sampled, what it lost, and on which day that began.",
    "reconciliation": "Which events of the hub are neither in Cosmos DB nor dead letters. Exit status 3 if any.",
    "backtest": analysis.SUMMARIES["backtest"],
    "advise": analysis.SUMMARIES["advise"],
    "cost": analysis.SUMMARIES["cost"],
    "seasons": analysis.SUMMARIES["seasons"],
    "backfill": "Capture files into Cosmos DB through the consumer's sink, at a global rate, resumable.",
}

JOBS = {name: f"spark_jobs.{name.replace('-', '_')}.job" for name in SUMMARIES}
"""Command to module. A module has `command`, a typer function whose docstring is the help."""

app = typer.Typer(
    name="spark",
    help="Reports, checks and replays over telemetry and captured events, with Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def mount(parent: typer.Typer) -> None:
    """Adds `spark`, and what needs its libraries but no session, to the `tidemark` command."""
    parent.add_typer(app)
    local = "spark_jobs.telemetry_aggregation.local"
    analysis.add(
        parent,
        "telemetry-aggregation",
        local,
        SUMMARIES["telemetry-aggregation"],
        extra="spark",
        shown=_shown,
    )
    summary = "What the runs of a job read, counted and left out, by its output folder."
    analysis.add(parent, "runs", "spark_jobs.reports.runs", summary, extra="spark", shown=_shown)


def run_command(
    command: Callable[..., Any], argv: Sequence[str] | None = None, *, name: str | None = None
) -> None:
    """Runs one job's command as a program and ends it: for `python -m spark_jobs.<job>.job` and spark-submit.

    A JobError becomes one line on stderr and exit status 1, also where a task of Spark raised it.
    """
    analysis.run_command(command, argv, name=name, shown=_shown)


def _shown(error: Exception) -> JobError | None:
    """The error of a task that Spark's exception carries; None where there is none."""
    if "pyspark" not in sys.modules:  # some commands do without, and start faster so
        return None
    from spark_jobs.platform.failures import input_error_of  # noqa: PLC0415 - the extra `spark`

    return input_error_of(error)


for _name, _module in JOBS.items():
    analysis.add(app, _name, _module, SUMMARIES[_name], extra="spark", shown=_shown)


def main() -> None:
    app()
