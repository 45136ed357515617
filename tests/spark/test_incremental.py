"""The stream's state: clocks that are ahead, crashes at every step, and what a run writes and keeps."""

import itertools
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from spark_jobs import frame
from spark_jobs.schemas import DECISIONS, METRICS
from spark_jobs.tables.merging import read_delta
from spark_jobs.tables.results import last_run, result_table
from spark_jobs.telemetry_aggregation import incremental as module
from spark_jobs.telemetry_aggregation import job
from spark_jobs.telemetry_aggregation.datasets import decisions, metrics
from spark_jobs.telemetry_aggregation.incremental import Incremental, latest_mark
from spark_jobs.telemetry_aggregation.inputs import Inputs
from spark_jobs.telemetry_aggregation.kernel.samples import MICROS
from spark_jobs.telemetry_aggregation.pages import page
from tidemark.analysis.errors import JobError
from tidemark.analysis.report import Report

pytestmark = pytest.mark.timeout(600)  # dozens of micro-batches, on loaded machines too

START = datetime(2026, 11, 20, 22, tzinfo=UTC)


def dataset():
    return decisions(hold=900 * MICROS, with_samples=False)


class Killed(BaseException):
    """Not an Exception: nobody may catch it on the way."""


def killed(*_):
    raise Killed


class World:
    """A stream of the scaling log without Spark's own: batches are handed over, tables published."""

    def __init__(self, spark, folder, now=START + timedelta(days=9)):
        self.spark = spark
        self.settings = job.Settings(
            inputs=Inputs(decisions="log"),
            output=str(folder / "out"),
            checkpoint=str(folder / "checkpoint"),
            now=now,
            request_unit_targets=frozenset({"db"}),
        )
        self.state = f"{self.settings.checkpoint}/state"

    def take(self, number, minutes, more=()):
        """A batch with one decision for each of these minutes after START, and with entries that say where they differ."""
        names = {
            "target": "plan",
            "kind": "decision",
            "key": "decision",
            "current": 2,
            "desired": 2,
            "metrics": {},
        }
        entries = [*({"at": START + timedelta(minutes=minute)} for minute in minutes), *more]
        rows = [tuple({**names, **entry}.get(name) for name in DECISIONS.names) for entry in entries]
        taken = Incremental(
            dataset(),
            self.state,
            late=600 * MICROS,
            latest=lambda: job.latest(self.settings),
            aside=self.settings.checkpoint,
        )
        taken.step(self.spark.createDataFrame(rows, DECISIONS), number)

    def publish(self, monkeypatch):
        monkeypatch.setattr(frame, "write_report", lambda *_: "page")
        monkeypatch.setattr(page, "build", lambda *_: Report(""))
        job.publish(self.spark, self.settings)

    @property
    def mark(self):
        return latest_mark(self.spark, self.state, dataset())

    def minutes(self):
        """Decisions by minute after START, as published."""
        table = result_table(self.spark, self.settings.output, "scaling").where(
            "window = '1m' and decisions > 0"
        )
        return {
            (row.at - round(START.timestamp())) // 60: row.decisions
            for row in table.select(F.unix_seconds("window_start").alias("at"), "decisions").collect()
        }


def test_one_record_of_a_clock_that_is_ahead_closes_nothing_and_without_the_checkpoint_all_is_made_anew(
    spark, tmp_path, monkeypatch
) -> None:
    world = World(spark, tmp_path, now=START + timedelta(minutes=30))
    ahead = 60 * 24 * 365 * 73  # a record of 2099

    world.take(0, [0, 1, 33, ahead])
    world.take(1, [25, 30, 36])

    mark = world.mark
    assert (mark.ahead, mark.late, mark.read) == (2, 0, 7)  # 33 is within five minutes, 36 is not
    assert world.mark.newest == round((START + timedelta(minutes=33)).timestamp() * MICROS)
    world.publish(monkeypatch)
    assert world.minutes() == {0: 1, 1: 1}
    [row] = result_table(spark, world.settings.output, "quality").collect()
    assert (row.ahead, row.late, row.read) == (2, 0, 7)
    kept = spark.read.parquet(f"{world.settings.checkpoint}/ahead/decisions/batch=0").collect()
    assert [each.target for each in kept] == ["plan"]

    shutil.rmtree(world.settings.checkpoint)  # as an error message advises
    world.take(0, [0, 0.5, 1, 30])  # the input has what it lacked; batches and places have the same numbers
    world.publish(monkeypatch)

    assert world.minutes() == {0: 2, 1: 1}


