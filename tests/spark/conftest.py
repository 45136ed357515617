"""One Spark session for all Spark tests of a process; drivers in other time zones."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from pyspark.sql import SparkSession

from devstack.demo.spark.child import SMALL_DATA
from spark_jobs.sources.registration import spark_session

EAST, WEST = "Europe/Berlin", "America/St_Johns"
"""Zones whose clocks show an hour twice in autumn, on either side of UTC."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2], one shuffle partition, UTC; jobs under test find it as the active session."""
    session = spark_session("tests", cores=2, memory="1g", extra=SMALL_DATA)
    yield session
    session.stop()


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
