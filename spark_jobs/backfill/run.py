"""The backfill itself: what is selected, what is settled already, and the tasks that write the rest."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from uuid import uuid4

from msgspec import Struct, structs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from consumer.config import ConsumerConfig
from consumer.definition.model import HubDefinition
from consumer.formats import DecoderName, JsonOptions
from consumer.model import Checkpoint
from consumer.options import WritingTexts
from consumer.sinks.cosmos.bulk import WriteMode
from spark_jobs.backfill.budget.coordinator import Coordinator
from spark_jobs.backfill.budget.membership import sharing
from spark_jobs.backfill.budget.progress import NUMBERS, Counts
from spark_jobs.backfill.budget.shares import Shares
from spark_jobs.backfill.replay import Replaying, Unit
from spark_jobs.backfill.report import Backfilled, PartitionPlan
from spark_jobs.backfill.target import container_id, open_checkpoints
from spark_jobs.backfill.task import RESULT, replay_partition
from spark_jobs.backfill.transforms import (
    POSITION,
    Selection,
    begins_again,
    hours,
    in_order,
    of_hub,
    only_missing,
    plan,
)
from spark_jobs.backfill.view import showing
from spark_jobs.platform.classic import SPARK_ERRORS, is_classic
from spark_jobs.platform.consumer_hub import (
    FACTS,
    MADE_BY,
    code_facts,
    cosmos_options,
    for_executors,
    run_facts,
)
from spark_jobs.platform.failures import reason_of
from spark_jobs.platform.progress import watch
from spark_jobs.platform.rows import collected
from spark_jobs.sources.incarnations import Newer, load_checkpoints, newer_hubs, refuse_former
from spark_jobs.tables.merging import read_parquet_or_delta
from spark_jobs.tables.places import has
from spark_jobs.tables.results import last_run, result_table, runs_of
from tidemark.analysis.errors import InputError, JobError
from tidemark.analysis.limits import RowCount, check_sum
from tidemark.foundation.errors import TidemarkError

CHECKPOINT_WITHIN = 30.0
WRITTEN = "what was written stays, and is skipped by the next run"


class BackfillSettings(Struct, frozen=True):
    """How to write them. Exactly one of the budgets is set."""

    mode: WriteMode = "create"
    ru_per_second: float | None = None
    records_per_second: int | None = None
    again: bool = False
    """Forget what earlier runs have settled."""
    coordinator_port: int = 0
    """0 takes a free one."""

    @property
    def unit(self) -> Unit:
        return "records" if self.records_per_second is not None else "request_units"

    def shares(self) -> Shares:
        """Raises InputError for budgets that are none."""
        given = [rate for rate in (self.ru_per_second, self.records_per_second) if rate is not None]
        if len(given) != 1:
            raise InputError("give exactly one of --ru-per-second and --records-per-second")
        try:
            return Shares(given[0], whole=self.unit == "records")
        except ValueError as error:
            option = "--ru-per-second" if self.ru_per_second is not None else "--records-per-second"
            raise InputError(f"{option}: {error}") from None


def backfill(
    captured: DataFrame,
    selection: Selection,
    settings: BackfillSettings,
    hub: HubDefinition,
    *,
    positions: DataFrame | None = None,
) -> Backfilled | None:
    """Replays what is selected of EVENTS and returns when all of it is settled; None when nothing is missing.

    `hub` is as `read_target` gives it. `positions` are the same events without their bodies (hub,
    partition, sequence_number, enqueued_at), where reading those is cheaper. Raises InputError for what cannot be
    replayed, and JobError when a task failed for good: what was settled until then is saved, and the same call goes on
    from there.
    """
    shares, config = settings.shares(), hub.config
    spark = captured.sparkSession
    _check_session(spark)
    missing = None if selection.only_missing is None else _missing(spark, selection.only_missing, hub)
    if missing is not None and missing.isEmpty():
        return None
    container = asyncio.run(container_id(hub))
    known_hubs = load_checkpoints(config, hub.settings)
    newer = newer_hubs(known_hubs)
    places = captured if positions is None else positions
    planned, absent = _plan(places, selection, config.hub, missing, newer)
    refuse_former({row["partition"]: row["first_enqueued_at"] for row in planned}, known_hubs)
    finding = "" if missing is None else _finding(spark, selection.only_missing or "")
    checkpoint_groups = _checkpoint_groups(container, hub, settings, planned, finding)
    if settings.again:
        asyncio.run(_forget(config, hub.settings, checkpoint_groups))
    plans = [
        PartitionPlan(**{name: row[name] for name in PartitionPlan.__struct_fields__}) for row in planned
    ]
    host, bind = _addresses(spark)
    with (
        Coordinator(shares, host=host, bind=bind, port=settings.coordinator_port) as coordinator,
        _sharing(shares, settings.unit, config, hub.settings, coordinator.lock),
    ):
        replaying = Replaying(
            structs.replace(hub, settings=for_executors(hub)),
            settings.mode,
            settings.unit,
            checkpoint_groups,
            coordinator.address,
        )
        chosen = _choose(captured, selection, config.hub, missing, newer)
        counts = _replay(chosen, plans, replaying, coordinator)
        history = tuple(coordinator.progress.history)
    options = cosmos_options(hub)
    target = f"{options.database}/{options.container}"
    totals = (shares.budget, plans, counts, history, absent, selection.is_bounded)
    return Backfilled(config.hub, target, settings.mode, settings.unit, *totals)


def _sharing(
    shares: Shares, unit: Unit, config: ConsumerConfig, environment: Mapping[str, str], lock: threading.Lock
) -> AbstractContextManager[object]:
    """Request units are shared with the consumer that writes to the same container; records are not."""
    if unit == "records":
        return nullcontext()
    return sharing(f"backfill~{uuid4().hex[:8]}", config, environment, shares, lock)


def _check_session(spark: SparkSession) -> None:
    """Raises InputError for a session whose tasks could not keep to the rate, or would end one another."""
    if spark.conf.get("spark.speculation", "false") == "true":
        raise InputError(
            "spark.speculation is true; accepted: false, for a second attempt at a partition would end the first"
        )
    if not is_classic(spark):
        raise InputError(
            "the tasks of a backfill ask this program for their share of the rate, which executors cannot reach over Spark"
            " Connect (serverless compute, standard access mode); accepted: a session of spark-submit, local mode or"
            " dedicated access mode"
        )


def _plan(
    positions: DataFrame, selection: Selection, hub: str, missing: DataFrame | None, newer: Newer
) -> tuple[list[Row], int]:
    """Rows of PLAN, and how many of the missing events there are not. Raises InputError when nothing is selected."""
    with watch(positions.sparkSession, "looking through the captured events"):
        places = _choose(positions, selection, hub, missing, newer)
        planned = collected(plan(places).sort("partition"))
        again = begins_again(collected(hours(places)))
        absent = 0
        if missing is not None:
            position = list(POSITION[1:])
            absent = missing.join(places.select(*position), on=position, how="left_anti").count()
    if not planned:
        raise _nothing(positions, hub)
    if again is not None:
        raise InputError(
            f"the capture files hold events of two hubs named '{hub}': in partition {again['partition']} the numbers begin"
            f" anew, and {again['lowest']} comes once more at {again['hour']:%Y-%m-%dT%H}h UTC. The consumer's checkpoints do not"
            " say since when the newer hub is there; accepted: events of one hub, by --from and --to (the newer one began in that hour, or in one of the two before it), or"
            " checkpoints of the newer one (CONSUMER_ON_FOREIGN_CHECKPOINT, 'tidemark checkpoints set')"
        )
    return planned, absent


def _choose(
    captured: DataFrame, selection: Selection, hub: str, missing: DataFrame | None, newer: Newer
) -> DataFrame:
    chosen = of_hub(captured, hub, selection, newer)
    return chosen if missing is None else only_missing(chosen, missing)


def _addresses(spark: SparkSession) -> tuple[str, str]:
    """By which name executors reach the driver, and which address it listens at: as Spark itself does."""
    host = spark.conf.get("spark.driver.host", None) or "127.0.0.1"
    return host, spark.conf.get("spark.driver.bindAddress", None) or host


def _replay(
    chosen: DataFrame, plans: Sequence[PartitionPlan], replaying: Replaying, coordinator: Coordinator
) -> dict[str, Counts]:
    total = sum(plan.events for plan in plans)
    tasks = in_order(chosen, [plan.partition for plan in plans])
    try:
        with showing(coordinator, total):
            rows = collected(tasks.mapInArrow(partial(replay_partition, replaying=replaying), RESULT))
    except SPARK_ERRORS as error:
        settled = coordinator.progress.history[-1].total.settled
        raise JobError(
            f"a task failed: {reason_of(error)}. {settled:,} of {total:,} events are settled; the same command goes on"
            " from there"
        ) from error
    counts = {row["partition"]: Counts(**{name: row[name] for name in NUMBERS}) for row in rows}
    for row_count in settled_rows(plans, counts):
        check_sum(*row_count)
    return counts


def settled_rows(plans: Sequence[PartitionPlan], counts: Mapping[str, Counts]) -> list[RowCount]:
    """By partition, what became of the selected events: none may be in no count."""
    rows = []
    for chosen in plans:
        settled = counts.get(chosen.partition, Counts())
        parts = {
            "settled": settled.settled - settled.skipped,
            "settled before": settled.skipped,
        }
        rows.append(RowCount(f"partition {chosen.partition}", chosen.events, parts, WRITTEN))
    return rows


def _missing(spark: SparkSession, path: str, hub: HubDefinition) -> DataFrame:
    try:
        frame = missing_table(spark, path, run_facts(hub))
    except InputError as error:
        raise InputError(f"--only-missing {error}") from None
    lacking = [name for name in POSITION[1:] if name not in frame.columns]
    if lacking:
        raise InputError(
            f"--only-missing {path} lacks the columns {', '.join(lacking)}; found: {', '.join(frame.columns)}"
        )
    name = hub.config.hub
    named = frame if "hub" in frame.columns else frame.withColumn("hub", F.lit(name))
    return of_hub(named.select(*POSITION).distinct(), name)


def _finding(spark: SparkSession, path: str) -> str:
    """Distinguishes the runs that list missing events: what a later one lists, whatever was settled before is not there now."""
    run = last_run(spark, _folder_of(path)[0])
    return "" if run is None else f"/{run.run}/{run.key}"


def _folder_of(path: str) -> tuple[str, str]:
    """The folder of a table, and the table's name."""
    folder, _, name = path.rstrip("/").rpartition("/")
    return folder or ("/" if path.startswith("/") else "."), name


