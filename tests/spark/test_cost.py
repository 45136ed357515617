"""The costs through Spark: the figures of one machine, of files in every shape, and a check that fails after all is written."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from scaling.log_entry import LogEntry, LogKind, ShadowSaid
from spark_jobs.cost.job import Settings, read_charges, run
from tests.spark.result_files import read, runs
from tests.support.analysis import write_files
from tests.unit.analysis.cost.test_costs import (
    CLASSIC,
    FOCUS,
    HALVES,
    PLAN,
    START,
    WANTED,
    manifest,
)
from tidemark.analysis.cost import tables
from tidemark.analysis.cost.files import export_files, read_export
from tidemark.analysis.cost.local import accounts_of, read_seen
from tidemark.analysis.cost.targets import Options, billed_targets, resources_of
from tidemark.analysis.errors import CheckFailedError, InputError
from tidemark.analysis.limits import Limit

pytestmark = pytest.mark.usefixtures("without_pictures")  # tests/unit/analysis/cost draws them

OPTIONS = Options({"orders": PLAN}, {}, frozenset({"db"}), used="used", hold=4 * 3600.0)
"""The database's charges are nobody's: which resource it is, is not said."""


@pytest.fixture
def folder(tmp_path):
    costs = tmp_path / "costs"
    costs.mkdir()
    (costs / "focus.csv").write_text(FOCUS)
    (costs / "classic.csv").write_text(CLASSIC.replace("01/0", "01/1"))
    entries = []
    for n in range(20):
        at, shadow = START + 3 * 3600.0 * n, ShadowSaid(1, 1, 1, "", "")
        capacity = 2 + n // 9
        entries.append(
            LogEntry("orders", at, LogKind.DECISION, "d", f"line {n}", "why", capacity, 3, shadow=shadow)
        )
        entries.append(
            LogEntry("db", at, LogKind.DECISION, "d", "", "", 1000 * capacity, metrics={"used": 150.0 * n})
        )
    entries.append(LogEntry("other", START, LogKind.CONTROL, "c", "", ""))
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "log.jsonl").write_bytes(msgspec.json.Encoder().encode_lines([*entries, entries[3]]))
    return tmp_path


def settings_of(folder):
    costs, log, output = (str(folder / name) for name in ("costs", "log", "out"))
    return Settings(costs=costs, log=log, options=OPTIONS, output=output, app_settings={})


def test_spark_reports_the_figures_of_one_machine_and_then_fails_its_check(spark, folder):
    settings = settings_of(folder)
    with pytest.raises(CheckFailedError, match="check failed: unpriced 1, allowed 0; report: ") as told:
        run(spark, replace(settings, allow={"unpriced": Limit(count=0)}))
    assert "orders" in Path(str(told.value).rpartition(" ")[2]).read_text()

    billed = billed_targets(None, {}, OPTIONS)
    charges = [
        charge
        for file in export_files(folder / "costs")[0]
        for charge in read_export(file, Path(file).read_bytes(), resources_of(billed), None)
    ]
    seen = read_seen(folder / "log", None, None)
    expected = [tables.rows_of(account) for account in accounts_of(seen, charges, billed, OPTIONS)]
    assert len(expected) == 2  # nothing tells a capacity of the other
    assert expected[1]["targets"][0]["money"] is not None
    assert expected[0]["hours"][-1]["autoscale_unit_hours"] > 0
    for name in tables.ALL:
        ours = [row for each in expected for row in each[name]]
        assert sorted(read(settings.output, name).to_pylist(), key=str) == sorted(ours, key=str)


def test_what_is_no_export_or_there_twice_is_told_by_its_file(spark, folder):
    settings = settings_of(folder)
    (folder / "costs" / "focus.csv").write_text(json.dumps({"a": 1}))

    with pytest.raises(InputError, match=r"focus\.csv is no cost export"):
        run(spark, settings)
    with pytest.raises(InputError, match=r"--costs '.*none' cannot be read"):
        run(spark, replace(settings, costs=str(folder / "none")))
    month = "20260101-20260131"
    parts = {f"{month}/aa/{n}.csv": half for n, half in enumerate(HALVES)}
    parts |= {f"{month}/bb/1.csv": FOCUS, f"{month}/aa/manifest.json": manifest("0.csv", "1.csv")}
    kept = read_charges(spark, str(write_files(folder / "parts", parts)), WANTED, None)
    assert sorted(row["amount"] for row in kept.collect()) == [-2.0, 0.96, 4.8]
    (folder / "costs" / "focus.csv").write_text(FOCUS)
    (folder / "costs" / "copy.CSV").write_text(FOCUS)
    with pytest.raises(
        InputError, match=r"twice, in file:.*copy\.CSV and in file:.*focus\.csv: exports of two"
    ):
        run(spark, settings)


def test_an_option_about_a_target_that_nobody_knows_is_refused_before_anything_is_written(spark, folder):
    settings = replace(settings_of(folder), options=structs.replace(OPTIONS, prices={"odrers": 0.2}))

    with pytest.raises(InputError, match="--price names the target 'odrers'; known are db, orders"):
        run(spark, settings)

    assert runs(settings.output) == []
