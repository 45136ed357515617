"""The advice over many targets: the figures of `tidemark advise` for each of them, and problems of all told at once."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.advise.job import Settings, run
from spark_jobs.errors import GateClosedError, InputError
from tests.spark.result_files import read
from tests.unit.analysis.advise.test_advise_question import CONFIG, MONDAY
from tidemark.analysis.advise import local, page
from tidemark.analysis.advise.answered import flat
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.gates import Limit

OPTIONS = Options(price=0.2, wait=30.0)


@pytest.fixture
def folder(tmp_path):
    """Two targets: of `plan` what an instance serves is estimated, for instances are busy for half an hour."""
    (tmp_path / "tidemark.toml").write_text(CONFIG)
    rng = random.Random(3)
    lines = ["t,target,arrivals,instances,backlog"]
    for name, times in (("plan", 1), ("other", 2)):
        for n in range(180):
            came = times * (rng.randrange(1000, 1500) if n > 30 else 2800)
            rows = f"{MONDAY + 60 * n:.0f},{name},{came},3,{5000 + 1000 * n if n <= 30 else 0}"
            lines += [rows] if n not in {100, 101} else [f"{MONDAY + 60 * n:.0f},{name},,,"]
    (tmp_path / "history.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("drawn", [5, 1])
def test_spark_tells_the_figures_of_one_machine(spark, folder, monkeypatch, drawn):
    monkeypatch.setattr(page, "DRAWN", drawn)
    settings = Settings(
        folder / "tidemark.toml", OPTIONS, str(folder / "history.csv"), output=str(folder / "out")
    )
    with pytest.raises(GateClosedError, match="gate closed: unknown 4, allowed 3; report: ") as told:
        run(spark, replace(settings, allow={"unknown": Limit(count=3)}))
    report = str(told.value).rpartition(" ")[2]
    rows = read(settings.output, "advice").to_pylist()

    targets = local.read_targets(settings.config, {})
    readings = local.read_history(folder / "history.csv", None, None)
    expected = []
    for name in sorted(readings):
        question = prepare(name, readings[name], OPTIONS, local.spec_of(name, targets))
        expected += flat(local.advised(question, OPTIONS, targets, processes=1))
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert {row["target"] for row in rows} == {"other", "plan"}
    assert "today's policy" in {row["policy"] for row in rows if row["target"] == "plan"}
    taken = read(settings.output, "taken").to_pylist()
    assert {row["target"] for row in taken} == {"other", "plan"}
    text = Path(report).read_text()
    assert "All targets" in text
    assert text.count("What this rests on") == min(drawn, 2)


def test_targets_that_cannot_be_replayed_are_all_named(spark, folder):
    (folder / "history.csv").write_text("t,target,arrivals\n0,one,5\n60,one,5\n0,two,5\n60,two,5\n")
    settings = Settings(
        folder / "tidemark.toml", OPTIONS, str(folder / "history.csv"), output=str(folder / "out")
    )

    with pytest.raises(InputError, match=r"one: .*--service-rate.*two: "):
        run(spark, settings)
    (folder / "history.csv").write_text("t,target,arrivals\n")
    with pytest.raises(InputError, match="the history is empty"):
        run(spark, settings)
