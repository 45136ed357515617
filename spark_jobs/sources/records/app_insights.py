"""Exports of Application Insights: the data source "app_insights".

Read are the classic table customEvents and the workspace table AppEvents, as JSON lines, JSON lists, answers of
queries, CSV from the portal, blobs of continuous export, and blobs of diagnostic settings or data export (PT1H.json,
PT05M.json); each also as .gz. What is no such event is rejected, with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.schemas import APP_EVENTS
from spark_jobs.sources.records.app_insights_rows import app_event_lines, app_event_records, app_event_row
from spark_jobs.sources.records.record_files import RecordSource, read_records

_KINDS = (".json", ".jsonl", ".ndjson", ".csv", ".blob")


class AppInsightsSource(RecordSource):
    NAME = "app_insights"
    SCHEMA = APP_EVENTS
    ENDINGS = (*_KINDS, *(f"{kind}.gz" for kind in _KINDS))
    row = staticmethod(app_event_row)
    records = staticmethod(app_event_records)
    has_lines = staticmethod(app_event_lines)


def read_app_insights(
    spark: SparkSession, path: str, *, quarantine: str | None = None, storage: Mapping[str, Any] | None = None
) -> DataFrame:
    """APP_EVENTS of all export files below `path`. Raises InputError where there are none; records that cannot be read
    end the first action, or go to `quarantine`. Files that overlap in time give their events more than once,
    with the same `item_id`.
    """
    return read_records(spark, AppInsightsSource, path, quarantine, storage)
