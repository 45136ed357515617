"""Reads the four sides of a reconciliation, in the order in which nothing that moves meanwhile looks lost.

1. checkpoints: what they call settled was settled before anything else is read;
2. events of the hub;
3. parked events and then dead letters: what is written or replayed meanwhile was among them when it was read here,
4. and documents last: by then it may be a document, too, which is looked at with that in mind.

Each side is written before the next is read, so the judgement is made of what was seen. Dead letters and documents are tables of
the results. What tasks pack for each other is in work files, which no table names.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

import msgspec
from msgspec import Struct, structs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from consumer.definition.model import HubDefinition
from consumer.model import NOTHING_SETTLED, Checkpoint
from consumer.running.assembly import Parts
from spark_jobs.platform.consumer_hub import cosmos_options, for_executors
from spark_jobs.platform.progress import watch
from spark_jobs.platform.rows import RowAccount, between, collected
from spark_jobs.platform.source_options import SETTINGS
from spark_jobs.reconciliation.buckets import CHUNKS
from spark_jobs.reconciliation.ends import begin_of, partition_ends, refuse_between
from spark_jobs.reconciliation.keys import META_FIELDS, EventKeys, PositionIds, document_keys, identity_of
from spark_jobs.reconciliation.schemas import DEAD_LETTERS, Identity
from spark_jobs.reconciliation.transforms import (
    CLOCK_SKEW,
    distinct_events,
    packed_positions,
    packing,
    positions,
)
from spark_jobs.schemas import row_schema
from spark_jobs.sources.capture.capture import TaskTransform
from spark_jobs.sources.cosmos import keys_and_ttl, read_documents
from spark_jobs.sources.dead_letters import read_dead_letters
from spark_jobs.sources.incarnations import (
    load_checkpoints,
    newer_hubs,
    place_in,
    refuse_former,
    refuse_other_hub,
)
from spark_jobs.tables.places import local_folder
from spark_jobs.tables.plain import read_parquet, write_parquet
from spark_jobs.tables.results import Results
from tidemark.analysis.errors import InputError, JobError

WORK = ".work"
"""The folder of work files, below that of the results."""
_SHOWN = 5  # hubs in an error message
_LAST_NUMBER = 2**63 - 1  # the service counts events in 64 bits with a sign


class Sides(Struct, frozen=True):
    """What was read. `checkpoints` is by partition; None where checkpoints were not asked for."""

    events: DataFrame
    ends: Sequence[Row]
    """ENDS, in the order of partitions."""
    documents: DataFrame | None
    """None where `known` has all of them: ids are made of positions."""
    known: DataFrame
    """`positions` of documents and dead letters."""
    checkpoints: Mapping[str, Checkpoint] | None
    identity: Identity
    expires: bool
    """Whether documents may have a time to live."""
    former: Sequence[str] = ()
    """Partitions of which there are events of a hub before the one of the checkpoints: nobody consumes these any more."""


def read_checkpoints(hub: HubDefinition) -> dict[str, Checkpoint]:
    """Raises JobError for a store that does not answer, and for a checkpoint that cannot be read."""
    stored = load_checkpoints(hub.config, hub.settings)
    unread = [f"partition {partition}: {why}" for partition, why in stored.items() if isinstance(why, str)]
    if unread:
        raise JobError(f"checkpoints that cannot be read: {'; '.join(unread)}")
    return {
        partition: checkpoint
        for partition, checkpoint in stored.items()
        if isinstance(checkpoint, Checkpoint)
    }


def settled_runs(checkpoints: Mapping[str, Checkpoint]) -> list[tuple[str, int, int]]:
    """What checkpoints call settled, as partition, first and last number of runs that do not touch: each partition's first
    run ends with its low-water mark.
    """
    runs = []
    for partition, checkpoint in sorted(checkpoints.items()):
        runs.append((partition, NOTHING_SETTLED, checkpoint.sequence_number))
        runs += [(partition, first, last) for first, last in checkpoint.beyond]
    return runs


def due_runs(sides: Sides) -> list[tuple[str, int, int]]:
    """As `settled_runs`, and all of a hub that is gone: nobody consumes it any more, so what is not there now is lost."""
    gone = [(partition, NOTHING_SETTLED, _LAST_NUMBER) for partition in sides.former]
    return [*settled_runs(sides.checkpoints or {}), *gone]


def extract(
    spark: SparkSession,
    read: Callable[..., DataFrame],
    hub: HubDefinition,
    results: Results,
    *,
    checkpoints: bool,
    request_units: float | None,
    since: datetime | None = None,
    until: datetime | None = None,
    created_at: float = 0.0,
) -> Sides:
    """Reads all sides, within `work_files`; dead letters and documents become tables of the `results`. `read` gives the hub's events,
    or what tasks make of them, in a container of this defaultTtl; those from `since` on and before `until` are looked at. Where
    `read` gives those of the hub itself, it is the one that was `created_at`, epoch seconds.
    """
    stored = read_checkpoints(hub) if checkpoints else None
    # Also where they settle nothing: keys of documents and letters say since when a hub created anew is there.
    known_hubs = load_checkpoints(hub.config, hub.settings) if stored is None else stored
    refuse_other_hub(created_at, known_hubs)
    newer = newer_hubs(known_hubs)
    needed = for_executors(hub)
    source = _cosmos_source(hub, needed, request_units)
    paths, default_ttl = keys_and_ttl(source)
    with watch(spark, "reading the hub's events"):
        in_tasks = structs.replace(hub, settings=needed)
        keys = EventKeys(in_tasks, paths, since, until, packing(), newer, default_ttl)
        account = RowAccount("the hub's events")
        chunks = account.without(
            read(TaskTransform(keys, row_schema(CHUNKS)), default_ttl), {}, rows=F.col("events")
        )
        events = _packed(results, distinct_events(chunks), "events")
        ends = collected(partition_ends(events).orderBy("partition"))
        account.check(**{name: sum(row[name] for row in ends) for name in ("events", "copies")})
        begin = begin_of(ends)
        refuse_former({row["partition"]: row["earliest"] for row in ends}, known_hubs)
        if not ends:
            _check_hub(between(read(None), "enqueued_at", since, until), hub.config.hub)
    with watch(spark, "reading the dead letters"):
        # Letters of other partitions are of no event that is looked at.
        partitions = [row["partition"] for row in ends]
        dead_letters = read_dead_letters(spark, hub, partitions, parked=True)
        results.write("dead-letters", dead_letters.select(*DEAD_LETTERS.fieldNames()))
        dead_letters = results.table("dead-letters")
    with watch(spark, "reading the documents"):
        if begin is not None:
            source["modifiedSince"] = str(max((begin - CLOCK_SKEW).timestamp(), 1.0))
        documents, chunks = _documents(read_documents(spark, source), hub, results)
        known = _packed(results, positions(chunks, dead_letters), "positions")
        if documents is None:  # keys made of positions name the hub
            refuse_between(ends, known)
    placed = stored and {place_in(name, newer): checkpoint for name, checkpoint in stored.items()}
    former = [partition for partition in newer if partition in partitions]
    return Sides(events, ends, documents, known, placed, identity_of(hub), default_ttl is not None, former)


def _documents(frame: DataFrame, hub: HubDefinition, results: Results) -> tuple[DataFrame | None, DataFrame]:
    """Those of `Sides`, and their CHUNKS."""
    if identity_of(hub) is Identity.POSITION:
        work = PositionIds(hub.config.hub, packing())
        return None, frame.select("id").mapInArrow(work, row_schema(CHUNKS))
    results.write("documents", document_keys(frame, Parts(hub.config, hub.settings).stream.topic))
    documents = results.table("documents")
    return documents, packed_positions(documents)


def _cosmos_source(
    hub: HubDefinition, settings: Mapping[str, str], request_units: float | None
) -> dict[str, str]:
    where = cosmos_options(hub)
    options = {
        SETTINGS: msgspec.json.encode(dict(settings)).decode(),
        "connection": where.connection,
        "database": where.database,
        "container": where.container,
    }
    if identity_of(hub) is Identity.META:
        options["fields"] = META_FIELDS
    if request_units is not None:
        options["ruPerSecond"] = str(request_units)
    return options


def _check_hub(events: DataFrame, hub: str) -> None:
    """A folder that holds only other hubs is a mistake, not an empty hub. Raises InputError."""
    others = sorted(f"'{row['hub']}'" for row in collected(events.select("hub").distinct()))
    if others:
        raise InputError(f"EVENTHUB_NAME is '{hub}', the events are of {', '.join(others[:_SHOWN])}")


def _packed(results: Results, frame: DataFrame, name: str) -> DataFrame:
    path = f"{results.folder}/{WORK}/{name}"
    write_parquet(frame, path)
    return read_parquet(results.spark, [path], frame.schema)


@contextmanager
def work_files(results: Results) -> Iterator[None]:
    """Around all that reads the sides. A folder of this machine loses the work files; elsewhere, where Spark has no public way to
    delete, the next run writes over them.
    """
    try:
        yield
    finally:
        if (folder := local_folder(results.spark, results.folder)) is not None:
            shutil.rmtree(folder / WORK, ignore_errors=True)
