"""The tables of a run become current together, whatever stops it; other formats, and what is kept."""

import itertools
import json
import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from spark_jobs import per_target
from spark_jobs.advise import job as advise
from spark_jobs.backtest import job as backtest
from spark_jobs.cost import job as cost
from spark_jobs.sampling_report import job as sampling
from spark_jobs.seasons import job as seasons
from spark_jobs.tables import delta_log, stores
from spark_jobs.tables.plain import read_parquet
from spark_jobs.tables.results import Results, last_run, result_table
from spark_jobs.telemetry_aggregation import job as telemetry
from spark_jobs.telemetry_aggregation import tables
from spark_jobs.telemetry_aggregation.inputs import Inputs
from tests.spark.test_backtest import GRID
from tests.support.analysis import CONFIG
from tests.unit.analysis.cost.test_costs import FOCUS, PLAN
from tests.unit.analysis.seasons.test_seasons import OPTIONS
from tidemark.analysis.cost.targets import Options
from tidemark.analysis.errors import InputError, JobError

TABLES = ("one", "two")


def day():
    return F.concat(F.lit("2026-11-2"), "id")


class Killed(BaseException):
    """Not an Exception: nobody may catch it on the way."""


def frame(spark, number):
    return spark.range(2).select(F.lit(number).alias("run"), "id")


def begun(spark, folder, number=0, *, fmt="delta", job="test"):
    return Results.begin(spark, folder, job=job, fmt=fmt, about={"number": str(number)})


def run(spark, folder, number, *, fmt="delta", by_day=TABLES):
    """A run, of whose tables those in `by_day` are kept by day; the second day is made of the same each time."""
    results = begun(spark, folder, number, fmt=fmt)
    for name in TABLES:
        if name in by_day:
            sources = {"2026-11-20": f"{number}", "2026-11-21": "the same"}
            results.write_days(name, frame(spark, number), day(), sources)
        else:
            results.write(name, frame(spark, number))
    results.publish()
    return results


def seen(spark, folder):
    """What every reader sees: by table the runs its rows are of; nothing before the first run."""
    last = last_run(spark, folder)
    if last is None:
        return None
    found = {name: result_table(spark, folder, name).collect() for name in last.versions}
    return last.about["number"], {name: {row.run for row in rows} for name, rows in found.items()}


@pytest.mark.timeout(600)
def test_a_run_killed_at_any_step_leaves_the_last_one_and_never_a_mix(spark, tmp_path, monkeypatch) -> None:
    """Before and after each of its commits (both tables, `runs`); before anything had finished, and over what had."""
    folder = str(tmp_path / "out")
    last, number = None, 0
    for at, done in [*itertools.product(range(3), (False, True))] * 2:
        number += 1
        steps = itertools.count()

        def killing(commit, at=at, done=done, steps=steps):
            def broken(*given, **options):
                if next(steps) == at:
                    if done:
                        commit(*given, **options)
                    raise Killed
                return commit(*given, **options)

            return broken

        with monkeypatch.context() as patched, pytest.raises(Killed):
            for name in ("commit", "publish"):
                patched.setattr(delta_log, name, killing(getattr(delta_log, name)))
            run(spark, folder, number, by_day=("two",))
        if (at, done) == (2, True):  # the row of the run was the last thing to be done
            # Killed runs wrote to the table of days, too: so none of its days was taken over from an earlier run.
            last = str(number), {"one": {number}, "two": {number}}
        assert seen(spark, folder) == last
    run(spark, folder, number + 1, by_day=("two",))
    assert seen(spark, folder) == (str(number + 1), {"one": {number + 1}, "two": {number + 1, number}})


