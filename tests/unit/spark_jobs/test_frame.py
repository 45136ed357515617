"""How a run ends, for all eight jobs: counted, published, then the page, then the check."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs import frame
from spark_jobs.cli import JOBS
from spark_jobs.frame import AppJobOptions, JobOptions, JobSettings, finish
from spark_jobs.platform.user_code import code_digest
from tidemark.analysis.errors import CheckFailedError, InputError, JobError
from tidemark.analysis.limits import Limit, RowCount
from tidemark.analysis.report import Report

ROOT = Path(__file__).parents[3]
DAY = datetime(2026, 11, 21, tzinfo=UTC)


class Run:
    """A run whose steps are noted in their order."""

    def __init__(self, monkeypatch, page):
        self.steps, self.told, self._page = [], {}, page
        monkeypatch.setattr(frame, "write_report", self.write_report)
        monkeypatch.setattr(frame, "set_aside", lambda _spark, quarantine: quarantine and 5)

    def tell(self, **told):
        self.steps.append("told")
        self.told = told

    def publish(self):
        self.steps.append("published")

    keeps_runs = True

    def export_note(self):
        return "beside this page"

    def export(self):
        self.steps.append("exported")

    def vacuum(self, keep):
        self.steps.append(f"kept for {keep:.0f} s")

    def write_report(self, _spark, make, folder):
        self.steps.append("page")
        self.report = make()
        return f"{folder}/{self.report.title}"

    def end(self, *, rows=(), findings=(), **settings):
        return finish(
            None,
            self,
            JobSettings(output="out", since=DAY, **settings),
            self._page,
            rows=rows,
            inputs={"in": "a"},
            counts={"read": 10, "late": 2},
            limited={"late": "read", "quarantined": "read"},
            asked={"mode": "create"},
            findings=findings,
        )


@pytest.fixture
def run(monkeypatch):
    return Run(monkeypatch, lambda: Report("page"))


def test_results_are_published_before_their_page_and_both_before_the_check_fails(run):
    assert run.end(quarantine="aside") == "out/page"
    assert run.steps == ["told", "published", "page", "kept for 604800 s"]
    assert run.told == {
        "inputs": {"in": "a"},
        "counts": {"read": 10, "late": 2, "quarantined": 5},
        "settings": {"from": DAY, "to": None, "mode": "create"},
        "failures": [],
    }

    with pytest.raises(CheckFailedError, match="check failed: late 2, allowed 1; report: out/page"):
        run.end(allow={"late": Limit(count=1)}, fmt="parquet", keep=3600.0)
    assert run.steps[4:] == ["told", "published", "page", "exported", "kept for 3600 s"]
    assert "beside this page" in run.report.html()
    assert run.told["failures"] == ["late 2, allowed 1"]


def test_a_page_names_no_list_of_runs_where_none_is_kept(run):
    def page():
        report = Report("page")
        report.next_step("more", "tidemark", "runs", "out")
        report.next_step("costs", "tidemark", "spark", "cost")
        return report

    run._page = page
    for keeps, named in ((True, 2), (False, 1)):
        run.keeps_runs = keeps
        run.end()
        assert len(run.report.next_steps) == named


def test_findings_are_kept_with_the_run_and_left_to_the_job(run):
    assert run.end(findings=["7 lost"], allow={"late": Limit(count=1)}) == "out/page"
    assert run.told["failures"] == ["7 lost", "late 2, allowed 1"]


def test_a_row_in_no_count_ends_the_run_before_anything_is_published(run):
    whole, lost = RowCount("--log", 3, {"kept": 2, "ahead": 1}), RowCount("--costs", 3, {"joined": 2})

    with pytest.raises(
        JobError, match=r"--costs: 3 rows were read, and the counts are of 2 .*: nothing is published"
    ):
        run.end(rows=[whole, lost])
    assert run.steps == []


@pytest.mark.parametrize("job", sorted(JOBS.values()))
def test_every_job_ends_by_the_frame_alone(job):
    """So what holds of `finish` holds of them."""
    text = (ROOT / f"{job.replace('.', '/')}.py").read_text()

    assert text.count("return finish(\n") == 1
    assert not [each for each in ("write_report", ".publish()", ".tell(", "exceeded_limits") if each in text]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"fmt": "csv"}, "--format .* is 'csv'"),
        ({"since": DAY, "until": DAY}, "--to .* must be after --from"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(settings, problem):
    with pytest.raises(InputError, match=problem):
        JobSettings(**settings)


def test_options_are_read_into_the_settings(tmp_path):
    given = JobOptions(since="2026-11-21", output=None, allow=["late=1"], quarantine="aside").read(
        "cost", {"late": "read"}
    )

    assert JobSettings(**given) == JobSettings(
        output="spark-output/cost", quarantine="aside", since=DAY, allow={"late": Limit(count=1)}
    )
    assert JobSettings(**AppJobOptions(root=tmp_path).read("cost", ())).other_root == str(tmp_path)
    assert JobSettings(**AppJobOptions().read("cost", ())).other_root is None
    with pytest.raises(InputError, match="--allow is 'lat=1'"):
        JobOptions(allow=["lat=1"]).read("cost", {"late": "read"})


def test_the_code_of_a_transform_beside_the_settings_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command `tidemark` has no working directory on it
    (tmp_path / "beside_settings.py").write_text("def f(document, event):\n    return document\n")
    assert code_digest("beside_settings:f") == ""

    AppJobOptions(root=tmp_path).read("backfill", ())

    assert code_digest("beside_settings:f")
