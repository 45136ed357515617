"""The data of `make demo-spark`, and the process that runs jobs for a demo."""

import asyncio
import io
import json
import sys
import time
import types
from collections import Counter, defaultdict
from pathlib import Path

import fastavro
import msgspec
import pytest
import typer
from rich.console import Console

from devstack.demo.spark import child as spark_child
from devstack.demo.spark import jobs as demo_jobs
from devstack.demo.spark import large as demo_spark
from devstack.demo.spark import large_data as demo_spark_data
from devstack.demo.spark.child import NEXT, JobCall, JobResult, run_jobs
from devstack.demo.spark.jobs import JobsDone, beside, collect, prepare, run_over, show
from devstack.processes.child import ProcessError
from devstack.setup import environment
from devstack.stack.supervisor import ROOT
from spark_jobs import cli
from spark_jobs.sources.records.telemetry_rows import telemetry_row
from tidemark.analysis.backtest.local import read_settings
from tidemark.analysis.backtest.reading import read_arrivals
from tidemark.analysis.errors import InputError, JobError
from tidemark.analysis.report import Report


def test_captured_flights_are_three_updates_each_in_order_and_files_that_cannot_be_read(tmp_path):
    made = demo_spark_data.capture(tmp_path, 0.003)

    numbers, updates, unread = defaultdict(list), defaultdict(list), 0
    for file in sorted(tmp_path.rglob("*.avro"), key=lambda file: file.stat().st_mtime_ns):
        partition = file.relative_to(tmp_path).parts[2]
        try:
            records = list(fastavro.reader(io.BytesIO(file.read_bytes())))
        except (ValueError, EOFError, StopIteration):
            unread += 1
            continue
        numbers[partition] += [record["SequenceNumber"] for record in records]
        for record in records:
            flight = json.loads(record["Body"])
            updates[flight["id"]].append(flight["status"])
    assert unread == made.corrupt == 2
    assert sum(map(len, numbers.values())) == made.events == 8 * 126 * 3
    assert all(sorted(found) == list(range(len(found))) for found in numbers.values())
    assert set(map(tuple, updates.values())) == {("scheduled", "departed", "landed")}


def test_the_months_events_are_sampled_from_a_day_on_and_lost_from_another(tmp_path):
    rows = demo_spark_data.app_insights(tmp_path / "events", 0.05)

    sent, counted = Counter(), Counter()
    for file in (tmp_path / "events").iterdir():
        for line in file.read_text().splitlines():
            event = json.loads(line)
            sent[file.stem] += 1
            counted[file.stem] += event["itemCount"]
    days = sorted(sent)
    assert sum(sent.values()) == rows
    mondays = [days[place] for place in (1, 8, 15, 22)]  # 2 November 2026 is one
    assert [round(counted[day] / counted[mondays[0]], 1) for day in mondays] == pytest.approx(
        [1, 1, 1, 0.65], abs=0.15
    )
    assert [round(counted[day] / sent[day]) for day in mondays] == [1, 1, 3, 3]


def test_telemetry_is_what_a_consumer_writes(tmp_path):
    rows = demo_spark_data.telemetry(tmp_path, 0.001)

    lines = [line for file in tmp_path.rglob("*.jsonl") for line in file.read_bytes().splitlines()]
    assert len(lines) == rows
    assert {telemetry_row(line)["consumer"] for line in lines} == {"flights"}


def test_the_load_is_a_day_of_many_plans_and_the_grid_fits_the_policy_of_the_local_stack(tmp_path):
    targets = demo_spark_data.arrivals(tmp_path / "load", 0.2)

    plan, policies = read_settings(tmp_path / "load" / "grid.toml", ROOT / "tidemark.toml", {})
    assert len(policies.candidates("plan-orders", plan)) == 37  # the present one, too
    recorded = read_arrivals(tmp_path / "load" / "counts")
    assert (len(recorded), targets) == (4, 4)
    assert {len(readings) for readings in recorded.values()} == {1440}


def test_the_reconciliation_fails_once_and_passes_after_the_repair(tmp_path):
    steps = demo_spark.loss_steps(tmp_path / "data", tmp_path)

    assert [(step.job, step.status) for step in steps] == [
        ("backfill", 0),
        ("reconciliation", 3),
        ("backfill", 0),
        ("reconciliation", 0),
    ]
    assert str(tmp_path / steps[1].output / "unsettled") in steps[2].arguments
    assert len({step.output for step in steps}) == 4


