"""Histories by target, through Spark: the figures of one machine, the problems of all targets in one error, and arrivals in every form."""

import csv
import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from spark_jobs import per_target
from spark_jobs.advise import job as advise
from spark_jobs.backtest import job as backtest
from spark_jobs.platform.failures import input_errors
from spark_jobs.seasons import job as seasons
from tests.spark.result_files import read
from tests.spark.test_backtest import GRID
from tests.support.analysis import CONFIG, write_files
from tests.support.analysis import MONDAY as BEGIN
from tests.unit.analysis.backtest.test_backtest import LAYOUT
from tests.unit.analysis.seasons.test_seasons import MONDAY, office
from tests.unit.analysis.seasons.test_seasons import OPTIONS as ONE_SERVED
from tidemark.analysis.advise import local, page
from tidemark.analysis.advise.answered import flat
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.backtest.reading import read_arrivals
from tidemark.analysis.errors import CheckFailedError, InputError
from tidemark.analysis.limits import Limit
from tidemark.analysis.seasons import tables
from tidemark.analysis.seasons.profile import profile
from tidemark.commands.history import files
from tidemark.commands.history.model import Minute

pytestmark = pytest.mark.usefixtures("without_pictures")  # tests/unit/analysis draws them

OPTIONS = Options(price=0.2, wait=30.0)


def settings_of(job, folder, config, **own):
    (folder / "tidemark.toml").write_text(config)
    return job.Settings(
        config=folder / "tidemark.toml",
        arrivals=str(folder / "history.csv"),
        output=str(folder / "out"),
        app_settings={"A": "1"},
        **own,
    )


@pytest.mark.parametrize("drawn", [5, 1])
def test_the_advice_has_the_figures_of_one_machine(spark, tmp_path, monkeypatch, drawn):
    """Of `plan` what an instance serves is estimated, for instances are busy for half an hour."""
    monkeypatch.setattr(page, "DRAWN", drawn)
    rng = random.Random(3)
    lines = ["t,target,arrivals,instances,backlog"]
    for name, times in (("plan", 1), ("other", 2)):
        for n in range(75):
            came = times * (rng.randrange(1000, 1500) if n > 30 else 2800)
            rows = f"{BEGIN + 60 * n:.0f},{name},{came},3,{5000 + 1000 * n if n <= 30 else 0}"
            lines += [rows] if n not in {50, 51} else [f"{BEGIN + 60 * n:.0f},{name},,,"]
    (tmp_path / "history.csv").write_text("\n".join(lines) + "\n")
    settings = settings_of(advise, tmp_path, CONFIG, options=OPTIONS)

    with pytest.raises(CheckFailedError, match="check failed: unknown 4, allowed 3; report: ") as told:
        advise.run(spark, replace(settings, allow={"unknown": Limit(count=3)}))

    targets = local.read_targets(settings.config, {})
    expected = []
    for name, readings in sorted(read_arrivals(tmp_path / "history.csv").items()):
        question = prepare(name, readings, OPTIONS, local.spec_of(name, targets))
        expected += flat(local.advised(question, OPTIONS, targets, processes=1))
    rows = read(settings.output, "advice").to_pylist()
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert "today's policy" in {row["policy"] for row in rows if row["target"] == "plan"}
    assert {row["target"] for row in read(settings.output, "taken").to_pylist()} == {"other", "plan"}
    text = Path(str(told.value).rpartition(" ")[2]).read_text()
    assert "All targets" in text
    assert text.count("What this rests on") == min(drawn, 2)


def test_the_seasons_have_the_figures_of_one_machine(spark, tmp_path):
    with (tmp_path / "history.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("t", "target", "arrivals"))
        for n in range(3 * 168):
            at = MONDAY + timedelta(hours=n)
            lines.writerow((at.isoformat(), "busy", 3600 * 2 * office(at)))
            lines.writerow((at.isoformat(), "calm", 3600 * office(at)))
    settings = settings_of(seasons, tmp_path, "version = 1\n", options=ONE_SERVED)

    seasons.run(spark, settings)

    expected = [
        profile(prepare(name, readings, ONE_SERVED, None), zone="UTC", share=0.5)
        for name, readings in sorted(read_arrivals(tmp_path / "history.csv").items())
    ]
    for name in tables.ALL:
        ours = [row for each in expected for row in tables.rows_of(each)[name]]
        assert sorted(read(settings.output, name).to_pylist(), key=str) == sorted(ours, key=str)


@pytest.mark.parametrize("job", [advise, seasons, backtest], ids=lambda job: job.NAME)
@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (
            "t,arrivals,target\n0,5,west\n0,6,west\n60,1,far\n60,2,far\n",
            r"far: 1 bin given.*west: 1 bin given twice",
        ),
        ("t,arrivals,target\n", "the history is empty"),
        ("when,many\n1,2\n", r"history.csv has no column arrivals: found when, many; accepted are t or at"),
    ],
)
def test_what_is_wrong_with_histories_is_told_of_all_targets_and_nothing_is_written(
    spark, tmp_path, job, history, problem
):
    (tmp_path / "history.csv").write_text(history)
    (tmp_path / "grid.toml").write_text(GRID)
    own = {"grid": tmp_path / "grid.toml"} if job is backtest else {"options": Options(service_rate=1.0)}

    with pytest.raises(InputError, match=problem):
        job.run(spark, settings_of(job, tmp_path, CONFIG, **own))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_a_pulled_history_is_read_as_on_one_machine(spark, tmp_path, ending):
    minutes = {
        30_000_000 + at: Minute(None if at == 5 else at / 2, None if at == 3 else 2) for at in range(9)
    }
    path = tmp_path / f"history.{ending}"
    files.save(path, "plan-orders", "bus/orders", minutes)

    rows = per_target.arrivals_of(spark, str(path)).collect()

    found = [(row.at, row.arrivals, row.instances) for row in sorted(rows, key=lambda row: row.at)]
    assert {row.target for row in rows} == {"plan-orders"}
    assert found == [
        (order.at, order.arrivals, order.instances) for order in read_arrivals(path)["plan-orders"]
    ]
    assert len(found) == 8


def test_each_file_is_read_by_its_own_header_as_on_one_machine(spark, tmp_path):
    folder = write_files(tmp_path / "arrivals", LAYOUT)

    rows = [row.asDict() for row in per_target.arrivals_of(spark, str(folder)).collect()]

    assert sorted(
        (row["target"], row["at"], row["arrivals"], (row["metrics"] or {}).get("backlog"), row["instances"])
        for row in rows
    ) == sorted(
        (target, reading.at, reading.arrivals, reading.backlog, reading.instances)
        for target, readings in read_arrivals(folder).items()
        for reading in readings
    )
    (folder / "bad.csv").write_text("t,arrivals\nsoon,5\n")
    with pytest.raises(InputError, match=r"bad\.csv, line 2, column t: found 'soon'"), input_errors():
        per_target.arrivals_of(spark, str(folder)).collect()
    with pytest.raises(InputError, match=r"none.* cannot be read"):
        per_target.arrivals_of(spark, str(tmp_path / "none"))
