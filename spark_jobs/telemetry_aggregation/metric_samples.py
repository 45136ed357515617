"""`--metrics` for the job on Spark: aggregated in its driver where inputs and output are folders of this machine, else by tasks.

Files of this machine are read as `tidemark telemetry-aggregation` reads them, by either: Spark's own reader takes other types,
and its rows on their way to Python cost five times what it costs to aggregate them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.platform.rows import RowAccount, between, collected
from spark_jobs.schemas import METRICS
from spark_jobs.tables.places import local_folder
from spark_jobs.tables.results import Results
from spark_jobs.telemetry_aggregation import local
from spark_jobs.telemetry_aggregation.datasets import Dataset
from spark_jobs.telemetry_aggregation.files.accepted import row_groups_of
from spark_jobs.telemetry_aggregation.files.in_order import RowGroup, samples_in
from spark_jobs.telemetry_aggregation.inputs import Inputs, read
from spark_jobs.telemetry_aggregation.kernel.rows import ENCODED
from spark_jobs.telemetry_aggregation.kernel.samples import MICROS
from spark_jobs.telemetry_aggregation.schemas import GAUGES
from spark_jobs.telemetry_aggregation.tables import Counts, InputRecords
from spark_jobs.telemetry_aggregation.transforms import micros
from tidemark.analysis.errors import InputError

_PATTERN = frozenset("*?[]{}\\")
"""What Spark takes for more than a letter of a path."""

_OF_SPARK = {"org.apache.spark.sql.parquet.row.metadata": GAUGES.json()}
"""Where Spark looks for what a table's columns say of themselves."""

_ARROW = pa.schema(
    [
        ("target", pa.string()),
        ("metric", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("value", pa.float64()),
    ]
)
"""METRICS, written out: Spark 3.5 cannot make it with a zone of our choice, and this job runs there."""


def row_groups_here(place: Path | None) -> list[RowGroup] | None:
    """Of the files of this machine; None where Spark has to look: elsewhere, for names that are patterns, and for Delta tables.
    Raises InputError.
    """
    if place is None or set(str(place)) & _PATTERN or (place / "_delta_log").exists():
        return None
    return row_groups_of(place)


def aggregated_here(
    results: Results,
    inputs: Inputs,
    used: ExitStack,
    bounds: local.Bounds,
    cores: int | None,
) -> tuple[Path, Counts] | None:
    """The table GAUGES as a file, there while `used` lasts, and the counts; None where tasks have to read the samples.

    Raises InputError as `local.aggregate_all`.
    """
    folder = results.scratch("gauges")
    groups = row_groups_here(local_folder(results.spark, str(inputs.metrics)))
    if folder is None or groups is None:
        return None
    used.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.mkdir(parents=True)
    local.keep_memory()
    file = folder / "gauges.parquet"
    with local.table_writer(file, ENCODED) as writer:
        writer.add_key_value_metadata(_OF_SPARK)
        threads = cores or os.cpu_count() or 1
        counts = local.aggregate_all(groups, writer.write_table, folder, bounds, threads=threads)
    return file, counts


def samples_for_tasks(
    spark: SparkSession, dataset: Dataset, inputs: Inputs, bounds: local.Bounds
) -> InputRecords:
    """METRICS with its copies. What is left out is counted as it is read."""
    frame, account = _read(spark, inputs), RowAccount("--metrics")
    given = dataset.prepare(between(frame, "at", bounds.since, bounds.until))
    limit = round(bounds.latest.timestamp() * MICROS)
    reasons = {"ahead": micros("at") >= limit, "invalid": ~(dataset.valid & F.col("at").isNotNull())}
    return InputRecords(dataset, account.without(given, reasons), limit, frame.count(), account)


def counts_of_samples(account: RowAccount, table: DataFrame) -> Counts:
    """What became of METRICS, out of the table of gauges as written, in which the samples of other inputs have parts.

    Raises InputError where there is none.
    """
    minutes = table.where((F.col("window") == "1m") & (F.col("part") == ""))
    [row] = collected(minutes.agg(F.coalesce(F.sum("samples"), F.lit(0)).alias("kept")))
    if not row.kept:
        raise InputError("--metrics holds no valid record in the time asked for")
    _, read, counts, _ = account.check(kept=row.kept, rest="duplicates")
    return read, counts["duplicates"], 0, counts["ahead"], counts["invalid"]


def _read(spark: SparkSession, inputs: Inputs) -> DataFrame:
    """METRICS, for tasks. Raises InputError."""
    groups = row_groups_here(local_folder(spark, str(inputs.metrics)))
    if groups is None:
        return read(spark, "metrics", inputs)
    numbers = spark.range(0, len(groups), 1, max(len(groups), 1))
    return numbers.mapInArrow(partial(_rows_of, groups=tuple(groups)), METRICS)


def _rows_of(batches: Iterable[pa.RecordBatch], groups: Sequence[RowGroup]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column("id").to_pylist():
            for rows in samples_in(groups[number]):
                yield from rows.cast(_ARROW).to_batches()
