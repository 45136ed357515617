"""The tables of a run appear together, whatever stops it, and wherever Spark's default file system is."""

import itertools
import json

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from spark_jobs import per_target
from spark_jobs.advise import job as advise
from spark_jobs.backtest import job as backtest
from spark_jobs.cost import job as cost
from spark_jobs.platform import results as module
from spark_jobs.platform.results import Results, manifest_of, result_table
from spark_jobs.sampling_report import job as sampling
from spark_jobs.seasons import job as seasons
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


class Killed(BaseException):
    """Not an Exception: nobody may catch it on the way."""


def frame(spark, number):
    return spark.range(2).select(
        F.lit(number).alias("run"), F.concat(F.lit("2026-11-2"), "id").alias("day"), "id"
    )


def run(spark, folder, number, *, fmt="parquet", by_day=TABLES):
    """A run, of whose tables those in `by_day` are kept by day; the second day is made of the same each time."""
    results = Results.begin(spark, folder, job="test", fmt=fmt, about={"number": str(number)})
    for name in TABLES:
        if name in by_day:
            sources = {"2026-11-20": f"{number}", "2026-11-21": "the same"}
            results.write_days(
                name, frame(spark, number).drop("day"), F.concat(F.lit("2026-11-2"), "id"), sources
            )
        else:
            results.write(name, frame(spark, number))
    results.publish()


def seen(spark, folder):
    """What every reader sees: by table the runs its rows are of; nothing before the first run."""
    manifest = manifest_of(spark, folder)
    if manifest is None:
        return None
    found = {
        name: module._frame(spark, folder, manifest.format, parts).collect()
        for name, parts in manifest.tables.items()
    }
    return manifest.about["number"], {name: {row.run for row in rows} for name, rows in found.items()}


def killed_at(monkeypatch, step):
    """The last thing that happens is a write: torn, so that only the old is gone, where `step` is even, else done.

    At step -1 it is none. A write that was not begun leaves what the one before it left.
    """
    steps = itertools.count()
    at, done = divmod(step, 2)

    def breaking(write, tearing):
        def broken(given, *arguments, **options):
            if next(steps) == at:
                (write if done else tearing)(given, *arguments, **options)
            elif step >= 0:
                return write(given, *arguments, **options)
            raise Killed

        return broken

    def torn_table(frame, path, *, fmt="parquet", **options):
        if fmt == "parquet":
            real_table(frame.limit(0), path, fmt=fmt, **options)

    def torn_line(spark, _line, path):
        spark.createDataFrame([], "value string").write.mode("overwrite").text(path)

    real_table, real_line = module.output.write_table, module.output.write_line
    monkeypatch.setattr(module.output, "write_table", breaking(real_table, torn_table))
    monkeypatch.setattr(module.output, "write_line", breaking(real_line, torn_line))


@pytest.mark.parametrize("fmt", ["parquet", "delta"])
@pytest.mark.timeout(600)
def test_a_run_killed_at_any_step_leaves_the_last_one_and_never_a_mix(
    spark, tmp_path, monkeypatch, fmt
) -> None:
    """In each of three writes, of which Delta tears none; before anything had finished, and over what had."""
    folder = str(tmp_path / "out")
    last = None
    steps = {"parquet": [-1, *range(6)], "delta": [-1, 1, 3, 4, 5]}[fmt]
    number = 0
    for step in [*steps, *steps]:
        number += 1
        with monkeypatch.context() as patched, pytest.raises(Killed):
            killed_at(patched, step)
            run(spark, folder, number, fmt=fmt, by_day=("two",))
        if step == 5:  # the manifest was the last thing to be done
            # The run that wrote the day whose sources are the same: of a table with a log the last, for killed ones wrote to it.
            kept = number if fmt != "parquet" else len(steps)
            last = str(number), {"one": {number}, "two": {number, kept}}
        assert seen(spark, folder) == last
    run(spark, folder, number + 1, fmt=fmt, by_day=("two",))
    assert seen(spark, folder) == (str(number + 1), {"one": {number + 1}, "two": {number + 1, kept}})


