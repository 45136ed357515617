"""A process on a platform whose default file system is not this machine's, and whose clock is another zone's.

Spark's view of a path holds, whatever it looks like; and what a job writes is the same everywhere.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.telemetry_aggregation import job
from spark_jobs.telemetry_aggregation.inputs import Inputs
from tests.spark.conftest import EAST, WEST
from tests.spark.test_time_zones import HOURS, samples

SCRIPT = """
import json, sys
from devstack.demo.spark.child import SMALL_DATA
from spark_jobs.tables.places import local_folder, qualified
from spark_jobs.tables.plain import read_parquet
from spark_jobs.tables.results import result_table
from spark_jobs.sources.registration import spark_session
from spark_jobs.sampling_report import job as sampling
from spark_jobs.telemetry_aggregation import job
from spark_jobs.telemetry_aggregation.inputs import Inputs
from tidemark.analysis.errors import JobError

root = sys.argv[1]
mounts = "spark.hadoop.fs.viewfs.mounttable.lake"
spark = spark_session("remote", cores=1, memory="512m", extra={
    **SMALL_DATA,
    "spark.hadoop.fs.defaultFS": "viewfs://lake/",
    f"{mounts}.link./data": f"file://{root}/lake",
    f"{mounts}.linkFallback": f"file://{root}/rest",
})
own = f"file://{root}/own"
given = Inputs(metrics="/data/in")
try:
    job.run(spark, job.Settings(inputs=given, output="Files/out"))
except JobError as error:
    refused = str(error)
pages = [job.run(spark, job.Settings(inputs=given, output=output, fmt=fmt)) for output, fmt in (("Files/out", "parquet"), (own, "delta"))]
stream = job.Settings(inputs=given, output="/data/stream", checkpoint="/data/checkpoint", fmt="parquet")
pages += [job.run(spark, stream), job.run(spark, stream)]
pages.append(sampling.run(sampling.Settings(input=f"file://{root}/export", output="/data/sampling", fmt="parquet"), spark)[1])
tables = {own: result_table(spark, own, "gauges")}
tables |= {folder: read_parquet(spark, [f"{folder}/parquet/gauges"]) for folder in ("Files/out", "/data/stream")}
counts = {folder: table.where("window = '1m'").count() for folder, table in tables.items()}
where = {path: (qualified(spark, path), str(local_folder(spark, path))) for path in ("/data/stream", "Files/out", f"file://{root}/own")}
print(json.dumps({"refused": refused, "pages": pages, "counts": counts, "where": where}))
"""


@pytest.mark.torture  # 70 s in a session of its own; test_results has where only Spark writes, test_time_zones the clock
@pytest.mark.timeout(600)
def test_jobs_write_and_publish_where_spark_means_and_the_same_as_here(spark, set_zone, tmp_path) -> None:
    """In another zone than here, Java and Spark's Python workers included."""
    for name in ("lake", "rest", "export", "work"):
        (tmp_path / name).mkdir()
    record = {"timestamp": "2026-11-20T08:00:00Z", "name": "E", "itemCount": 1}
    (tmp_path / "export" / "a.jsonl").write_text(json.dumps(record))
    samples(spark).coalesce(1).write.parquet(str(tmp_path / "lake" / "in"))
    set_zone(WEST)
    here = job.run(
        spark,
        job.Settings(inputs=Inputs(metrics=str(tmp_path / "lake" / "in")), output=str(tmp_path / "here")),
    )

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
            "TZ": EAST,
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
        "/data/stream": ["viewfs://lake/data/stream", "None"],
        "Files/out": [f"viewfs://lake/user/{os.environ.get('USER', 'root')}/Files/out", "None"],
        own: [f"file:{tmp_path}/own", str(tmp_path / "own")],
    }
    assert told["counts"] == {"Files/out": 16, own: 16, "/data/stream": 15}
    assert "Files/out is where only Spark writes, and Spark has no Delta Lake: add its jar" in told["refused"]
    assert told["pages"][2:4] == ["/data/stream/telemetry-aggregation.html"] * 2
    [relative] = (tmp_path / "rest").rglob("telemetry-aggregation.html")
    for page in (
        tmp_path / "lake/stream/telemetry-aggregation.html",
        tmp_path / "lake/sampling/sampling-report-e.html",
    ):
        assert "<svg" in page.read_text()
    text, third = (
        page.read_text().replace(f"runs {folder}<", "runs FOLDER<")  # the next command names the folder
        for page, folder in (
            (Path(here), tmp_path / "here"),
            (tmp_path / "own/telemetry-aggregation.html", own),
        )
    )
    assert "runs FOLDER<" in text
    assert text == third
    other = relative.read_text()
    assert "Tables as parquet are in parquet/ beside this page." in other
    assert "tidemark runs" not in other
    assert (
        text.partition('<h2 id="next">')[0]
        == re.sub(r"<p>Tables as parquet.*?</p>\n", "", other).partition("</main>")[0]
    )
    assert "2026-10-24 22:00 to 2026-11-01 09:00 UTC" in text
    assert {f"{at:%Y-%m-%d}" for at in HOURS} == set(re.findall(r"<td>(2026-\d\d-\d\d)</td>", text))
    assert not Path("/data/stream").exists()
    assert list((tmp_path / "work").iterdir()) == []  # nothing went to a folder that only looks the same
