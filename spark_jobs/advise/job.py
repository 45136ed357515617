"""`tidemark spark advise`: the advice over many targets, with the figures of `tidemark advise`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import typer
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import cli
from spark_jobs.advise.tasks import Done, Task, work
from spark_jobs.frame import AppJobOptions, Arrivals, Log, finish
from spark_jobs.per_target import HistorySettings, recorded, replay, workers_of
from spark_jobs.schemas import row_schema
from spark_jobs.tables.results import Results
from tidemark.analysis.advise import local, page
from tidemark.analysis.advise.answered import LIMITED, Answer, answer, counts, flat
from tidemark.analysis.advise.options import AdviceOptions
from tidemark.analysis.advise.question import Options
from tidemark.analysis.backtest.candidates.grid import Targets
from tidemark.analysis.options import CONFIG, Config, with_groups
from tidemark.analysis.report import Report

NAME = "advise"

ADVICE = row_schema("""
    target text, policy text, instance_hours double, late double, longest double, slow double,
    actions_per_hour double, flaps_per_hour double, score double, money double, best_trade_off flag, recommended flag
""")
"""One row per target and policy. `late` is a share, `longest` and `slow` (99 %) are seconds, null where not served."""

TAKEN = row_schema("target text, policy text, why text, toml text")
"""What to take for each target; `policy` is null where none keeps the objective, `toml` empty there and where today's policy stays."""

BLOCKS = 14
"""Most tasks a target is cut into: about as many as there are policies."""


@dataclass(frozen=True, kw_only=True)
class Settings(HistorySettings):
    """`options` say of all targets what their histories and policies do not."""

    options: Options


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. Raises InputError; CheckFailedError, when all is written, where more
    was found than is allowed.
    """
    targets = local.read_targets(settings.config, settings.app_settings or os.environ)
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    with recorded(spark, settings) as history:
        find = partial(_answers, spark, history.histories, options=settings.options, targets=targets)
        answers = find(history.names, drawn=len(history.names) <= page.DRAWN)
        rows = [row for advised in answers for row in flat(advised)]
        results.write("advice", spark.createDataFrame(rows, ADVICE))
        taken = [(a.question.target.name, a.choice.taken, a.choice.why, a.toml) for a in answers]
        results.write("taken", spark.createDataFrame(taken, TAKEN))

        def make_page() -> Report:
            """Of many targets, those that are drawn are replayed once more, with lines over time."""
            if len(answers) <= page.DRAWN:
                return page.report_of(answers)
            most = [drawn.question.target.name for drawn in page.drawn(answers)]
            again = dict(zip(most, find(most, drawn=True), strict=True))
            return page.report_of([again.get(drawn.question.target.name, drawn) for drawn in answers])

        return finish(
            spark,
            results,
            settings,
            make_page,
            rows=[history.rows],
            inputs=settings.inputs,
            counts=counts(answers),
            limited=LIMITED,
            asked={"config": settings.config},
        )


def _answers(
    spark: SparkSession,
    histories: DataFrame,
    names: Sequence[str],
    *,
    options: Options,
    targets: Targets | None,
    drawn: bool,
) -> list[Answer]:
    """The answers of some targets, in their order; with lines over time where these are to be `drawn`. Raises InputError with
    the problems of all of them.
    """
    blocks = min(max(-(-4 * workers_of(spark) // len(names)), 1), BLOCKS)
    tasks: list[tuple[str, Task]] = []
    for name in names:
        spec = local.spec_of(name, targets)
        metric = local.metric_for(spec, options)
        tasks += [(name, Task(options, spec, metric, block, blocks, drawn)) for block in range(blocks)]
    done = replay(spark, histories, tasks, work, Done, f"replaying {len(names)} targets")
    answers = []
    for number, name in enumerate(names):
        of_target = done[number * blocks : (number + 1) * blocks]
        rows = {place: row for block in of_target for place, row in block.rows.items()}
        ordered = [rows[place] for place in sorted(rows)]
        answers.append(answer(of_target[0].question, options, ordered, local.table_of(name, targets)))
    return answers


@with_groups
def command(
    *,
    arrivals: Arrivals = None,
    log: Log = None,
    load: AdviceOptions,
    config: Config = CONFIG,
    job: AppJobOptions,
) -> None:
    """What today's policies, Azure Monitor autoscale, KEDA and service_level would have made of recorded load.

    Over all targets of the history; for one of them `tidemark advise` does the same without Spark. Writes the tables advice
    and taken, and a report.
    """
    options = load.read()
    settings = Settings(options=options, config=config, arrivals=arrivals, log=log, **job.read(NAME, LIMITED))
    typer.echo(run(job.session(NAME), settings))


if __name__ == "__main__":
    cli.run_command(command)
