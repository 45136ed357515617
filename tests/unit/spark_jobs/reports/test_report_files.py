"""Where a report goes in sessions that have no Java to talk to."""

from pathlib import Path

import fsspec
import pytest
from pyspark.errors import PySparkAttributeError

from spark_jobs.platform.classic import copy_with_spark, is_classic, running_tasks
from spark_jobs.reports import report_files
from spark_jobs.reports.report_files import write_report
from spark_jobs.sources.files.input_files import mounted
from tidemark.analysis.cli import SUMMARIES
from tidemark.analysis.report import Report


class ConnectSession:
    """As a session of Spark Connect answers: these attributes are errors."""

    def __getattr__(self, name):
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name}
        )


@pytest.fixture
def session(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report_files, "local_folder", lambda _spark, _folder: None)
    monkeypatch.setattr(report_files, "qualified", lambda _spark, folder: folder)
    return ConnectSession()


def report():
    made = Report("A page")
    made.text("what it says")
    return made


def test_what_only_a_classic_session_has_is_missing_and_not_an_error(session, tmp_path):
    assert (is_classic(session), running_tasks(session)) == (False, "")
    assert not copy_with_spark(session, tmp_path / "x", "lake://x")


def test_the_page_is_written_by_python_where_spark_cannot(session):
    assert write_report(session, report, "memory://reports/out") == "memory://reports/out/a-page.html"
    assert b"what it says" in fsspec.filesystem("memory").cat_file("/reports/out/a-page.html")


def test_a_page_that_cannot_be_put_there_is_kept_here_and_that_is_said(session, tmp_path, capsys):
    kept = write_report(session, report, "nofs://reports/out")

    assert "what it says" in (tmp_path / kept).read_text()
    told = capsys.readouterr().err
    assert "the report is not in nofs://reports/out: 'nofs://reports/out' cannot be opened" in told
    assert kept in told


class RefusedError(Exception):
    """As the SDKs of data lakes raise: of no built-in kind."""


def test_a_file_system_may_refuse_with_any_error(session, tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise RefusedError("AuthorizationPermissionMismatch")

    monkeypatch.setattr(report_files, "copy_with_spark", refuse)

    kept = write_report(session, report, "memory://reports/out")

    assert "what it says" in (tmp_path / kept).read_text()
    assert (
        "the report is not in memory://reports/out: AuthorizationPermissionMismatch"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("dbfs:/Volumes/main/a/b", "/Volumes/main/a/b"),
        ("dbfs:/out", "/dbfs/out"),
        ("dbfs:///out", "/dbfs/out"),
        ("file:/data/out", "file:/data/out"),
        ("/data/out", "/data/out"),
    ],
)
def test_files_of_databricks_are_opened_where_it_shows_them(url, path):
    assert mounted(url) == path


@pytest.mark.parametrize("error", [OverflowError("too\n large"), MemoryError(), RefusedError("no font")])
def test_a_page_that_cannot_be_made_costs_no_result_and_that_is_said(session, capsys, error):
    def make():
        raise error

    assert write_report(session, make, "memory://reports/none") == "memory://reports/none"
    told = " ".join(capsys.readouterr().err.split())
    assert f"there is no page of this run ({type(error).__name__}: " in told
    assert told.endswith("its tables in memory://reports/none are complete")


@pytest.mark.parametrize("place", ["local_folder", "is_pythons", "qualified"])
def test_nor_does_a_folder_that_nobody_can_look_at(session, monkeypatch, place):
    def refused(*_):
        raise RefusedError

    monkeypatch.setattr(report_files, place, refused)

    assert write_report(session, report, "memory://reports/none") == "memory://reports/none"


def test_each_command_without_spark_makes_its_page_where_its_failure_costs_nothing():
    """`write_page` and `page_or_reason` alone make pages: after the tables, and whatever fails is a line."""
    root = Path(__file__).parents[4]
    modules = [root / "tidemark" / "analysis" / name / "local.py" for name in sorted(SUMMARIES)]
    assert [path.read_text().count("    finish(\n") for path in modules] == [1] * len(modules)
    modules.append(root / "spark_jobs" / "telemetry_aggregation" / "local.py")
    assert modules[-1].read_text().count("page_or_reason(") == 1
    for path in modules:
        assert ".write(output)" not in path.read_text().replace(
            "lambda report: str(report.write(output))", ""
        )
