"""What may be left out, what the command reports where it is more, and how runs are listed afterwards."""

import msgspec
import pytest
from typer.testing import CliRunner

from spark_jobs import cli
from spark_jobs.reports import runs
from spark_jobs.tables import delta_log
from spark_jobs.tables.runs import Run, nothing_new
from tidemark.__main__ import command_line
from tidemark.analysis.errors import CheckFailedError, InputError
from tidemark.analysis.limits import Limit, exceeded_limits, raise_for_failures, read_limits

NAMES = ("late", "invalid", "lost")


def test_limits_are_numbers_or_shares_and_what_is_beyond_them_is_told():
    limits = read_limits(["late=0", "invalid=0.1%", "lost=2"], NAMES)

    assert limits == {"late": Limit(count=0), "invalid": Limit(share=0.001), "lost": Limit(count=2)}
    limited = dict.fromkeys(NAMES, "read")
    assert exceeded_limits(limits, {"late": 0, "invalid": 10, "lost": 2, "read": 10_000}, limited) == []
    assert exceeded_limits(limits, {"late": 1, "invalid": 11, "lost": None, "read": 10_000}, limited) == [
        "invalid 11 of 10,000, allowed 0.001 of all",
        "late 1, allowed 0",
        "lost not known, allowed 2",
    ]
    assert exceeded_limits({}, {"late": 9, "invalid": 9, "lost": None, "read": 10}, limited) == []
    assert exceeded_limits({"late": Limit(share=0.1)}, {"late": 0.0, "read": 0}, limited) == []
    told = ["late 1 of 9, allowed 0 of all"]
    assert exceeded_limits({"late": Limit(share=0.0)}, {"late": 1.0, "read": 9}, limited) == told
    limits = {"late": Limit(share=0.1), "unknown": Limit(share=0.1)}
    told = {"late": 2, "unknown": 2, "bins": 30, "targets": 10}
    assert exceeded_limits(limits, told, {"late": "targets", "unknown": "bins"}) == [
        "late 2 of 10, allowed 0.1 of all"
    ]


@pytest.mark.parametrize("text", ["late", "late=", "late=-1", "late=many", "late=200%", "lates=0", "=0"])
def test_a_limit_that_is_none_is_told_with_the_names_there_are(text):
    with pytest.raises(InputError, match=rf"--allow is '{text}'; accepted: .* NAME is invalid, late, lost"):
        read_limits([text], NAMES)


def test_a_failed_check_is_exit_status_3_after_all_is_written(capsys):
    def job():
        raise_for_failures(["late 1, allowed 0"], "out/page.html")

    with pytest.raises(SystemExit) as ended:
        cli.run_command(job, [])

    assert ended.value.code == 3
    assert capsys.readouterr().err == "check failed: late 1, allowed 0; report: out/page.html\n"
    raise_for_failures([], "out/page.html")
    with pytest.raises(CheckFailedError):
        job()


@pytest.mark.parametrize(
    ("before", "batches", "read", "told"),
    [
        (None, 3, 5, ""),
        (
            Run(6, inputs={"log": "log, batches to 3"}, counts={"read": 5}),
            3,
            5,
            "Nothing is new since run 6",
        ),
        (Run(6, inputs={"log": "log, batches to 2"}, counts={"read": 5}), 3, 5, ""),
        (Run(6, inputs={"log": "log, batches to 3"}, counts={"read": 4}), 3, 5, ""),  # began anew meanwhile
        (Run(6), -1, 0, "There was nothing to read yet"),
    ],
)
def test_a_stream_that_read_nothing_says_so(before, batches, read, told):
    said = nothing_new(before, {"log": f"log, batches to {batches}"}, {"read": read})

    assert said.startswith(told)
    assert bool(said) == bool(told)


def test_a_row_written_before_the_column_was_renamed_keeps_its_failures():
    row = Run(1, failures=["late 3, allowed 0"]).row()
    assert Run.of(row) == Run.of({"closed": row.pop("failures"), **row})


@pytest.fixture
def folder(tmp_path):
    """What two runs leave."""
    first = Run(1, "a", 1_763_712_000.0, "a job", {"telemetry": "lake/in"}, {"read": 1200.0, "late": 0.0})
    counts = {"read": 1300.0, "late": 3.0}
    failures = ["late 3, allowed 0"]
    second = Run(2, "b", 1_763_798_400.0, "a job", first.inputs, counts, {}, failures, versions={"gauges": 4})
    delta_log.make_runs(str(tmp_path))
    for known in ([first], [first, second]):
        assert delta_log.publish(str(tmp_path), known)
    assert delta_log.read_runs(str(tmp_path)) == [first, second]
    return tmp_path


def test_the_runs_of_a_folder_are_listed_the_newest_first(folder):
    found = CliRunner().invoke(command_line(), ["runs", str(folder), "--json"])
    assert [msgspec.json.decode(line)["run"] for line in found.output.splitlines()] == [2, 1]

    shown = CliRunner().invoke(command_line(), ["runs", str(folder)], env={"COLUMNS": "150"}).output
    assert "2025-11-22 08:00:00" in shown
    assert "late 3, allowed 0" in shown
    assert "read 1,300" in shown
    assert "tables of run 2: gauges" in shown


def test_a_folder_without_a_finished_run_is_told(tmp_path):
    for _ in range(2):  # without a table of runs, and with one that has no row yet
        with pytest.raises(InputError, match="no run has finished"):
            runs.runs_in(str(tmp_path))
        delta_log.make_runs(str(tmp_path))


def test_of_more_runs_than_a_hundred_the_newest_are_kept(tmp_path):
    delta_log.make_runs(str(tmp_path))

    assert delta_log.publish(str(tmp_path), [Run(number, str(number)) for number in range(1, 121)])

    assert [each.run for each in delta_log.read_runs(str(tmp_path))] == [*range(21, 121)]
