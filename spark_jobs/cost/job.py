"""`tidemark spark cost`: the costs of many targets, with the figures of `tidemark cost`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType
from typer import Option

from spark_jobs import cli
from spark_jobs.cost.tasks import ACCOUNTS, CHARGES, SEEN, SOURCED, account_of, accounts_in, charges_in
from spark_jobs.frame import AppJobOptions, JobSettings, finish
from spark_jobs.per_target import small_batches
from spark_jobs.platform.failures import input_errors
from spark_jobs.platform.progress import watch
from spark_jobs.platform.rows import OUTSIDE, RowAccount, cached, collected, first_of, outside
from spark_jobs.schemas import row_schema
from spark_jobs.sources.files.spark_files import list_files, open_files
from spark_jobs.sources.records.telemetry import read_decisions
from spark_jobs.tables.results import Results
from tidemark.analysis.advise.local import read_targets
from tidemark.analysis.cost import local, page, tables
from tidemark.analysis.cost.account import Account, Billed, totals
from tidemark.analysis.cost.charges import MANIFEST, check_once, newest_runs, run_of, sources_of
from tidemark.analysis.cost.local import LIMITED, check_names, one_currency
from tidemark.analysis.cost.targets import Options, billed_targets, resources_of
from tidemark.analysis.errors import InputError
from tidemark.analysis.input_files import TABLE_ENDINGS
from tidemark.analysis.limits import RowCount
from tidemark.analysis.options import CONFIG, with_groups
from tidemark.analysis.report import Report

NAME = "cost"

DAY = 86_400
MICROS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """Paths: `config` is read by the driver, `costs` and `log` by Spark."""

    costs: str
    log: str
    options: Options
    config: Path = CONFIG


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. Raises InputError; CheckFailedError, when all is written, where more
    was found than is allowed.
    """
    known = os.environ if settings.app_settings is None else settings.app_settings
    targets = read_targets(settings.config, known)
    billed = billed_targets(targets, known, settings.options)
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    charges = read_charges(spark, settings.costs, resources_of(billed), settings.options.amount)
    with input_errors(), small_batches(spark), cached(charges):
        with watch(spark, "reading the exports"):
            newest = F.max("day").alias("last"), F.count("*").alias("rows")
            rows = collected(charges.groupBy("resource").agg(*newest, F.collect_set("currency").alias("in")))
        one_currency({currency for row in rows for currency in row["in"]})
        check_once(_told_twice(charges))
        account = RowAccount("--log")
        together = _by_target(spark, read_log(spark, settings, account), charges, billed)
        last = max((row["last"] for row in rows), default=None)
        work = partial(accounts_in, billed=billed, options=settings.options, last_day=last)
        with cached(together.mapInArrow(work, from_arrow_schema(ACCOUNTS))) as accounts:
            owners = Counter(target.resource for target in billed.values())
            owned = sum(row["rows"] * owners[row["resource"]] for row in rows)
            configured = frozenset(() if targets is None else targets.names)
            return load(spark, results, settings, accounts, account, owned, configured)


def read_charges(spark: SparkSession, path: str, wanted: frozenset[str], amount: str | None) -> DataFrame:
    """SOURCED of the files that count. Raises InputError where there are none."""
    try:
        frame = list_files(spark, path, (*TABLE_ENDINGS, MANIFEST))
    except InputError as error:
        raise InputError(f"--costs {error}") from error
    is_table = reduce(or_, (F.lower("path").endswith(ending) for ending in TABLE_ENDINGS))
    files = frame.where(is_table)
    known = collected(files.select("path", F.unix_micros("modificationTime").alias("at")))
    manifest = frame.where(F.col("path").endswith(f"/{MANIFEST}"))
    rows = collected(open_files(manifest)) if len(known) > 1 else []
    if not known:
        raise InputError(f"--costs {path} holds no files that end in {' or '.join(TABLE_ENDINGS)}")
    manifests = ((row["path"].rpartition("/")[0], run_of(bytes(row["content"]))) for row in rows)
    runs = {folder: run for folder, run in manifests if run is not None}
    times = {row["path"]: row["at"] / MICROS for row in known}
    times |= {name: runs[folder].at for name in times if (folder := name.rpartition("/")[0]) in runs}
    counts = newest_runs(times.items())
    sources = sources_of(counts, runs)
    work = partial(charges_in, wanted=wanted, amount=amount, sources=sources)
    if len(counts) < len(known):
        files = files.where(F.col("path").isin(counts))
    return open_files(files).mapInArrow(work, row_schema(SOURCED))


def _told_twice(charges: DataFrame) -> tuple[str, int, str, str] | None:
    """A resource and a day for which two sources have charges, and the sources."""
    ends = F.min("source").alias("one"), F.max("source").alias("other")
    row = first_of(
        charges.groupBy("resource", "day").agg(*ends).where("one != other").orderBy("resource", "day")
    )
    return None if row is None else (row["resource"], row["day"], row["one"], row["other"])