def test_the_certificate_that_the_local_settings_name_is_there_before_a_job_reads_them(monkeypatch):
    """On a clean clone nobody has started the stack, which makes it."""
    made = []

    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_spark, "ensure_certificate", made.append)
    monkeypatch.setattr(demo_spark, "Azurite", stop)
    with pytest.raises(KeyboardInterrupt), demo_spark._servers():
        pass

    named = json.loads((ROOT / "local.settings.json").read_text())["Values"]["TIDEMARK_CA_BUNDLE"]
    assert [folder / "localhost.pem" for folder in made] == [ROOT / named]


def test_a_step_that_was_not_come_to_fails_the_story(monkeypatch, tmp_path):
    """The process of the jobs ended early: what it left are the results until then."""

    def ends_early(command, **_options):
        result = JobResult("backfill", 0, 1.0, ())
        (tmp_path / "results.jsonl").write_bytes(msgspec.json.encode(result) + b"\n")

    monkeypatch.setattr(demo_spark.subprocess, "run", ends_early)
    steps = demo_spark.loss_steps(tmp_path / "data", tmp_path)

    done = demo_spark._run(steps, tmp_path, {})

    assert [(ran.status, ran.as_told) for ran in done] == [
        (0, True),
        (None, False),
        (None, False),
        (None, False),
    ]


@pytest.fixture
def jobs(monkeypatch):
    """Three jobs: one that is done, one whose check fails, one that cannot go on."""

    def says(text: str) -> None:
        typer.echo(text)
        if text == "closed":
            raise typer.Exit(3)
        if text == "broken":
            raise InputError("no such folder")

    module = types.ModuleType("a_job_of_this_test")
    module.command = says
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.JOBS, "says", module.__name__)


def test_each_jobs_status_and_words_are_kept(jobs, tmp_path, capsys):
    calls = [JobCall("says", (text,)) for text in ("done", "closed", "broken")]

    spark_child.main(msgspec.json.encode(calls).decode(), str(tmp_path / "results"))

    results = [
        msgspec.json.decode(line, type=JobResult) for line in (tmp_path / "results").read_bytes().splitlines()
    ]
    assert [(result.status, result.lines) for result in results] == [
        (0, ("done",)),
        (3, ("closed",)),
        (1, ("broken", "error: no such folder")),
    ]
    assert "no such folder" in capsys.readouterr().err


async def test_a_process_of_jobs_that_ends_by_itself_is_told_with_its_last_words():
    with pytest.raises(ProcessError, match=r"ended by itself:\n[^$]*KeyError: 'no-such-job'"):
        await run_jobs([JobCall("no-such-job", ())], {}, within=200.0)


def test_only_pages_and_pictures_are_copied_to_the_demos_reports(tmp_path):
    output = tmp_path / "job"
    (output / "table").mkdir(parents=True)
    for name in ("page.html", "plot.png", "table/part.parquet", "notes.txt"):
        (output / name).write_text(name)

    copied = collect(output, tmp_path / "reports")

    assert sorted(file.name for file in copied) == ["page.html", "plot.png"]
    assert sorted(file.name for file in (tmp_path / "reports").iterdir()) == ["page.html", "plot.png"]


async def end_of_the_demo(folder):
    async with beside(prepare(Console(), wanted=True)) as prepared:
        return await run_over(None, prepared, folder, folder, Console())


def spark_is_missing(monkeypatch, command):
    monkeypatch.setattr(demo_jobs, "NEEDED", ("a_module_that_is_nowhere",))
    monkeypatch.setattr(environment, "spark_command", lambda: command)
    monkeypatch.setattr(environment, "forget_broken_off", lambda: None)


def test_where_spark_cannot_be_installed_the_demo_goes_without_the_jobs_and_says_why(
    monkeypatch, tmp_path, capsys
):
    spark_is_missing(monkeypatch, [sys.executable, "-c", "raise SystemExit('no network')"])

    done = asyncio.run(end_of_the_demo(tmp_path))
    show(done, tmp_path, Console())

    assert (done.passed, done.results) == (True, ())
    said = capsys.readouterr().out
    assert "Spark (750 MB) is installed beside the demo" in said
    assert "without the Spark jobs: the installation of Spark failed with exit status 1" in said
    assert "no network" in said


def test_spark_whose_installation_was_broken_off_is_installed_again(monkeypatch, tmp_path, capsys):
    spark_is_missing(monkeypatch, [sys.executable, "-c", "raise SystemExit('no network')"])
    (tmp_path / "a_module_that_is_nowhere").mkdir()  # importable, as a namespace
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(demo_jobs, "ensure_java", lambda: None)

    async def demo():
        async with beside(prepare(Console(), wanted=True)) as prepared:
            return await prepared

    assert "the installation of Spark failed" in asyncio.run(demo())


def until_there(mark):
    while not mark.exists():
        time.sleep(0.01)


