"""A platform whose default file system is not this machine's: Spark's view of a path holds, whatever it looks like."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from datetime import UTC, datetime, timedelta
from spark_jobs.platform.output import local_folder, qualified
from spark_jobs.platform.results import result_table
from spark_jobs.schemas import METRICS
from spark_jobs.sources.registration import spark_session
from spark_jobs.sampling_report import job as sampling
from spark_jobs.telemetry_aggregation import job
from spark_jobs.telemetry_aggregation.inputs import Inputs

root = sys.argv[1]
mounts = "spark.hadoop.fs.viewfs.mounttable.lake"
spark = spark_session("remote", cores=1, memory="512m", extra={
    "spark.sql.shuffle.partitions": "1",
    "spark.hadoop.fs.defaultFS": "viewfs://lake/",
    f"{mounts}.link./data": f"file://{root}/lake",
    f"{mounts}.linkFallback": f"file://{root}/rest",
})
start = datetime(2026, 11, 20, 8, tzinfo=UTC)
rows = [("plan", "backlog", start + timedelta(minutes=minute), 1.0) for minute in range(60)]
spark.createDataFrame(rows, METRICS).coalesce(1).write.parquet("/data/in")

pages = [job.run(spark, job.Settings(inputs=Inputs(metrics="/data/in"), output=output)) for output in ("/data/out", "Files/out", f"file://{root}/own")]
stream = job.Settings(inputs=Inputs(metrics="/data/in"), output="/data/stream", checkpoint="/data/checkpoint")
pages += [job.run(spark, stream), job.run(spark, stream)]
pages.append(sampling.run(sampling.Settings(input=f"file://{root}/export", output="/data/sampling"), spark).report)
counts = {folder: result_table(spark, folder, "gauges").where("window = '1m'").count() for folder in ("/data/out", "Files/out", f"file://{root}/own", "/data/stream")}
where = {path: (qualified(spark, path), str(local_folder(spark, path))) for path in ("/data/out", "Files/out", f"file://{root}/own")}
print(json.dumps({"pages": pages, "counts": counts, "where": where}))
"""


@pytest.mark.timeout(600)
def test_jobs_write_and_publish_where_spark_means(tmp_path) -> None:
    for name in ("lake", "rest", "export", "work"):
        (tmp_path / name).mkdir()
    record = {"timestamp": "2026-11-20T08:00:00Z", "name": "E", "itemCount": 1}
    (tmp_path / "export" / "a.jsonl").write_text(json.dumps(record))

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
        },
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    own = f"file://{tmp_path}/own"
    assert told["where"] == {
        "/data/out": ["viewfs://lake/data/out", "None"],
        "Files/out": [f"viewfs://lake/user/{os.environ.get('USER', 'root')}/Files/out", "None"],
        own: [f"file:{tmp_path}/own", str(tmp_path / "own")],
    }
    assert told["counts"] == {"/data/out": 60, "Files/out": 60, own: 60, "/data/stream": 49}
    assert told["pages"][0] == "/data/out/telemetry-aggregation.html"
    [relative] = (tmp_path / "rest").rglob("telemetry-aggregation.html")
    for page in (
        relative,
        tmp_path / "lake/out/telemetry-aggregation.html",
        tmp_path / "own/telemetry-aggregation.html",
        tmp_path / "lake/stream/telemetry-aggregation.html",
        tmp_path / "lake/sampling/sampling-report-e.html",
    ):
        assert "<svg" in page.read_text()
    assert not Path("/data/stream").exists()
    assert list((tmp_path / "work").iterdir()) == []  # nothing went to a folder that only looks the same
