"""Where the job's records come from, at once or as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.platform.source_options import FOR_EVER
from spark_jobs.schemas import METRICS
from spark_jobs.tables.merging import read_parquet_or_delta
from spark_jobs.tables.places import has_source, is_delta
from spark_jobs.telemetry_aggregation.files.accepted import ACCEPTED
from tidemark.analysis.errors import InputError


@dataclass(frozen=True, slots=True)
class Inputs:
    """Paths: the consumer's telemetry folder, the scaling log (a folder or the table), samples as Parquet."""

    telemetry: str | None = None
    decisions: str | None = None
    metrics: str | None = None
    quarantine: str | None = None
    files_per_batch: int | None = None
    settings: Mapping[str, str] | None = field(default=None, repr=False)
    """With the connection of the scaling log's table; None: the environment."""


def read(
    spark: SparkSession,
    name: str,
    inputs: Inputs,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """All records of the input `name`: metrics, telemetry or decisions, but for those out of the time that need not be
    read. Raises InputError where the path is not.
    """
    path: str = getattr(inputs, name)
    if name == "metrics":
        try:
            frame = read_parquet_or_delta(spark, path)
        except InputError as error:
            raise InputError(f"--metrics {error}; accepted: Parquet files, or a Delta table") from None
        return _samples(frame, inputs)
    from spark_jobs.sources.files.path_times import FileFilter  # noqa: PLC0415 - only where it is read
    from spark_jobs.sources.records import telemetry  # noqa: PLC0415

    if name == "telemetry":
        wanted = FileFilter(since, until)
        return telemetry.read_consumer_telemetry(spark, path, quarantine=inputs.quarantine, wanted=wanted)
    return telemetry.read_decisions(
        spark, path, quarantine=inputs.quarantine, settings=inputs.settings, since=since, until=until
    )


def stream(spark: SparkSession, name: str, inputs: Inputs) -> DataFrame:
    """As `read`, as a stream of new files."""
    path: str = getattr(inputs, name)
    if name == "metrics":
        reader = spark.readStream.option("maxFileAge", FOR_EVER)
        if inputs.files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", inputs.files_per_batch)
        if not is_delta(spark, path):
            return reader.schema(METRICS).parquet(path)
        if has_source(spark, "delta"):
            return reader.format("delta").load(path).select(*METRICS.names)
        raise InputError(
            f"--metrics {path} is a Delta table, and its files alone do not show a stream which rows are new; leave"
            " --checkpoint out, or add Delta Lake to Spark (--packages io.delta:...)"
        )
    from spark_jobs.sources.records import telemetry  # noqa: PLC0415

    most = inputs.files_per_batch
    if name == "telemetry":
        return telemetry.stream_consumer_telemetry(
            spark, path, quarantine=inputs.quarantine, max_files_per_trigger=most
        )
    return telemetry.stream_decisions(spark, path, quarantine=inputs.quarantine, max_files_per_trigger=most)


def _samples(frame: DataFrame, inputs: Inputs) -> DataFrame:
    """The columns of METRICS. Raises InputError for missing ones, and for those of other types."""
    types = dict(frame.dtypes)
    wanted = {field.name: {field.dataType.simpleString()} for field in METRICS}
    wanted["value"] |= {"float", "bigint", "int", "smallint", "tinyint"}
    wrong = {
        name: types.get(name, "missing") for name, kinds in wanted.items() if types.get(name) not in kinds
    }
    if wrong:
        raise InputError(
            f"--metrics {inputs.metrics}: columns {wrong}; accepted: "
            + ", ".join(f"{name} {words}" for name, (words, _) in ACCEPTED.items())
        )
    return frame.select("target", "metric", "at", F.col("value").cast("double").alias("value"))