def test_records_that_are_left_out_lie_in_the_checkpoint_whose_batches_number_them(spark, tmp_path) -> None:
    """Below the output, the first batch of a new checkpoint wrote over that of the one before."""
    line = {"kind": "decision", "key": "d", "line": "", "reason": "", "current": 2, "at": START.timestamp()}
    for number in range(2):
        folder = tmp_path / f"log{number}"
        folder.mkdir()
        ahead = {"target": f"ahead{number}", "at": START.timestamp() + 864_000 * (1 + number)}
        rows = [{"target": "plan", **line}, {**line, **ahead}]
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = job.Settings(
            inputs=Inputs(decisions=str(folder)),
            output=str(tmp_path / "out"),
            checkpoint=str(tmp_path / f"checkpoint{number}"),
            now=START,
        )
        job._finish(job.start(spark, settings))

    for number in range(2):
        [kept] = spark.read.parquet(str(tmp_path / f"checkpoint{number}" / "ahead" / "decisions")).collect()
        assert (kept.target, kept.batch) == (f"ahead{number}", 0)
    assert not (tmp_path / "out").exists()


def test_a_batch_killed_at_any_step_and_taken_again_counts_each_record_once(
    spark, tmp_path, monkeypatch
) -> None:
    """Before each of its two writes (records, the mark), and after the last: where one ends, the next begins."""
    world = World(spark, tmp_path)
    world.take(0, range(20))
    # Where the file system copies what others move.
    half = next(tmp_path.rglob("marks")) / "1" / "part-0.txt"
    half.parent.mkdir()
    half.write_text('{"keeps":"records","number":1,')
    for deaths in itertools.count():
        left = itertools.count(deaths, -1)

        def killed(write, left=left):
            def last(*arguments, **options):
                if not next(left):
                    raise Killed
                write(*arguments, **options)

            return last

        with monkeypatch.context() as patched:
            for name in ("write_parquet", "write_line"):
                patched.setattr(module, name, killed(getattr(module, name)))
            try:
                world.take(1, range(15, 40))
            except Killed:
                continue
        break
    world.take(1, range(15, 40))
    world.take(2, range(40, 60))
    world.publish(monkeypatch)

    assert deaths == 2
    assert (world.mark.read, world.mark.duplicates) == (20 + 25 + 20, 5)
    assert world.minutes() == dict.fromkeys(range(49), 1)


def test_a_run_writes_only_the_days_it_touched_and_all_at_other_prices(spark, tmp_path, monkeypatch) -> None:
    """Of a large batch, such as a year that a first run reads at once, several tasks write the records."""
    world = World(spark, tmp_path)
    hours = (0, 28, 40, 48)  # two days from 22:00 on
    batches = [range(begin * 60, end * 60, 30) for begin, end in itertools.pairwise(hours)]
    with monkeypatch.context() as patched:
        patched.setattr(module, "ROWS_PER_FILE", 20)
        world.take(0, batches[0])
    files = list((tmp_path / "checkpoint/state/decisions/records").rglob("*.parquet"))
    assert 4 <= len(files) <= 6  # 56 records of three days: those of a day are not cut to fit
    world.take(1, batches[1])
    world.publish(monkeypatch)
    first = last_run(spark, world.settings.output).sources["scaling"]
    world.take(2, batches[2])
    world.publish(monkeypatch)
    second = last_run(spark, world.settings.output).sources["scaling"]

    assert list(first) == list(second) == ["2026-11-20", "2026-11-21", "2026-11-22"]
    assert [day for day in second if second[day] != first[day]] == ["2026-11-22"]
    state = tmp_path / "checkpoint" / "state" / "decisions"
    assert {path.name for path in (state / "marks").iterdir()} == {"0", "1"}
    until = (world.mark.closed - round(START.timestamp() * MICROS)) // MICROS // 60
    assert world.minutes() == {minute: 1 for minutes in batches for minute in minutes if minute < until}

    yours = str(tmp_path / "a table of yours")
    world.settings = replace(world.settings, prices={"plan": 1.0}, merge_into={"scaling": yours})
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(job.Results, "publish", killed)
        world.publish(monkeypatch)
    merged = DeltaTable(yours).version()
    world.publish(monkeypatch)

    assert DeltaTable(yours).version() == merged  # to merge the rows twice changes nothing
    theirs = read_delta(spark, yours)
    tables = [
        sorted(map(str, frame.collect()))
        for frame in (result_table(spark, world.settings.output, "scaling"), theirs)
    ]
    assert tables[0] == tables[1]
    days = (
        result_table(spark, world.settings.output, "scaling").where("window = '1d'").select("cost").collect()
    )
    assert len(days) == 3
    assert all(row.cost for row in days)