def read_log(spark: SparkSession, settings: Settings, account: RowAccount) -> DataFrame:
    """The target, and SEEN, of the scaling log in the time asked for; `account` counts the entries."""
    entries = read_decisions(
        spark,
        settings.log,
        quarantine=settings.quarantine,
        settings=settings.app_settings,
        since=settings.since,
        until=settings.until,
    )
    used, wish = settings.options.used, F.col("desired") != F.col("current")
    within = account.without(entries, {OUTSIDE: outside(F.col("at"), settings.since, settings.until)})
    return within.select(
        "target",
        (F.unix_micros("at") / 1_000_000).alias("at"),
        *("kind", "current", "desired", "outcome", "reached"),
        F.when(wish, F.col("reason")).otherwise("").alias("reason"),
        F.when(wish, F.col("line")).otherwise("").alias("line"),
        "shadow",
        (F.lit(None).cast("double") if used is None else F.col("metrics")[used]).alias("used"),
    )


def _by_target(
    spark: SparkSession, log: DataFrame, charges: DataFrame, billed: Mapping[str, Billed]
) -> DataFrame:
    """Rows of a target and a day, with the day's log or charges; a target's rows are one task's."""
    seen, charge = row_schema(SEEN), row_schema(CHARGES)
    owners = [(name, target.resource) for name, target in billed.items() if target.resource]
    owned = spark.createDataFrame(owners, "target string, resource string")
    of_log = log.groupBy("target", F.floor(F.col("at") / DAY).alias("day")).agg(
        F.collect_list(F.struct(*seen.fieldNames())).alias("seen"),
        F.lit(None).cast(ArrayType(charge)).alias("charges"),
    )
    of_bill = (
        charges.join(F.broadcast(owned), on="resource", how="inner")
        .groupBy("target", "day")
        .agg(
            F.lit(None).cast(ArrayType(seen)).alias("seen"),
            F.collect_list(F.struct(*charge.fieldNames())).alias("charges"),
        )
    )
    both = of_log.unionByName(of_bill).select("target", "day", "seen", "charges")
    return both.repartition("target").sortWithinPartitions("target", "day")


def load(
    spark: SparkSession,
    results: Results,
    settings: Settings,
    frame: DataFrame,
    account: RowAccount,
    charges: int,
    configured: frozenset[str],
) -> str:
    """Writes the tables and the report; returns the report's path. `charges` are those of all targets, a resource's once for
    each target that it is. Raises JobError where not all of the log and of the charges is in an account, and InputError, before
    anything is written, for an option about a target that is neither `configured` nor in the log.
    """
    with watch(spark, "joining bills and capacities"):
        rows_found = collected(frame.select("target", "account", "entries", "charges").orderBy("target"))
    rows = [row for row in rows_found if row["account"] is not None]
    entries = account.check(joined=sum(row["entries"] for row in rows_found))
    if not rows:
        raise InputError(
            f"--log {settings.log} has no capacity in the time asked for; a scaling log is accepted"
        )
    accounts = [account_of(bytes(row["account"])) for row in rows]
    check_names(settings.options, configured.union(costs.billed.target for costs in accounts))
    with watch(spark, f"writing {settings.output}"):
        for name in tables.ALL:
            results.write(name, frame.select(F.explode(name).alias("row")).select("row.*"))
    return finish(
        spark,
        results,
        settings,
        partial(_page, frame, accounts),
        rows=[entries, RowCount("--costs", charges, {"joined": sum(row["charges"] for row in rows_found)})],
        inputs={"costs": settings.costs, "log": settings.log},
        counts=totals(accounts),
        limited=LIMITED,
        asked={"config": settings.config},
    )


def _page(frame: DataFrame, accounts: Sequence[Account]) -> Report:
    drawn = frame.where(F.col("target").isin(page.most(accounts))).select("target", "whole")
    whole = {row["target"]: account_of(bytes(row["whole"])) for row in collected(drawn)}
    return page.report_of([whole.get(account.billed.target, account) for account in accounts])


@with_groups
def command(
    *,
    costs: Annotated[str, Option(help=local.EXPORTS)],
    log: Annotated[str, Option(help="Scaling log: folder of JSON lines, or table://<connection>.")],
    bill: local.CostOptions,
    config: local.Config = CONFIG,
    job: AppJobOptions,
) -> None:
    """What Azure billed, joined with the scaling log: money by target and by change, against a static peak and the shadow.

    For request units also what autoscale would have cost, hour by hour. Writes the tables targets, days, hours and changes, and
    a report. For the log of one machine `tidemark cost` does the same without Spark.
    """
    given = job.read(NAME, LIMITED)
    settings = Settings(costs=costs, log=log, options=bill.read(), config=config, **given)
    typer.echo(run(job.session(NAME), settings))


if __name__ == "__main__":
    cli.run_command(command)
