"""Inputs of the jobs. `register` makes the Python data sources known to a session by their short names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the Python data sources; again is harmless."""
    # What a source needs is loaded with Spark, not with the command line.
    from spark_jobs.sources.capture.capture import CaptureSource  # noqa: PLC0415
    from spark_jobs.sources.event_hubs.source import EventHubSource  # noqa: PLC0415
    from spark_jobs.sources.records.app_insights import AppInsightsSource  # noqa: PLC0415
    from spark_jobs.sources.records.tables import TableSource  # noqa: PLC0415
    from spark_jobs.sources.records.telemetry import ConsumerTelemetrySource, ScalingLogSource  # noqa: PLC0415

    sources = (
        AppInsightsSource,
        CaptureSource,
        ConsumerTelemetrySource,
        EventHubSource,
        ScalingLogSource,
        TableSource,
    )
    for source in sources:
        spark.dataSource.register(source)