def test_days_that_are_made_one_by_one_are_those_of_all_records_at_once(spark, tmp_path, monkeypatch) -> None:
    """An action fails before midnight, when its day is closed and published, and moves the target after it; a capacity of before
    midnight still holds when only the next day is made anew.
    """
    midnight = START + timedelta(hours=2)
    failed = {"kind": "effect", "key": "effect-failed-7", "outcome": "failed", "from_capacity": 2}
    moved = {**failed, "key": "effect-applied-7", "outcome": "applied", "reached": 3}
    batches = [
        [midnight + timedelta(minutes=minute) for minute in (-30, -20, -4, 10)],  # closed until midnight
        [midnight + timedelta(minutes=30)],
        [midnight + timedelta(minutes=25), midnight + timedelta(days=3)],
        [midnight + timedelta(days=4)],
    ]
    effects = [
        [{**failed, "at": midnight - timedelta(seconds=2)}],
        [{**moved, "at": midnight + timedelta(seconds=9)}],
        [],
        [],
    ]
    world = World(spark, tmp_path)
    for number, (times, more) in enumerate(zip(batches, effects, strict=True)):
        world.take(number, [(at - START) / timedelta(minutes=1) for at in times], more)
        world.publish(monkeypatch)
    streamed = result_table(spark, world.settings.output, "scaling").collect()

    whole = World(spark, tmp_path / "whole")
    minutes = [(at - START) / timedelta(minutes=1) for times in batches for at in times]
    whole.take(0, minutes, [entry for more in effects for entry in more])
    whole.publish(monkeypatch)
    at_once = result_table(spark, whole.settings.output, "scaling").collect()

    assert world.mark.late == 0
    assert sorted(map(str, streamed)) == sorted(map(str, at_once))
    day = {row.window_start.day: row for row in streamed if row.window == "1d"}
    assert (day[20].failed, day[21].failed, day[21].scaled_out) == (0, 0, 1)
    assert {*day} == {20, 21, 24}


def test_a_checkpoint_of_an_earlier_version_is_refused_with_the_way_on(spark, tmp_path) -> None:
    """It kept states of minutes and no records: to go on from it would lose all that it has seen."""
    old = '{"number":3,"newest":1,"closed":1,"read":9,"pieces":{"scaling":{"2026-11-20":[[0,0]]}},"key":"k"}'
    module.write_line(spark, old, f"{tmp_path}/state/decisions/marks/1")

    with pytest.raises(JobError, match=r"is no mark of a batch: .*keeps.*; begin with a new --checkpoint"):
        latest_mark(spark, f"{tmp_path}/state", dataset())


def test_samples_without_a_name_or_a_time_are_invalid_and_close_nothing(spark, tmp_path, monkeypatch) -> None:
    rows = [
        ("plan", "backlog", START, 1.0),
        (None, "backlog", START + timedelta(days=1), 1.0),
        ("plan", None, START + timedelta(days=1), 1.0),
        ("plan", "backlog", None, 1.0),
    ]
    taken = Incremental(
        metrics(), str(tmp_path / "state"), late=0, latest=lambda: 1 << 60, aside=str(tmp_path / "out")
    )

    taken.step(spark.createDataFrame(rows, METRICS), 0)

    mark = latest_mark(spark, str(tmp_path / "state"), metrics())
    assert (mark.invalid, mark.newest) == (3, round(START.timestamp()) * MICROS)

    whole = module.distinct
    monkeypatch.setattr(module, "distinct", lambda *given, **more: whole(*given, **more).where("copies < 2"))
    with pytest.raises(
        JobError, match=r"--metrics, batch 1: 2 rows .*\(.*kept 0, .*\): the batch is not taken"
    ):
        taken.step(spark.createDataFrame([rows[0], ("plan", "backlog", START, 2.0)], METRICS), 1)
    assert latest_mark(spark, str(tmp_path / "state"), metrics()).number == 0