@pytest.mark.parametrize("fmt", ["parquet", "delta"])
@pytest.mark.timeout(300)
def test_a_day_that_only_a_killed_run_changed_is_not_taken_over(spark, tmp_path, fmt) -> None:
    folder = str(tmp_path / "out")
    day = F.concat(F.lit("2026-11-2"), "id")

    def begun(number, first, second):
        results = Results.begin(spark, folder, job="test", fmt=fmt)
        sources = {"2026-11-20": first, "2026-11-21": second}
        changed = results.changed("one", sources)
        results.write_days("one", frame(spark, number).drop("day").where(day.isin(changed)), day, sources)
        return results

    begun(1, "old", "old").publish()
    begun(2, "other", "other")  # killed: it does not come to publish
    begun(3, "new", "old").publish()

    found = {(row.run, row.id) for row in result_table(spark, folder, "one").collect()}
    assert found == ({(3, 0), (1, 1)} if fmt == "parquet" else {(3, 0), (3, 1)})


@pytest.mark.parametrize("fmt", ["parquet", "delta"])
@pytest.mark.timeout(300)
def test_a_day_that_a_run_has_no_more_is_in_no_table_of_it(spark, tmp_path, fmt) -> None:
    folder = str(tmp_path / "out")
    day = F.concat(F.lit("2026-11-2"), "id")
    for sources in (
        {"2026-11-20": "one", "2026-11-21": "one"},
        {"2026-11-21": "two"},  # the other day is new
        {"2026-11-20": "one", "2026-11-21": "two"},
        {"2026-11-21": "two"},  # nothing but that a day is gone
    ):
        results = Results.begin(spark, folder, job="test", fmt=fmt)
        results.write_days("one", frame(spark, 1).drop("day"), day, sources)
        results.publish()

        found = {row.id for row in result_table(spark, folder, "one").collect()}
        assert found == {int(each[-1]) for each in sources}
        if fmt == "delta":  # what others see, who know nothing of runs
            ids = {row["id"] for row in DeltaTable(f"{folder}/one-by-day").to_pyarrow_table().to_pylist()}
            assert ids == found


def test_a_table_may_be_whole_in_one_run_and_by_day_in_the_next_which_writes_only_days_that_changed(
    spark, tmp_path
) -> None:
    folder = str(tmp_path / "out")
    for number, by_day in enumerate([(), TABLES, (), TABLES, TABLES], 1):
        run(spark, folder, number, by_day=by_day)
        assert seen(spark, folder) == (str(number), dict.fromkeys(TABLES, {number} if number < 5 else {4, 5}))

    rows = sorted(tuple(row) for row in result_table(spark, folder, "one").collect())

    assert rows == [(4, 1), (5, 0)]  # (run, id): the second day is still the fourth run's
    parts = manifest_of(spark, folder).tables["one"]
    assert {part.path.partition("/")[2] for part in parts.values()} == {
        "one-by-day/day=2026-11-20",
        "one-by-day/day=2026-11-21",
    }


def test_what_is_no_result_and_two_runs_at_once_are_told(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")
    with pytest.raises(InputError, match=r"no run has finished"):
        result_table(spark, folder, "one")
    first = Results.begin(spark, folder, job="test", fmt="parquet")
    run(spark, folder, 1)
    with pytest.raises(InputError, match=r"has no table 'three'; there are: one, two"):
        result_table(spark, folder, "three")
    with pytest.raises(InputError, match="holds results of test"):
        Results.begin(spark, folder, job="other", fmt="parquet")
    with pytest.raises(
        JobError, match=r"--format iceberg needs its runtime in Spark: add it .*docs/spark\.md"
    ):
        Results.begin(spark, folder, job="test", fmt="iceberg")
    with pytest.raises(JobError, match=r"another run wrote to .* at the same time"):
        first.publish()


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

    assert manifest_of(spark, str(tmp_path / "out")) is None
