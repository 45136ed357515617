"""The session of a job: Spark's own, in which the Python data sources are known by their short names."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_jobs.platform.session import prepared_session


def spark_session(
    name: str, *, cores: int | None = None, memory: str = "2g", extra: Mapping[str, str] | None = None
) -> SparkSession:
    """As `prepared_session`, with the sources registered. Raises InputError and JobError."""
    session = prepared_session(name, cores=cores, memory=memory, extra=extra)
    if hasattr(session, "dataSource"):  # Spark 3.5 has none: jobs on plain tables still run there
        register(session)
    return session


def register(spark: SparkSession) -> None:
    """Registers the Python data sources; again is harmless."""
    # What a source needs is loaded with Spark, not with the command line.
    from spark_jobs.sources.capture.capture import CaptureSource  # noqa: PLC0415
    from spark_jobs.sources.event_hubs.source import EventHubSource  # noqa: PLC0415
    from spark_jobs.sources.records.app_insights import AppInsightsSource  # noqa: PLC0415
    from spark_jobs.sources.records.tables import TableSource  # noqa: PLC0415
    from spark_jobs.sources.records.telemetry import ConsumerTelemetrySource, ScalingLogSource  # noqa: PLC0415

    of_files = (AppInsightsSource, CaptureSource, ConsumerTelemetrySource, ScalingLogSource)
    for source in (*of_files, EventHubSource, TableSource):
        spark.dataSource.register(source)