def missing_table(spark: SparkSession, path: str, facts: Mapping[str, str]) -> DataFrame:
    """A table by its path: `<output>/<table>` of the last finished run of a job, or one of somebody else's. `facts` are `run_facts` of
    the hub that is written.

    Raises InputError for one that is not there, that is of another hub or container, that was made by other settings, or that no
    finished run vouches for.
    """
    folder, name = _folder_of(path)
    runs = runs_of(spark, folder)
    if runs is None:  # a table of somebody else's, or of a job that could write no Delta
        exported = f"parquet/{name}"
        return read_parquet_or_delta(spark, f"{folder}/{exported}" if has(spark, folder, exported) else path)
    about = runs[-1].about if runs else {}
    for fact, (is_of, same) in FACTS.items():
        stored = about.get(fact, facts[fact])  # of a version that did not note it
        if same(stored) != same(facts[fact]):
            raise InputError(f"{path} is of the {is_of} '{stored}', and this backfill of '{facts[fact]}'")
    if changed := [
        what for fact, what in MADE_BY.items() if about.get(fact, facts.get(fact)) != facts.get(fact)
    ]:
        raise InputError(
            f"{path} lists what was missing by other settings than those of this backfill; changed since: {'; '.join(changed)}. By the present"
            " ones other events may be missing, and some of these may belong elsewhere or nowhere: run the reconciliation again"
        )
    return result_table(spark, folder, name)


