"""Sessions of Spark Connect, as serverless compute and standard access mode have them: no SparkContext, no `_jvm`."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.unit.spark_jobs.sources.test_source_records import AT, entry

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from spark_jobs.platform.classic import is_classic
from spark_jobs.platform.java import ensure_java
from spark_jobs.platform.results import result_table
from spark_jobs.sources.registration import spark_session
from spark_jobs.telemetry_aggregation import job
from spark_jobs.telemetry_aggregation.inputs import Inputs

ensure_java()
root = sys.argv[1]
SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
spark = spark_session("connect")
assert not is_classic(spark)
settings = job.Settings(inputs=Inputs(decisions=f"{root}/log"), output=f"{root}/out")
print(job.run(spark, settings))
print(result_table(spark, f"{root}/out", "gauges").where("window = '1m'").count())
spark.stop()
"""
MINUTES = 30


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_a_job_runs_over_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc")  # the client's; the extra `spark` has none
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0.jsonl").write_bytes(
        b"".join(msgspec.json.encode(entry(at=AT + 60 * minute)) + b"\n" for minute in range(MINUTES))
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    page, minutes = done.stdout.splitlines()[-2:]
    assert Path(page).exists()
    assert int(minutes) >= MINUTES
