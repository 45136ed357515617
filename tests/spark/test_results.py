"""The tables of a run appear together, whatever stops it, and wherever Spark's default file system is."""

import itertools

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from spark_jobs.errors import InputError, JobError
from spark_jobs.platform import results as module
from spark_jobs.platform.results import Results, manifest_of, result_table

TABLES = ("one", "two")


class Killed(BaseException):
    """Not an Exception: nobody may catch it on the way."""


def frame(spark, number):
    return spark.range(2).select(
        F.lit(number).alias("run"), F.concat(F.lit("2026-11-2"), "id").alias("day"), "id"
    )


def run(spark, folder, number, *, fmt="parquet", by_day=False):
    results = Results.begin(spark, folder, job="test", fmt=fmt, about={"number": str(number)})
    for name in TABLES:
        if by_day:
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
    tables = {name: {row.run for row in result_table(spark, folder, name).collect()} for name in TABLES}
    return manifest.about["number"], tables


def killed_at(monkeypatch, step):
    """The `step`-th write is the last thing that happens: not begun, torn (only the old is gone), or done."""
    steps = itertools.count()
    at, how = divmod(step, 3)

    def breaking(write):
        def broken(given, *arguments, **options):
            if next(steps) != at:
                return write(given, *arguments, **options)
            if how == 1 and write is module_write_table and options.get("fmt") != "delta":
                write(given.limit(0), *arguments, **options)
            if how == 1 and write is module_write_line:
                given.createDataFrame([], "value string").write.mode("overwrite").text(arguments[1])
            if how == 2:
                write(given, *arguments, **options)
            raise Killed

        return broken

    module_write_table, module_write_line = module.write_table, module.write_line
    monkeypatch.setattr(module, "write_table", breaking(module_write_table))
    monkeypatch.setattr(module, "write_line", breaking(module_write_line))


@pytest.mark.parametrize(("fmt", "by_day"), [("parquet", False), ("parquet", True), ("delta", True)])
@pytest.mark.timeout(600)
def test_a_run_killed_at_any_step_leaves_the_last_one_and_never_a_mix(
    spark, tmp_path, monkeypatch, fmt, by_day
) -> None:
    """Nine ways to die in three writes, twice: before anything had finished, and over what had."""
    folder = str(tmp_path / "out")
    last = None
    # The run that wrote the day whose sources are the same: in a Delta table, killed runs wrote over the ninth's.
    kept = 18 if fmt == "delta" else 9
    for number, step in enumerate([*range(9), *range(9)], 1):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            killed_at(patched, step)
            run(spark, folder, number, fmt=fmt, by_day=by_day)
        if step == 8:  # the manifest was the last thing to be done
            last = str(number), dict.fromkeys(TABLES, {number, min(kept, number)} if by_day else {number})
        assert seen(spark, folder) == last
    run(spark, folder, 19, fmt=fmt, by_day=by_day)
    assert seen(spark, folder) == ("19", dict.fromkeys(TABLES, {19, kept} if by_day else {19}))


def test_only_days_made_of_something_else_are_written_again(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")
    for number in (1, 2, 3):
        run(spark, folder, number, by_day=True)

    rows = sorted(tuple(row) for row in result_table(spark, folder, "one").collect())

    assert rows == [(1, 1), (3, 0)]  # (run, id): the second day is still the first run's
    parts = manifest_of(spark, folder).tables["one"]
    assert {part.path.partition("/")[2] for part in parts.values()} == {
        "one-by-day/day=2026-11-20",
        "one-by-day/day=2026-11-21",
    }


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


def test_a_table_may_be_whole_in_one_run_and_by_day_in_the_next(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")
    for number, by_day in enumerate((False, True, False, True, True), 1):
        run(spark, folder, number, by_day=by_day)
        assert seen(spark, folder) == (str(number), dict.fromkeys(TABLES, {number} if number < 5 else {4, 5}))


def test_two_runs_at_once_are_told(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")
    first = Results.begin(spark, folder, job="test", fmt="parquet")
    run(spark, folder, 1)

    with pytest.raises(JobError, match=r"another run wrote to .* at the same time"):
        first.publish()


def test_what_is_no_result_is_told(spark, tmp_path) -> None:
    folder = str(tmp_path / "out")
    with pytest.raises(InputError, match=r"no run has finished"):
        result_table(spark, folder, "one")
    run(spark, folder, 1)
    with pytest.raises(InputError, match=r"has no table 'three'; there are: one, two"):
        result_table(spark, folder, "three")
    with pytest.raises(InputError, match="holds results of test"):
        Results.begin(spark, folder, job="other", fmt="parquet")