def _nothing(captured: DataFrame, hub: str) -> InputError:
    hubs = sorted(row["hub"] for row in collected(captured.select("hub").distinct()))
    if not hubs:
        return InputError("the capture files hold no events")
    if hub.lower() not in {name.lower() for name in hubs}:
        return InputError(
            f"the capture files hold no events of the hub '{hub}' (EVENTHUB_NAME), but of: {', '.join(hubs)}"
        )
    return InputError(
        f"the capture files hold events of the hub '{hub}', but none that --from, --to, --partitions and"
        " --only-missing select"
    )


def _checkpoint_groups(
    container: str, hub: HubDefinition, settings: BackfillSettings, planned: Sequence[Row], finding: str
) -> dict[str, str]:
    """By partition, of rows of PLAN; see `_finding`."""
    return {
        row["partition"]: _checkpoint_group(
            container, hub, settings, f"{row['events']}/{row['digest']}{finding}"
        )
        for row in planned
    }


def _checkpoint_group(container: str, hub: HubDefinition, settings: BackfillSettings, events: str) -> str:
    """The name of a partition's checkpoints: another one for other events, another container, or other documents."""
    options, config = cosmos_options(hub), hub.config
    texts = {name: getattr(options, name) for name in WritingTexts.__struct_fields__}
    # Options of writing and of bodies are distinguished where there are any, so that a run of an older version is gone on with.
    writing = () if texts == structs.asdict(WritingTexts()) else (texts,)
    file = (config.policy.routes, hub.sinks[0].name) if hub.mapper is not None else ()
    bodies = (config.decoder, config.decode)
    reading = () if bodies == (DecoderName.JSON, JsonOptions()) else bodies
    code = code_facts(config)
    work = (
        *(container, settings.mode, options.id, config.transform, options.meta, events),
        *(*writing, *file, *reading, *((code,) if code else ())),
    )
    return hashlib.sha256(repr(work).encode()).hexdigest()[:16]


async def _forget(
    config: ConsumerConfig, environment: Mapping[str, str], checkpoint_groups: Mapping[str, str]
) -> None:
    deadline = asyncio.get_running_loop().time() + CHECKPOINT_WITHIN
    for partition, name in checkpoint_groups.items():
        checkpoints = open_checkpoints(config, environment, name)
        try:
            await checkpoints.put(Checkpoint(partition, -1, ""), deadline=deadline)
        except TidemarkError as error:
            raise JobError(f"--again: {error}") from error
        finally:
            await checkpoints.aclose()
