"""`tidemark runs`: what the runs of a job read, counted and left out, from the table `runs` in its output folder. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from typing import Annotated

import msgspec
from typer import Argument, Option

from spark_jobs.sources.files.input_files import mounted
from spark_jobs.tables.runs import Run
from tidemark.analysis.errors import InputError, JobError
from tidemark.foundation.log.tables import FittedTable
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.version import install_hint

console = Console()

_SHOWN = ("run", "at", "inputs", "counts", "settings", "failures")


def runs_in(folder: str) -> list[Run]:
    """The runs that finished in the folder, the newest first. Raises InputError where there is none, JobError where the package
    is missing that reads them.
    """
    try:
        delta_log = import_module("spark_jobs.tables.delta_log")
    except ModuleNotFoundError:
        raise JobError(f"the table of runs needs the package deltalake: {install_hint('spark')}") from None
    runs: list[Run] | None = delta_log.read_runs(mounted(folder.rstrip("/") or "/"))
    if not runs:
        raise InputError(f"no run has finished in {folder}: it holds no table of runs, or one without a row")
    return runs[::-1]


def command(
    folder: Annotated[str, Argument(help="The --output of a job: a folder, or a URL such as abfss://...")],
    as_json: Annotated[bool, Option("--json", help="One JSON object per run.")] = False,
) -> None:
    """Runs that finished, the newest first: when, what they read and counted, and whether their check passed."""
    runs = runs_in(folder)
    if as_json:
        for run in runs:
            print(msgspec.json.encode({name: getattr(run, name) for name in _SHOWN}).decode())
        return
    table = FittedTable("run", "finished (UTC)", "check", "counts", "inputs", "settings", title=runs[0].job)
    for run in runs:
        check = "; ".join(run.failures) or "passed"
        counts = "\n".join(f"{name} {count:,.10g}" for name, count in run.counts.items())
        inputs, settings = (
            "\n".join(f"{name} {value}" for name, value in values.items())
            for values in (run.inputs, run.settings)
        )
        when = f"{datetime.fromtimestamp(run.at, UTC):%Y-%m-%d %H:%M:%S}"
        table.add_row(str(run.run), when, check, counts, inputs, settings)
    console.print(table, markup=False)
    names = ", ".join(sorted(runs[0].versions))
    console.print(f"tables of run {runs[0].run}: {names}", markup=False, soft_wrap=True)
