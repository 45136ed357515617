"""The backtest through Spark: the same answers as on one machine, whatever the cut, and clear errors."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from pyspark.sql.types import StructType

from scaling.service import registry
from spark_jobs import per_target
from spark_jobs.backtest import job as job_module
from spark_jobs.backtest.job import Settings, run
from spark_jobs.backtest.tasks import RECOMMENDATIONS, SCORES
from spark_jobs.tables.results import result_table
from tests.spark.result_files import read
from tests.support.analysis import CONFIG
from tidemark.analysis.backtest import local
from tidemark.analysis.backtest.analysis import advice
from tidemark.analysis.backtest.candidates.grid import Targets, read_grid
from tidemark.analysis.backtest.page import report_of
from tidemark.analysis.backtest.reading import merged, read_arrivals, read_log
from tidemark.analysis.backtest.replay.score import flat
from tidemark.analysis.errors import CheckFailedError, InputError
from tidemark.analysis.limits import Limit

GRID = """
base = "plan"
idle_utilization = 0.5

[model]
service_rate = 2
slo = "2m"
price = 0.2

[vary]
rules.threshold.scale_out_above = [200, 500]
out.cooldown = ["2m", "10m"]
"""

pytestmark = pytest.mark.usefixtures("without_pictures")


SIX = [f"{minutes}m" for minutes in range(2, 14, 2)]


@pytest.fixture
def given(tmp_path):
    """Two targets with arrivals, one of which has a gap and one bin unknown, and a third with a log only."""
    (tmp_path / "tidemark.toml").write_text(CONFIG)
    (tmp_path / "grid.toml").write_text(GRID)
    arrivals = tmp_path / "arrivals"
    arrivals.mkdir()
    lines = ["t,arrivals,target"]
    for minute in range(500):
        busy = 700 if minute // 90 % 2 else 60
        lines.append(f"{1_800_000_000 + minute * 60},{busy + minute % 7},north")
        if not 300 <= minute < 320:
            value = "" if minute == 450 else busy // 2 + minute % 11
            lines.append(f"{1_800_000_000 + minute * 60},{value},south")
    (arrivals / "counts.csv").write_text("\n".join(lines) + "\n")
    log = tmp_path / "log"
    log.mkdir()
    entries = [entry(minute) for minute in range(450)]
    (log / "log.jsonl").write_text("\n".join([*entries, entries[-1]]) + "\n")
    return tmp_path


def entry(minute):
    failed = minute == 400
    return json.dumps(
        {
            "target": "east",
            "at": 1_800_000_000.0 + minute * 60,
            "kind": "decision",
            "key": "decision",
            "line": "",
            "reason": "collect_failed" if failed else "within_target",
            "current": 2 + minute // 200,
            "desired": 2,
            "metrics": {"backlog": float(max(minute % 120 - 60, 0) * 40)},
        }
    )


def settings(folder: Path, output: str = "out") -> Settings:
    return Settings(
        grid=folder / "grid.toml",
        config=folder / "tidemark.toml",
        arrivals=str(folder / "arrivals"),
        log=str(folder / "log"),
        output=str(folder / output),
    )


def table(path: Path, schema: StructType):
    found = read(path.parent, path.name).to_pylist()
    assert [*found[0]] == schema.fieldNames()
    return sorted(found, key=lambda row: (row["target"], json.dumps(row, sort_keys=True)))


def test_spark_and_one_machine_give_the_same_tables_and_report_and_so_after_a_kill(spark, given, monkeypatch):
    def killed(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "choose", killed)
        with pytest.raises(KeyboardInterrupt):
            run(spark, settings(given))
    with pytest.raises(InputError, match="no run has finished"):
        result_table(spark, str(given / "out"), "scores")

    batches = spark.conf.get(per_target.BATCH_SETTING)
    with pytest.raises(
        CheckFailedError, match="check failed: unknown 23 of 1,449, allowed 0 of all; report: "
    ) as told:
        run(spark, replace(settings(given), allow={"unknown": Limit(share=0.0)}))
    page = str(told.value).rpartition(" ")[2]
    assert spark.conf.get(per_target.BATCH_SETTING) == batches

    plan = read_grid(GRID, name="grid.toml")
    targets = Targets(CONFIG, name="tidemark.toml", settings={}, plug_ins=registry)
    readings = merged(read_arrivals(given / "arrivals"), read_log(given / "log", None))
    analysis, rows = local.backtest(readings, plan, targets, processes=1)
    expected = sorted(map(flat, rows), key=lambda row: (row["target"], json.dumps(row, sort_keys=True)))
    assert table(given / "out/scores", SCORES) == expected
    assert len(expected) == 3 * 5 * 2
    assert table(given / "out/recommendations", RECOMMENDATIONS) == [
        msgspec.structs.asdict(line) for line in advice(analysis)
    ]
    assert Path(page).read_text() == report_of(analysis).html()
    assert any("arrivals are recovered" in note for note in analysis.comparisons["east"].notes)


def test_the_driver_holds_a_few_scores_for_each_target_and_no_history(spark, given, small_driver):
    """8 targets with 181 candidates: what the driver once collected to rank them would not fit."""
    (given / "grid.toml").write_text(
        GRID.replace("[200, 500]", str([*range(200, 1100, 30)])).replace('["2m", "10m"]', str(SIX))
    )
    lines = ["t,arrivals,target"]
    for target in range(8):
        lines += [f"{1_800_000_000 + 60 * n},{n % 7 * 100},t{target:02d}" for n in range(60)]
    (given / "arrivals/counts.csv").write_text("\n".join(lines) + "\n")
    only = replace(settings(given), log=None)

    with small_driver(45):
        run(spark, only)

    scores = result_table(spark, only.output, "scores")
    assert scores.count() == 8 * 181 * 2
    with pytest.raises(Exception, match="maxResultSize"), small_driver(45):
        scores.collect()


def test_the_candidates_of_many_targets_are_built_by_tasks(spark, given, monkeypatch):
    """A thousand targets with 2,400 candidates each would take the driver half an hour, and all of its memory."""
    tables = CONFIG.removeprefix("\nversion = 1\n").replace("%PLAN_ID%", "%ID_plan%")
    each = {"north": 10, "south": 7, "east": 8}.items()
    (given / "tidemark.toml").write_text(
        "version = 1\n"
        + "".join(
            tables.replace("targets.plan", f"targets.{name}")
            .replace("ID_plan", f"ID_{name}")
            .replace("maximum = 12", f"maximum = {most}")
            for name, most in each
        )
    )
    own = GRID.replace('base = "plan"\n', "")
    (given / "grid.toml").write_text(own)
    built = []
    original = Targets.candidates

    def told(self, target, plan, first=0, last=None):
        candidates = original(self, target, plan, first, last)
        built.append(len(candidates))
        return candidates

    with monkeypatch.context() as patch:
        patch.setattr(Targets, "candidates", told)
        run(spark, settings(given))
    assert set(built) == {1}  # what runs and what is recommended, to compare them

    plan = read_grid(own, name="grid.toml")
    text = (given / "tidemark.toml").read_text()
    targets = Targets(text, name="tidemark.toml", settings={}, plug_ins=registry)
    readings = merged(read_arrivals(given / "arrivals"), read_log(given / "log", None))
    _, rows = local.backtest(readings, plan, targets, processes=1)
    expected = sorted(map(flat, rows), key=lambda row: (row["target"], json.dumps(row, sort_keys=True)))
    assert table(given / "out/scores", SCORES) == expected
