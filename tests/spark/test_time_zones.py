"""A driver's own time zone changes nothing. The data has the hour that clocks in Berlin and St. John's show twice."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from spark_jobs.backfill.transforms import plan
from spark_jobs.platform.rows import collected, first_of
from spark_jobs.sampling_report.job import Settings, run
from spark_jobs.schemas import METRICS
from tests.spark.conftest import EAST, WEST

BERLIN = datetime(2026, 10, 24, 22, tzinfo=UTC)  # clocks go back at 1:00 in UTC
ST_JOHNS = datetime(2026, 11, 1, 2, tzinfo=UTC)  # at 4:30
HOURS = [begin + timedelta(hours=hour) for begin in (BERLIN, ST_JOHNS) for hour in range(8)]


def samples(spark):
    return spark.createDataFrame(
        [("plan", "backlog", at, float(place)) for place, at in enumerate(HOURS)], METRICS
    )


@pytest.mark.parametrize("zone", [EAST, WEST])
def test_times_come_in_utc_each_once_and_a_backfill_plans_with_those_of_the_events(
    spark, set_zone, zone
) -> None:
    set_zone(zone)
    frame = samples(spark).select("at", "value").orderBy("value")
    nothing = spark.sql("select cast(null as timestamp) at, 1 one")

    assert [(at, float(place)) for place, at in enumerate(HOURS)] == [tuple(row) for row in collected(frame)]
    assert [HOURS[0], None] == [first_of(each).at for each in (frame, nothing)]
    assert first_of(frame.where("value < 0")) is None
    with pytest.raises(TypeError, match="times inside of pair"):
        collected(frame.select(F.struct("at", "value").alias("pair")))

    events = samples(spark).select(
        F.lit("0").alias("partition"),
        F.col("value").cast("long").alias("sequence_number"),
        F.col("at").alias("enqueued_at"),
    )
    [row] = collected(plan(events))

    assert (HOURS[0], HOURS[-1]) == (row.first_enqueued_at, row.last_enqueued_at)


def test_sampling_report_finds_all_events_hour_by_hour(spark, set_zone, tmp_path) -> None:
    set_zone(EAST)
    records = [{"timestamp": at.isoformat(), "name": "E", "itemCount": 1} for at in HOURS]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = Settings(
        input=str(tmp_path / "events.jsonl"), bin=timedelta(hours=1), output=str(tmp_path / "out")
    )

    findings, _ = run(settings, spark)

    assert findings.rows == len(HOURS)
    page = (tmp_path / "out" / "sampling-report-e.html").read_text()
    assert "2026-10-24 22:00 to 2026-11-01 10:00" in page
