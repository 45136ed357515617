"""What may be left out, what the command says where it is more, and what runs tell of themselves afterwards."""

import msgspec
import pytest
from typer.testing import CliRunner

from spark_jobs import cli
from spark_jobs.platform.manifest import Manifest, Part, Told, nothing_new
from spark_jobs.reports import runs
from tidemark.__main__ import command_line
from tidemark.analysis.errors import GateClosedError, InputError, JobError
from tidemark.analysis.gates import Limit, check, closed_by, read_limits

NAMES = ("late", "invalid", "lost")


def test_limits_are_numbers_or_shares_and_what_is_beyond_them_is_told():
    limits = read_limits(["late=0", "invalid=0.1%", "lost=2"], NAMES)

    assert limits == {"late": Limit(count=0), "invalid": Limit(share=0.001), "lost": Limit(count=2)}
    gates = dict.fromkeys(NAMES, "read")
    assert closed_by(limits, {"late": 0, "invalid": 10, "lost": 2, "read": 10_000}, gates) == []
    assert closed_by(limits, {"late": 1, "invalid": 11, "lost": None, "read": 10_000}, gates) == [
        "invalid 11 of 10,000, allowed 0.001 of all",
        "late 1, allowed 0",
        "lost not known, allowed 2",
    ]
    assert closed_by({}, {"late": 9, "invalid": 9, "lost": None, "read": 10}, gates) == []
    assert closed_by({"late": Limit(share=0.1)}, {"late": 0.0, "read": 0}, gates) == []
    told = ["late 1 of 9, allowed 0 of all"]
    assert closed_by({"late": Limit(share=0.0)}, {"late": 1.0, "read": 9}, gates) == told
    limits = {"late": Limit(share=0.1), "unknown": Limit(share=0.1)}
    told = {"late": 2, "unknown": 2, "bins": 30, "targets": 10}
    assert closed_by(limits, told, {"late": "targets", "unknown": "bins"}) == [
        "late 2 of 10, allowed 0.1 of all"
    ]


@pytest.mark.parametrize("text", ["late", "late=", "late=-1", "late=many", "late=200%", "lates=0", "=0"])
def test_a_limit_that_is_none_is_told_with_the_names_there_are(text):
    with pytest.raises(InputError, match=rf"--allow is '{text}'; accepted: .* NAME is invalid, late, lost"):
        read_limits([text], NAMES)


def test_a_closed_gate_is_exit_status_3_after_all_is_written(capsys):
    def job():
        check(["late 1, allowed 0"], "out/page.html")

    with pytest.raises(SystemExit) as ended:
        cli.run_command(job, [])

    assert ended.value.code == 3
    assert capsys.readouterr().err == "gate closed: late 1, allowed 0; report: out/page.html\n"
    check([], "out/page.html")
    with pytest.raises(GateClosedError):
        job()


@pytest.mark.parametrize(
    ("before", "batches", "read", "told"),
    [
        (None, 3, 5, ""),
        (
            Told(6, inputs={"log": "log, batches to 3"}, counts={"read": 5}),
            3,
            5,
            "Nothing is new since run 6",
        ),
        (Told(6, inputs={"log": "log, batches to 2"}, counts={"read": 5}), 3, 5, ""),
        (Told(6, inputs={"log": "log, batches to 3"}, counts={"read": 4}), 3, 5, ""),  # began anew meanwhile
        (Told(6), -1, 0, "There was nothing to read yet"),
    ],
)
def test_a_stream_that_read_nothing_says_so(before, batches, read, told):
    last = before and Manifest(6, "k", "a job", "parquet", {}, runs=[before])

    said = nothing_new(last, {"log": f"log, batches to {batches}"}, {"read": read})

    assert said.startswith(told)
    assert bool(said) == bool(told)


@pytest.fixture
def folder(tmp_path):
    """What two runs leave, and half of a third."""
    told = [
        Told(1, 1_763_712_000.0, {"telemetry": "lake/in"}, {"read": 1200, "late": 0}),
        Told(
            2, 1_763_798_400.0, {"telemetry": "lake/in"}, {"read": 1300, "late": 3}, {}, ["late 3, allowed 0"]
        ),
    ]
    for number in (1, 2):
        manifest = Manifest(
            number, "k", "a job", "parquet", {"gauges": {"": Part("a/gauges")}}, {}, told[:number]
        )
        place = tmp_path / "manifest" / "ab"[number % 2] / "part-0.txt"
        place.parent.mkdir(parents=True)
        place.write_bytes(msgspec.json.encode(manifest))
        (place.parent / "_SUCCESS").touch()
    (tmp_path / "manifest" / "a" / "part-1.txt").touch()
    return tmp_path


def test_the_runs_of_a_folder_are_listed_the_newest_first(folder):
    found = CliRunner().invoke(command_line(), ["runs", str(folder), "--json"])
    assert [msgspec.json.decode(line)["run"] for line in found.output.splitlines()] == [2, 1]

    shown = CliRunner().invoke(command_line(), ["runs", str(folder)], env={"COLUMNS": "150"}).output
    assert "2025-11-22 08:00:00" in shown
    assert "late 3, allowed 0" in shown
    assert "read 1,300" in shown
    assert "tables of run 2: gauges" in shown


def test_a_folder_without_a_finished_run_and_one_with_another_file_are_told(tmp_path):
    with pytest.raises(InputError, match="no run has finished"):
        runs.manifest_in(str(tmp_path))
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "x.txt").write_text("{")
    with pytest.raises(JobError, match="no manifest of a run"):
        runs.manifest_in(str(tmp_path))
