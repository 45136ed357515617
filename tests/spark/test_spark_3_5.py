"""Spark 3.5, which Synapse and Fabric have: the job that is promised there, with a pyspark of its own (300 MB, once)."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_jobs.telemetry_aggregation import local
from tests.spark.result_files import read
from tests.unit.spark_jobs.telemetry_aggregation.test_telemetry_local import START, write

ROOT = Path(__file__).parents[2]
VERSION = "3.5.6"
PACKAGES = ROOT / ".devstack" / f"pyspark-{VERSION}"


@pytest.fixture(scope="module")
def packages():
    """Only pyspark is of 3.5, all else is what is installed."""
    if not (PACKAGES / "pyspark").exists():
        command = ("-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", str(PACKAGES))
        subprocess.run([sys.executable, *command, f"pyspark=={VERSION}", "py4j==0.10.9.7"], check=True)
    return PACKAGES


@pytest.mark.torture
@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}])
def test_samples_are_aggregated_on_spark_3_5_as_without_spark(packages, tmp_path, options):
    """In files whose times tell where they lie, and, as Spark wrote them by default for years, in others."""
    for number in range(3):
        write(tmp_path / "in" / f"{number}.parquet", range(number, 6000, 30), float(number), **options)
    path = os.pathsep.join((str(packages), str(ROOT)))
    argv = ("--metrics", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--cores", "1")

    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs", "telemetry-aggregation", *argv],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    assert "there is no page" not in done.stderr
    assert (tmp_path / "out" / "telemetry-aggregation.html").exists()
    local.run(tmp_path / "in", tmp_path / "here", latest=START.replace(year=2100))
    for name in ("gauges", "quality"):
        tables = [read(tmp_path / "out", name), pq.read_table(tmp_path / "here" / f"{name}.parquet")]
        ours, others = (
            sorted(map(str, table.select(tables[1].column_names).to_pylist())) for table in tables
        )
        assert ours == others
