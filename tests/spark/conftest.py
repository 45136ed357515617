"""One Spark session for all Spark tests of a process; drivers in other time zones."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from devstack.demo.spark.child import SMALL_DATA, remember_java_names
from spark_jobs.sources.registration import spark_session
from spark_jobs.telemetry_aggregation import job
from spark_jobs.telemetry_aggregation.inputs import Inputs
from tests.spark.backfill_world import World
from tests.support.consumer.backfill import server
from tests.support.servers.threaded import running_in_thread
from tests.unit.spark_jobs.sources.test_source_records import AT, entry

EAST, WEST = "Europe/Berlin", "America/St_Johns"
"""Zones whose clocks show an hour twice in autumn, on either side of UTC."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2], one shuffle partition, UTC; jobs under test find it as the active session."""
    remember_java_names()
    session = spark_session("tests", cores=2, memory="1g", extra=SMALL_DATA)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def aggregated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scaling log, `log`, and with what telemetry-aggregation makes of it in local mode, `out`."""
    folder = tmp_path_factory.mktemp("aggregated")
    (folder / "log").mkdir()
    for part in range(2):
        minutes = range(15 * part, 15 * (part + 1))
        lines = [msgspec.json.encode(entry(at=AT + 60 * minute)) + b"\n" for minute in minutes]
        (folder / "log" / f"{part}.jsonl").write_bytes(b"".join(lines))
    job.run(spark, job.Settings(inputs=Inputs(decisions=str(folder / "log")), output=str(folder / "out")))
    return folder


@pytest.fixture
def small_driver(spark: SparkSession) -> Callable[[int], AbstractContextManager[None]]:
    """In its block no action may bring more than so many kilobytes to the driver, as on a driver with little memory."""
    settings = spark.sparkContext._jsc.sc().conf()

    @contextmanager
    def limited(kilobytes: int) -> Iterator[None]:
        before = settings.get("spark.driver.maxResultSize", "1g")
        settings.set("spark.driver.maxResultSize", f"{kilobytes}k")
        try:
            yield
        finally:
            settings.set("spark.driver.maxResultSize", before)

    return limited


@pytest.fixture
def set_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the driver's time zone until the test ends. What a job finds must be the same in all of them."""

    def put(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def world(azurite: str) -> Iterator[World]:
    with running_in_thread(server) as running:
        yield World(running, azurite)