def test_a_demo_that_ends_early_ends_the_installation(monkeypatch, tmp_path):
    mark = tmp_path / "began"
    program = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(600)"
    spark_is_missing(monkeypatch, [sys.executable, "-c", program])

    async def demo():
        async with beside(prepare(Console(), wanted=True)) as prepared:
            await asyncio.to_thread(until_there, mark)
        return prepared

    assert asyncio.run(demo()).cancelled()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (JobError("no Java 17 was found"), "no Java 17 was found"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
    ],
)
def test_without_java_the_demo_goes_without_the_jobs_and_says_why(monkeypatch, tmp_path, capsys, error, why):
    def missing():
        raise error

    monkeypatch.setattr(demo_jobs, "ensure_java", missing)

    done = asyncio.run(end_of_the_demo(tmp_path))
    show(done, tmp_path, Console())

    assert (done.passed, done.results) == (True, ())
    assert f"without the Spark jobs: {why}" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("runs demo-report/data/reconciliation", "next: .venv/bin/tidemark runs"),
        (
            "spark backfill --capture data",
            "next, with a database of your own: .venv/bin/tidemark spark backfill",
        ),
        (
            "spark telemetry-aggregation --metrics data",
            "next: .venv/bin/tidemark spark telemetry-aggregation",
        ),
    ],
)
def test_the_command_after_a_job_works_after_the_demo_or_says_what_it_needs(
    tmp_path, capsys, command, printed
):
    said = (f"{NEXT}{command}  (why)",)

    show(JobsDone((JobResult("reconciliation", 0, 1.0, said),)), tmp_path, Console(width=200))

    assert printed in capsys.readouterr().out


def test_a_job_that_prints_for_itself_names_the_command_in_the_same_way(monkeypatch, tmp_path, capsys):
    def command(to: str) -> None:
        Console(stderr=True).print(f"{NEXT}spark backfill --capture {to}", highlight=False, soft_wrap=True)
        typer.echo("next year")

    job = types.ModuleType("a_job")
    job.command = command
    monkeypatch.setitem(sys.modules, "a_job", job)
    monkeypatch.setitem(spark_child.JOBS, "a-job", "a_job")
    calls = msgspec.json.encode([JobCall("a-job", ("data",), "a title")]).decode()

    spark_child.main(calls, str(tmp_path / "results.jsonl"), "aloud")

    printed = capsys.readouterr()
    assert (
        printed.err == "next, with a database of your own: .venv/bin/tidemark spark backfill --capture data\n"
    )
    assert printed.out.endswith("a title\nnext year\n")


def test_a_jobs_page_names_the_command_in_the_same_way(monkeypatch, tmp_path):
    def command(output: str = "") -> None:
        report = Report("A job")
        report.code("tidemark", caption="no command")
        report.next_step("what was read", "tidemark", "runs", "my folder")
        report.next_step("writes it", "tidemark", "spark", "backfill", "--capture", "<x>")
        report.write(Path(output))
        raise typer.Exit(3)

    job = types.ModuleType("a_job")
    job.command = command
    monkeypatch.setitem(sys.modules, "a_job", job)
    monkeypatch.setitem(spark_child.JOBS, "a-job", "a_job")
    calls = msgspec.json.encode([JobCall("a-job", ("--output", str(tmp_path)), "a title")]).decode()

    spark_child.main(calls, str(tmp_path / "results.jsonl"), "aloud")

    page = (tmp_path / "a-job.html").read_text()
    assert (
        "<figcaption>what was read</figcaption><pre><code>.venv/bin/tidemark runs &#x27;my folder&#x27;<"
        in page
    )
    assert "writes it; with a database of your own, for that of the demo has ended</figcaption>" in page
    assert "<pre><code>.venv/bin/tidemark spark backfill --capture &#x27;&lt;x&gt;&#x27;<" in page
    assert "<pre><code>tidemark</code>" in page


def test_a_failed_check_fails_the_demo_with_the_jobs_own_words(tmp_path, capsys):
    (tmp_path / "reconciliation.html").touch()
    done = JobsDone(
        (
            JobResult(
                "reconciliation", 3, 12.4, ("6,000 events: 1 lost [x]", "check failed", "report: /tmp/x.html")
            ),
            JobResult("telemetry-aggregation", 0, 9.0, ("/tmp/tidemark-demo-1/y.html",)),
        )
    )

    show(done, tmp_path, Console())

    assert not done.passed
    told = capsys.readouterr().out.replace("\n", " ")
    assert (
        "failed: Reconciliation of hub, container and dead letters, 12 s   6,000 events: 1 lost [x]" in told
    )
    assert "passed: Aggregation" in told
    assert "/tmp/" not in told.replace(str(tmp_path), "")
    assert str(tmp_path / "reconciliation.html") in told
