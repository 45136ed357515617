"""The profiles of many targets: the figures of one machine, and problems of all told at once."""

import csv
from datetime import timedelta

import pytest

from spark_jobs.errors import InputError
from spark_jobs.seasons.job import Settings, run
from tests.spark.result_files import read
from tests.unit.analysis.seasons.test_seasons import MONDAY, OPTIONS, office
from tidemark.analysis.advise.question import prepare
from tidemark.analysis.backtest.reading import read_arrivals
from tidemark.analysis.seasons import tables
from tidemark.analysis.seasons.profile import profile


def test_spark_tells_the_figures_of_one_machine_and_refuses_what_is_too_short(spark, tmp_path):
    with (tmp_path / "history.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("t", "target", "arrivals"))
        for n in range(3 * 168):
            at = MONDAY + timedelta(hours=n)
            lines.writerow((at.isoformat(), "busy", 3600 * 2 * office(at)))
            lines.writerow((at.isoformat(), "calm", 3600 * office(at)))
    settings = Settings(
        tmp_path / "none.toml",
        OPTIONS,
        arrivals=str(tmp_path / "history.csv"),
        output=str(tmp_path / "out"),
        app_settings={"A": "1"},
    )
    settings.config.write_text("version = 1\n")

    run(spark, settings)

    readings = read_arrivals(tmp_path / "history.csv")
    expected = [
        profile(prepare(name, readings[name], OPTIONS, None), zone="UTC", share=0.5)
        for name in ("busy", "calm")
    ]
    for name in tables.ALL:
        rows = read(settings.output, name).to_pylist()
        assert sorted(rows, key=str) == sorted(
            (row for each in expected for row in tables.rows_of(each)[name]), key=str
        )

    (tmp_path / "history.csv").write_text("t,target,arrivals\n0,one,5\n3600,one,5\n0,two,5\n3600,two,5\n")
    with pytest.raises(InputError, match=r"one: 0 weeks of which half.*two: 0 weeks"):
        run(spark, settings)