def test_a_day_that_only_a_killed_run_changed_is_not_taken_over(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")

    def written(number, first, second):
        results = begun(spark, folder)
        sources = {"2026-11-20": first, "2026-11-21": second}
        changed = results.changed("one", sources)
        results.write_days("one", frame(spark, number).where(day().isin(changed)), day(), sources)
        return results

    written(1, "old", "old").publish()
    written(2, "other", "other")  # killed: it does not come to publish
    written(3, "new", "old").publish()

    found = {(row.run, row.id) for row in result_table(spark, folder, "one").collect()}
    assert found == {(3, 0), (3, 1)}


def test_a_day_that_a_run_has_no_more_is_in_no_table_of_it_and_one_that_is_the_same_is_not_written(
    spark, tmp_path
) -> None:
    folder = str(tmp_path / "out")
    versions = []
    for sources in (
        {"2026-11-20": "one", "2026-11-21": "one"},
        {"2026-11-21": "two"},  # the other day is new
        {"2026-11-20": "one", "2026-11-21": "two"},
        {"2026-11-21": "two"},  # nothing but that a day is gone
        {"2026-11-21": "two"},  # nothing
    ):
        results = begun(spark, folder)
        results.write_days("one", frame(spark, 1), day(), sources)
        results.publish()
        versions.append(results.new.versions["one"])

        found = {row.id for row in result_table(spark, folder, "one").collect()}
        assert found == {int(source[-1]) for source in sources}
        # What others see, who know nothing of runs.
        log = DeltaTable(f"{folder}/one").to_pandas(columns=["id", "day"])
        assert {*log["id"]} == found
        assert {*log["day"]} == {*sources}
    assert versions == [0, 1, 2, 3, 3]


def test_a_table_may_be_whole_in_one_run_and_by_day_in_the_next_which_writes_only_days_that_changed(
    spark, tmp_path
) -> None:
    folder = str(tmp_path / "out")
    for number, by_day in enumerate([(), TABLES, (), TABLES, TABLES], 1):
        run(spark, folder, number, by_day=by_day)
        assert seen(spark, folder) == (str(number), dict.fromkeys(TABLES, {number} if number < 5 else {4, 5}))

    assert [bool(each.sources) for each in delta_log.read_runs(folder)] == [False] * 4 + [
        True
    ]  # they are long
    rows = sorted(tuple(row) for row in result_table(spark, folder, "one").collect())

    assert rows == [(4, 1), (5, 0)]  # (run, id): the second day is still the fourth run's
    files = {
        path.partition("/")[0] for path in DeltaTable(f"{folder}/one").get_add_actions()["path"].to_pylist()
    }
    assert files == {"day=2026-11-20", "day=2026-11-21"}
    assert all(path.name.startswith("r") for path in (tmp_path / "out" / "one").rglob("*.parquet"))


def test_of_two_runs_at_once_the_one_that_ends_last_is_refused_and_changes_nothing(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")
    for number in range(2):  # of a new folder, and of one with a run
        first, second = begun(spark, folder, f"{number} first"), begun(spark, folder, f"{number} second")
        for results, of in ((second, 2), (first, 1), (second, 2)):
            results.write("one", frame(spark, of))
        first.publish()

        with pytest.raises(JobError, match=r"another run finished in .*/out meanwhile.*one at a time"):
            second.publish()

        assert seen(spark, folder) == (f"{number} first", {"one": {1}})
        assert [each.run for each in delta_log.read_runs(folder)] == [*range(1, number + 2)]


def test_of_two_rows_of_a_run_committed_at_the_same_moment_delta_takes_one(
    spark, tmp_path, monkeypatch
) -> None:
    """Both have read the table of runs when neither has committed."""
    folder = str(tmp_path / "out")
    first, second = (begun(spark, folder) for _ in range(2))
    first.store.make_runs()
    opened = delta_log._opened

    def and_then_another_commits(url, version=None):
        table = opened(url, version)
        monkeypatch.setattr(delta_log, "_opened", opened)
        first.publish()
        return table

    monkeypatch.setattr(delta_log, "_opened", and_then_another_commits)
    with pytest.raises(JobError, match="another run finished"):
        second.publish()
    assert [each.key for each in delta_log.read_runs(folder)] == [first.new.key]


def test_what_is_no_result_is_told(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")
    with pytest.raises(InputError, match=r"no run has finished in .*out"):
        result_table(spark, folder, "one")
    run(spark, folder, 1)
    with pytest.raises(InputError, match=r"has no table 'three'; there are: one, two"):
        result_table(spark, folder, "three")
    with pytest.raises(InputError, match="holds results of test"):
        begun(spark, folder, job="other")
    with pytest.raises(InputError, match=r"--format .* is 'csv'; accepted: delta, parquet, iceberg"):
        begun(spark, folder, fmt="csv")
    with pytest.raises(
        JobError, match=r"--format iceberg needs its runtime in Spark: add it .*docs/spark\.md"
    ):
        begun(spark, folder, fmt="iceberg")
    (tmp_path / "old" / "manifest").mkdir(parents=True)
    for reading in (begun, last_run):
        with pytest.raises(InputError, match=r"old holds results of an earlier version .*another folder, or"):
            reading(spark, str(tmp_path / "old"))


@pytest.mark.parametrize("fmt", ["delta", "parquet"])
def test_where_only_spark_writes_and_has_no_delta_there_is_parquet_alone(
    spark, tmp_path, monkeypatch, fmt
) -> None:
    monkeypatch.setattr(stores, "local_folder", lambda *_: None)  # as of a lake with Hadoop's file system
    folder = str(tmp_path / "out")
    if fmt == "delta":
        with pytest.raises(
            JobError, match=r"Spark has no Delta Lake: add its jar .*or choose --format parquet"
        ):
            begun(spark, folder)
        return

    run(spark, folder, 1, fmt=fmt)
    results = run(spark, folder, 2, fmt=fmt, by_day=("two",))
    results.export()
    results.vacuum(0.0)

    for name in TABLES:
        assert {tuple(row) for row in read_parquet(spark, [f"{folder}/parquet/{name}"]).collect()} == {
            (2, 0),
            (2, 1),
        }
        assert {row.run for row in results.table(name).collect()} == {2}
    assert [path.name for path in Path(folder).iterdir()] == ["parquet"]
    assert last_run(spark, folder) is None


def test_an_export_has_what_the_run_published_and_is_replaced_as_a_whole(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")
    for number in (1, 2):
        results = run(spark, folder, number, fmt="parquet")
        assert (tmp_path / "out" / "parquet").exists() is (number == 2)
        results.export()

    assert "parquet/ beside this page" in results.export_note()
    assert begun(spark, folder).export_note() == ""
    for name in TABLES:
        exported = read_parquet(spark, [f"{folder}/parquet/{name}"])
        assert sorted(exported.collect()) == sorted(result_table(spark, folder, name).collect())


def test_old_versions_are_kept_as_long_as_they_are_asked_for_and_then_removed_with_what_killed_runs_left(
    spark, tmp_path
) -> None:
    folder = tmp_path / "out"
    run(spark, str(folder), 1, by_day=())
    killed = begun(spark, str(folder)).scratch("one")
    killed.mkdir()
    (killed / "part.parquet").write_bytes(b"half")
    results = run(spark, str(folder), 2, by_day=())
    files = len([*(folder / "one").rglob("*.parquet")])

    results.vacuum(7 * 86_400.0)
    assert len([*(folder / "one").rglob("*.parquet")]) == files
    before = time.time() - 3 * 86_400
    for file in folder.rglob("*.parquet"):
        os.utime(file, (before, before))
    results.vacuum(0.0)

    assert not (killed / "part.parquet").exists()
    assert len([*(folder / "one").glob("*.parquet")]) == DeltaTable(folder / "one").get_add_actions().num_rows
    assert seen(spark, str(folder)) == ("2", {"one": {2}, "two": {2}})
    # To remove files is a commit as well; days that did not change stay for all that.
    by_day = run(spark, str(folder), 3)
    by_day.vacuum(0.0)
    now = {"2026-11-20": "4", "2026-11-21": "the same"}
    assert begun(spark, str(folder)).changed("one", now) == ["2026-11-20"]


class Lost:
    """Where a row of each job is lost: `names` of a function of its module, which gives a frame without some rows."""

    def __init__(self, job, name, rows, settings, read, *, last=False, module=None):
        self.job, self.name, self.rows, self.read = job, name, rows, read
        self.settings, self.last, self.module = settings, last, module or job

    def run(self, spark, monkeypatch):
        whole = getattr(self.module, self.name)
        monkeypatch.setattr(
            self.module, self.name, lambda *given, **more: whole(*given, **more).where(self.rows)
        )
        self.job.run(self.settings, spark) if self.last else self.job.run(spark, self.settings)


def _history(job):
    def made(folder, output):
        (folder / "tidemark.toml").write_text(CONFIG)
        (folder / "grid.toml").write_text(GRID)
        (folder / "arrivals.csv").write_text("t,target,arrivals\n0,one,5\n60,one,5\n0,two,5\n")
        own = {"options": OPTIONS} if job is not backtest else {"grid": folder / "grid.toml"}
        settings = job.Settings(
            config=folder / "tidemark.toml",
            arrivals=str(folder / "arrivals.csv"),
            log=str(folder / "log"),
            output=output,
            app_settings={"A": "1"},
            **own,
        )
        lost = "target != 'two'"
        read = r"the history: 6 rows .* \(.*, replayed 5\)"
        return Lost(job, "histories", lost, settings, read, module=per_target)

    return made


def _cost(rows, read):
    def made(folder, output):
        (folder / "focus.csv").write_text(FOCUS)
        options = Options({"plan": PLAN}, {}, frozenset())
        given = {"costs": str(folder / "focus.csv"), "log": str(folder / "log"), "options": options}
        settings = cost.Settings(**given, output=output, app_settings={})
        return Lost(cost, "_by_target", rows, settings, read)

    return made


def _sampling(folder, output):
    at = ("2026-11-20T00:00:00Z", "2026-11-20T01:00:00Z")
    rows = [{"timestamp": each, "name": "X", "itemCount": 1, "itemId": each} for each in at]
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    settings = sampling.Settings(input=str(folder / "events.jsonl"), output=output)
    lost = "timestamp > '2026-11-20T00:30:00Z'"
    return Lost(sampling, "once", lost, settings, r"--input: 3 rows .*\(.*rows 1, copies 0\)", last=True)


def _telemetry(folder, output):
    settings = telemetry.Settings(inputs=Inputs(decisions=str(folder / "log")), output=output)
    read = r"--decisions: 3 rows .*\(.*kept 1, duplicates 1\)"
    return Lost(telemetry, "distinct", "copies > 1", settings, read, module=tables)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(_history(seasons), id="seasons"),
        pytest.param(_history(advise), id="advise"),
        pytest.param(_history(backtest), id="backtest"),
        pytest.param(_cost("seen IS NULL", r"--log: 3 rows .*joined 0\)"), id="cost, log"),
        pytest.param(_cost("charges IS NULL", r"--costs: \d+ rows .*joined 0\)"), id="cost, charges"),
        pytest.param(_sampling, id="sampling report"),
        pytest.param(_telemetry, id="telemetry aggregation"),
    ],
)
def test_a_row_that_is_in_no_count_ends_each_job_before_anything_is_published(
    made, spark, tmp_path, monkeypatch
):
    (tmp_path / "log").mkdir()
    rows = [
        {"target": "plan", "at": at, "kind": "decision", "key": "d", "line": "", "reason": "", "current": 2}
        for at in (1_788_220_800.0, 1_788_220_860.0, 1_788_220_860.0)
    ]
    (tmp_path / "log" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lost = made(tmp_path, str(tmp_path / "out"))

    with pytest.raises(JobError, match=f"{lost.read}: nothing is published"):
        lost.run(spark, monkeypatch)

    assert last_run(spark, str(tmp_path / "out")) is None
