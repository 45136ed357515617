"""`tidemark spark`: its list needs no Spark, its errors are one line."""

import json
import subprocess
import sys
import types
from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer
from pyspark.errors import PySparkException

from spark_jobs import cli
from spark_jobs.frame import JobOptions
from spark_jobs.telemetry_aggregation import inputs
from tidemark.analysis import option_values
from tidemark.analysis.errors import InputError
from tidemark.analysis.options import app_settings, with_groups
from tidemark.foundation.version import install_hint

HIDDEN = """
import sys
for name in ("pyspark", "pandas", "matplotlib", "pyarrow"):
    sys.modules[name] = None
sys.argv = ["tidemark", *sys.argv[1:]]
from tidemark.__main__ import main
main()
"""


def tidemark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where none of the jobs' libraries is installed."""
    argv = [sys.executable, "-c", HIDDEN, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_jobs_are_listed_and_named_as_missing_without_their_libraries() -> None:
    listed = tidemark("spark", "--help")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in cli.JOBS)

    asked = tidemark("spark", "telemetry-aggregation", "--help")
    assert asked.returncode == 1
    assert asked.stderr.strip() == (
        f"error: 'telemetry-aggregation' needs the package 'pyspark': {install_hint('spark')}"
    )


def test_every_job_has_a_summary() -> None:
    assert list(cli.JOBS) == list(cli.SUMMARIES)


def run(monkeypatch, command, *arguments: str) -> int:
    """Exit status of `spark sampling-report` whose command is replaced."""
    monkeypatch.setitem(sys.modules, cli.JOBS["sampling-report"], types.SimpleNamespace(command=command))
    with pytest.raises(SystemExit) as ended:
        cli.app(["sampling-report", *arguments])
    return ended.value.code


def test_options_reach_the_job_and_its_exit_status_comes_back(monkeypatch, capsys) -> None:
    @with_groups
    def command(*, job: JobOptions, flag: bool = False) -> None:
        """Does this."""
        typer.echo(f"{job.output} {job.cores} {flag}")
        raise typer.Exit(3)

    assert run(monkeypatch, command, "--output", "there", "--cores", "2", "--flag") == 3
    assert capsys.readouterr().out == "there 2 True\n"
    assert run(monkeypatch, command, "--help") == 0
    assert "Does this." in capsys.readouterr().out
    assert run(monkeypatch, command, "--no-such") == 2


def test_a_job_error_is_one_line_and_status_1(monkeypatch, capsys) -> None:
    def command() -> None:
        raise InputError("--metrics x: not there; accepted: Parquet")

    assert run(monkeypatch, command) == 1
    assert capsys.readouterr().err == "error: --metrics x: not there; accepted: Parquet\n"


def test_an_input_error_of_a_task_is_one_line_and_status_1_and_other_errors_of_spark_are_themselves(
    monkeypatch, capsys
) -> None:
    def fail_with(text):
        def command() -> None:
            raise PySparkException(text)

        return command

    trace = "Traceback (most recent call last):\n  ...\ntidemark.analysis.errors.InputError: a.avro: it is cut off\n\n at org"
    assert run(monkeypatch, fail_with(trace)) == 1
    assert capsys.readouterr().err == "error: a.avro: it is cut off\n"
    with pytest.raises(PySparkException, match="no space left"):
        run(monkeypatch, fail_with("no space left"))


def test_a_format_comes_from_the_environment_where_no_option_names_it(monkeypatch, capsys) -> None:
    @with_groups
    def command(*, job: JobOptions) -> None:
        typer.echo(job.format_)

    monkeypatch.setenv("TIDEMARK_SPARK_FORMAT", "delta")
    run(monkeypatch, command)
    run(monkeypatch, command, "--format", "parquet")
    assert capsys.readouterr().out == "delta\nparquet\n"


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert option_values.moment("--from", None) is None
    at = datetime(2026, 3, 1, 3, 20, tzinfo=timezone(timedelta(hours=5)))  # in UTC it is still February
    assert option_values.moment("--to", "today", at) == datetime(2026, 2, 28, tzinfo=UTC)
    assert option_values.moment("--from", "yesterday", at) == datetime(2026, 2, 27, tzinfo=UTC)
    assert option_values.moment("--from", "2026-11-21") == datetime(2026, 11, 21, tzinfo=UTC)
    assert option_values.moment("--to", "2026-11-21T08:00:00Z") == datetime(2026, 11, 21, 8, tzinfo=UTC)
    east = option_values.moment("--to", "2026-11-21T08:00:00+02:00")
    assert east == datetime(2026, 11, 21, 8, tzinfo=timezone(timedelta(hours=2)))
    with pytest.raises(InputError, match="--from is 'noon'; accepted: ISO 8601"):
        option_values.moment("--from", "noon")


def test_the_apps_settings_come_from_the_root_and_the_environment_wins(tmp_path, monkeypatch):
    values = {"IsEncrypted": False, "Values": {"LogStorage": "of the file", "TIDEMARK_X": "of the file"}}
    (tmp_path / "local.settings.json").write_text(json.dumps(values))
    monkeypatch.setenv("TIDEMARK_X", "of the environment")

    found = app_settings(tmp_path)
    assert (found["LogStorage"], found["TIDEMARK_X"]) == ("of the file", "of the environment")

    (tmp_path / "local.settings.json").write_text("{")
    with pytest.raises(InputError, match=r"local\.settings\.json"):
        app_settings(tmp_path)


def test_the_scaling_logs_table_is_looked_up_in_the_settings_of_the_job(monkeypatch):
    given = []
    monkeypatch.setattr(
        "spark_jobs.sources.records.telemetry.read_decisions",
        lambda *_, settings, **__: given.append(settings),
    )

    inputs.read(
        None, "decisions", inputs.Inputs(decisions="table://LogStorage", settings={"LogStorage": "x"})
    )

    assert given == [{"LogStorage": "x"}]
    assert "LogStorage" not in repr(inputs.Inputs(settings={"LogStorage": "secret"}))
