"""What Spark's own Delta Lake is asked for, whose jar is in no Python package: so nothing here was tried with it."""

from unittest.mock import MagicMock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

from spark_jobs.tables import stores
from spark_jobs.tables.runs import Run
from spark_jobs.tables.stores import SparkStore
from tidemark.analysis.errors import JobError

URL = "abfss://c@a/out"
RUN = Run(3, "key")
BY_DAY = Run(3, "key", sources={"gauges": {}})


class Writer:
    """A frame's writer; `saved` are the options and the path of each write, or what it raises."""

    def __init__(self):
        self.saved, self.error, self._options = [], None, {}

    def option(self, name, value):
        self._options[name] = value
        return self

    def options(self, **given):
        self._options |= given
        return self

    def format(self, name):
        return self.option("format", name)

    def mode(self, name):
        return self.option("mode", name)

    def partitionBy(self, name):
        return self.option("by", name)

    def save(self, path):
        self.saved.append((path, self._options))
        self._options = {}
        if self.error is not None:
            raise self.error


@pytest.fixture
def writer():
    return Writer()


@pytest.fixture
def store(writer, monkeypatch):
    spark = MagicMock()
    spark.createDataFrame.return_value.coalesce.return_value.write = writer
    spark.frame.write = writer
    monkeypatch.setattr(stores, "is_delta", lambda *_: True)
    return SparkStore(spark, URL)


def history(monkeypatch, *commits):
    rows = [Row(version=version, operation=kind, userMetadata=key) for version, kind, key in commits]
    monkeypatch.setattr(stores, "collected", lambda _: rows)


def test_a_table_is_written_in_one_commit_that_carries_the_runs_key_and_gives_its_version(
    store, writer, monkeypatch
):
    history(monkeypatch, (8, "WRITE", "another"), (7, "WRITE", "key"), (6, "WRITE", "old"))
    common = {"format": "delta", "mode": "overwrite", "userMetadata": "key"}

    assert store.write("gauges", store.spark.frame, RUN) == 7
    assert store.write("gauges", store.spark.frame, BY_DAY) == 7
    store.write("gauges", store.spark.frame, BY_DAY, ["2026-11-21", "2026-11-20"])

    assert writer.saved == [
        (f"{URL}/gauges", {**common, "overwriteSchema": "true"}),
        (f"{URL}/gauges", {**common, "by": "day", "overwriteSchema": "true"}),
        (
            f"{URL}/gauges",
            {
                **common,
                "by": "day",
                "mergeSchema": "true",
                "replaceWhere": "day IN ('2026-11-20', '2026-11-21')",
            },
        ),
    ]
    # By its path and not by a name, which a relative path would be taken for.
    assert store.spark.sql.call_args.args == (f"DESCRIBE HISTORY delta.`{URL}/gauges` LIMIT 10",)


def test_to_remove_old_files_makes_no_newer_version_of_the_rows(store, monkeypatch):
    history(monkeypatch, (9, "VACUUM END", None), (8, "VACUUM START", None), (7, "WRITE", "key"))

    assert store.newest_version("gauges") == 7
    store.vacuum("gauges", 24)
    assert store.spark.sql.call_args.args == (f"VACUUM delta.`{URL}/gauges` RETAIN 24 HOURS",)


@pytest.mark.parametrize(
    ("found", "error", "published"),
    [
        ([Run(2, "old"), RUN], None, True),
        ([Run(2, "old"), Run(3, "another")], None, False),  # Delta passes over a number that it has had
        ([], PySparkException("[DELTA_CONCURRENT_TRANSACTION] ConcurrentTransactionException: ..."), False),
    ],
)
def test_of_two_runs_with_a_number_delta_takes_one(store, writer, monkeypatch, found, error, published):
    monkeypatch.setattr(SparkStore, "runs", lambda _: found)
    writer.error = error

    assert store.publish([Run(2, "old"), RUN]) is published

    [(path, options)] = writer.saved
    assert path == f"{URL}/runs"
    assert (options["txnAppId"], options["txnVersion"], options["userMetadata"]) == ("tidemark", "3", "key")


def test_another_failure_to_publish_is_one_line(store, writer):
    writer.error = PySparkException("no space left")

    with pytest.raises(JobError, match=f"Spark cannot write {URL}/runs: no space left"):
        store.publish([RUN])
