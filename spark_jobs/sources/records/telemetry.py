"""What the consumer and the autoscaler report: the sources "consumer_telemetry" and "scaling_log" over
folders of JSON lines, and "azure_table" over Table Storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.schemas import DECISIONS, TELEMETRY
from spark_jobs.sources.files.path_times import FileFilter
from spark_jobs.sources.records import tables
from spark_jobs.sources.records.record_files import RecordSource, read_records, stream_lines
from spark_jobs.sources.records.telemetry_rows import decision_row, telemetry_row
from tidemark.analysis.errors import InputError

LINES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")


class ConsumerTelemetrySource(RecordSource):
    """The folder of CONSUMER_TELEMETRY_FOLDER."""

    NAME = "consumer_telemetry"
    SCHEMA = TELEMETRY
    ENDINGS = LINES
    row = staticmethod(telemetry_row)


class ScalingLogSource(RecordSource):
    """Entries of the scaling log as JSON lines, or as `tidemark log --json` prints them."""

    NAME = "scaling_log"
    SCHEMA = DECISIONS
    ENDINGS = (*LINES, ".json", ".json.gz")
    row = staticmethod(decision_row)


def read_consumer_telemetry(
    spark: SparkSession,
    path: str,
    *,
    quarantine: str | None = None,
    storage: Mapping[str, Any] | None = None,
    wanted: FileFilter | None = None,
) -> DataFrame:
    """TELEMETRY of all files below `path` that are `wanted`. Raises InputError where there are none; records that cannot be
    read end the first action, or go to `quarantine`.
    """
    return read_records(spark, ConsumerTelemetrySource, path, quarantine, storage, wanted)


def stream_consumer_telemetry(
    spark: SparkSession, path: str, *, quarantine: str | None = None, max_files_per_trigger: int | None = None
) -> DataFrame:
    """TELEMETRY of the files as they land."""
    return stream_lines(spark, ConsumerTelemetrySource, path, quarantine, max_files_per_trigger)


def read_decisions(
    spark: SparkSession,
    path: str,
    *,
    quarantine: str | None = None,
    storage: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """DECISIONS from a folder of the log's entries as JSON, or from Table Storage: "table://<connection>" with the name
    of the connection's setting, optionally followed by "/<table>". `settings` are the environment by default.

    `since` and `until` spare a table the reading of other times; of files all entries come. An entry that was written twice,
    with the same key, comes twice from files and once from a table. Raises InputError.
    """
    if path.startswith(tables.SCHEME):
        return tables.read_table(spark, path, settings, since, until)
    return read_records(spark, ScalingLogSource, path, quarantine, storage)


def stream_decisions(
    spark: SparkSession, path: str, *, quarantine: str | None = None, max_files_per_trigger: int | None = None
) -> DataFrame:
    """DECISIONS of JSON lines as they land. Raises InputError for a table, which cannot be streamed."""
    if path.startswith(tables.SCHEME):
        raise InputError(
            f"'{path}' cannot be streamed: a table does not show which rows are new; read it as a batch"
        )
    return stream_lines(spark, ScalingLogSource, path, quarantine, max_files_per_trigger)
