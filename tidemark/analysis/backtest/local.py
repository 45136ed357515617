"""`tidemark backtest`: the whole backtest on one machine, on all its cores, without Spark."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
from typer import Option

from scaling.config.policy import PolicySpec
from scaling.service import registry
from tidemark.analysis.backtest.analysis import (
    LIMITED,
    Analysis,
    Job,
    advice,
    analyse,
    counts,
    evaluations,
    for_all,
    plan_job,
    refused,
)
from tidemark.analysis.backtest.candidates.grid import Plan, Targets, read_grid
from tidemark.analysis.backtest.candidates.recommend import Verdict, choose, in_short
from tidemark.analysis.backtest.reading import Readings, merged, read_arrivals, read_log
from tidemark.analysis.backtest.replay.history import HistoryError
from tidemark.analysis.backtest.replay.score import Row, flat
from tidemark.analysis.backtest.work import Comparing, Comparison, Prepared, Replayer, compare, prepare
from tidemark.analysis.errors import InputError
from tidemark.analysis.input_files import text_of
from tidemark.analysis.limits import read_limits
from tidemark.analysis.options import CONFIG, Allow, Grid, Processes, RunningConfig
from tidemark.analysis.processes import run_all
from tidemark.analysis.results import finish
from tidemark.foundation.app_settings import read_beside
from tidemark.foundation.log.tables import FittedTable
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.settings_reader import ConfigError
from tidemark.foundation.wording import percent_text

console = Console()


def backtest(
    readings: Readings, plan: Plan, targets: Targets, *, processes: int
) -> tuple[Analysis, list[Row]]:
    """The backtest of all readings, with the rows it rests on (by target, in the order of the candidates). Raises InputError."""
    job = plan_job(plan, targets, readings)
    prepared = _prepared(readings, job)
    scorings = [(prepared[name], candidates) for name, candidates in job.scorings(prepared, processes)]
    try:
        rows = list(chain(*run_all(_score, scorings, processes, "replaying")))
        choices = choose(rows, late_budget=job.settings.rules.late_budget)
        comparings = [(prepared[name], both) for name, both in job.comparings(choices)]
        comparisons = run_all(_compare, comparings, processes, "comparing")
    except HistoryError as error:
        raise InputError(str(error)) from error
    evaluated = sum(evaluations(job, comparison) for comparison in comparisons)
    return analyse(job, choices, comparisons, for_all(job, choices), evaluated), rows


def _score(task: tuple[Prepared, list[tuple[str, PolicySpec]]]) -> list[Row]:
    prepared, candidates = task
    return Replayer(prepared).rows(candidates)


def _compare(task: tuple[Prepared, Comparing]) -> Comparison:
    prepared, both = task
    return compare(Replayer(prepared), both)


def _prepared(readings: Readings, job: Job) -> dict[str, Prepared]:
    """Raises InputError with the problems of all targets."""
    prepared: dict[str, Prepared] = {}
    problems: list[str] = []
    for target in sorted(readings):
        try:
            metric, interval = job.metric(target), job.interval(target)
            known = readings[target]
            prepared[target] = prepare(target, known, job.settings, metric=metric, interval=interval)
        except HistoryError as error:
            problems.append(str(error))
    if problems:
        raise refused(problems)
    return prepared


def command(
    grid: Grid,
    arrivals: Annotated[
        Path | None, Option(help="CSV (or folder) of t, arrivals and, for several targets, target.")
    ] = None,
    log: Annotated[
        Path | None, Option(help="Scaling log as JSON: backlogs and capacities. See `tidemark log --json`.")
    ] = None,
    output: Annotated[
        Path, Option("--output", file_okay=False, writable=True, help="Folder of report and scores.")
    ] = Path("backtest-output"),
    processes: Processes = None,
    config: RunningConfig = CONFIG,
    allow: Allow = None,
) -> None:
    """Replays recorded load against a grid of rules: late messages, cost, actions, and what to set.

    The decisions are made by the product's own code; a queueing model answers them. The last part of the history is
    held out: what is recommended is judged there against the running policy.
    """
    limits = read_limits(allow or (), LIMITED.keys() - {"quarantined"})
    plan, targets = read_settings(grid, config, os.environ)
    readings = _read(arrivals, log, plan)
    analysis, rows = backtest(readings, plan, targets, processes=processes or os.cpu_count() or 1)
    show(analysis)
    finish(
        analysis,
        output,
        {
            "scores": (map(flat, rows), None),
            "recommendations": (map(msgspec.structs.asdict, advice(analysis)), None),
        },
        "tidemark.analysis.backtest.page",
        counts=counts(analysis),
        limited=LIMITED,
        allow=limits,
        label="report",
    )


def read_settings(grid: Path, config: Path, settings: Any) -> tuple[Plan, Targets]:
    """The grid and the running policies. Raises InputError."""
    try:
        plan = read_grid(text_of(grid), name=grid.name)
        text = text_of(config)
        read = read_beside(config)
        return plan, Targets(text, name=config.name, settings=settings, plug_ins=registry, read=read)
    except ConfigError as error:
        raise InputError(str(error)) from error


def _read(arrivals: Path | None, log: Path | None, plan: Plan) -> Readings:
    if arrivals is None and log is None:
        raise InputError("no history: give --arrivals, --log or both")
    sources = [read_arrivals(arrivals)] if arrivals is not None else []
    if log is not None:
        sources.append(read_log(log, plan.rules.metric))
    return merged(*sources)


def show(analysis: Analysis) -> None:
    """The recommendations as a table on the terminal."""
    table = FittedTable("target", "recommended", "late", "now", "cost", "now", "held out")
    for line in advice(analysis):
        late = (percent_text(share, 2) for share in (line.late_share, line.late_share_running))
        cost = (f"{amount:,.2f}" for amount in (line.cost, line.cost_running))
        table.add_row(line.target, line.recommended, *late, *cost, in_short(Verdict(line.verdict)))
    console.print(table)
