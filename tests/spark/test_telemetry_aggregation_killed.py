"""The stream is killed with -9 while it works, and started again."""

import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from spark_jobs.schemas import METRICS
from spark_jobs.tables.results import last_run, result_table
from spark_jobs.telemetry_aggregation import job
from spark_jobs.telemetry_aggregation.inputs import Inputs

START = datetime(2026, 11, 20, 8, tzinfo=UTC)
FILES = 4


def settings(folder: Path, output: str, checkpoint: str | None = None) -> job.Settings:
    inputs = Inputs(metrics=str(folder / "in"), files_per_batch=1 if checkpoint else None)
    return job.Settings(inputs=inputs, output=str(folder / output), checkpoint=checkpoint, late=120.0)


def command(folder: Path) -> list[str]:
    argv = [
        sys.executable,
        "-m",
        "spark_jobs",
        "telemetry-aggregation",
        "--metrics",
        str(folder / "in"),
        "--late",
        "2m",
    ]
    argv += [
        "--output",
        str(folder / "streamed"),
        "--checkpoint",
        str(folder / "checkpoint"),
        "--files-per-batch",
        "1",
    ]
    return [*argv, "--cores", "2", "--memory", "512m"]


@pytest.mark.torture
@pytest.mark.timeout(900)  # for loaded machines: three starts of Spark
def test_a_stream_killed_at_work_and_started_again_gives_the_table_of_the_batch(spark, tmp_path) -> None:
    rng = random.Random(5)
    for number in range(FILES):
        begin = START + timedelta(minutes=10 * number)
        rows = {
            ("plan", "backlog", begin + timedelta(milliseconds=rng.randrange(600_000))): float(
                rng.randrange(1000)
            )
            for _ in range(200)
        }
        frame = spark.createDataFrame([(*key, value) for key, value in rows.items()], METRICS)
        frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    marks = tmp_path / "checkpoint" / "state" / "metrics" / "marks"

    with (tmp_path / "log").open("wb") as log:
        first = subprocess.Popen(command(tmp_path), stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 500
        while (
            not (marks / "0" / "_SUCCESS").exists() and first.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        os.killpg(first.pid, signal.SIGKILL)  # Python and its Java
        first.wait()
    assert (marks / "0" / "_SUCCESS").exists(), (tmp_path / "log").read_text()
    assert last_run(spark, str(tmp_path / "streamed")) is None

    job.run(spark, settings(tmp_path, "streamed", str(tmp_path / "checkpoint")))
    job.run(spark, settings(tmp_path, "whole"))

    closed = START + timedelta(minutes=10 * FILES - 4)  # what the stream has closed for sure

    def rows(output: str) -> list:
        table = result_table(spark, str(tmp_path / output), "gauges")
        minutes = table.where((F.col("window") == "1m") & (F.col("window_start") < F.lit(closed)))
        return sorted(minutes.collect())

    assert len(rows("whole")) == 10 * FILES - 4
    assert rows("whole") == rows("streamed")
    quality = result_table(spark, str(tmp_path / "streamed"), "quality").collect()
    assert quality == result_table(spark, str(tmp_path / "whole"), "quality").collect()
