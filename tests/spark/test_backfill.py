"""The whole job: capture files, Spark tasks, a local Cosmos DB; killed and run again."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from consumer.config import read_config
from consumer.model import Checkpoint, Origin
from consumer.running.assembly import Parts
from spark_jobs.backfill.job import Settings as BackfillJobSettings
from spark_jobs.backfill.job import run as run_backfill
from spark_jobs.backfill.job import save
from spark_jobs.backfill.run import BackfillSettings, backfill, missing_table
from spark_jobs.backfill.target import read_target
from spark_jobs.backfill.transforms import Selection
from spark_jobs.frame import JobSettings
from spark_jobs.platform.user_code import OWN_MODULES, find_own_modules
from spark_jobs.reconciliation.job import Settings as ReconciliationSettings
from spark_jobs.reconciliation.job import run as reconcile
from spark_jobs.sources.capture.capture import read_capture
from spark_jobs.tables.merging import merge_rows
from spark_jobs.tables.results import Results, result_table
from tests.spark.backfill_world import FAST, captured
from tests.support.consumer.backfill import dead_letters, flights, latest, row
from tidemark.analysis.errors import CheckFailedError, InputError
from tidemark.analysis.limits import Limit

pytestmark = pytest.mark.usefixtures("without_pictures")  # tests/unit/spark_jobs/backfill draws them


def test_documents_are_the_last_versions_captured_and_a_second_run_writes_nothing(spark, world, tmp_path):
    rows = [*flights(2, 400, 150), row(400, "1", b"not json"), row(401, "1", None)]
    files = captured(tmp_path / "capture", rows, every_seconds=60)
    files[3].write_bytes(files[3].read_bytes()[:-40])  # cut short: its last block is lost
    files[3].with_name("99.avro").write_bytes(b"no Avro at all")
    captured(tmp_path / "copy", rows[:50])

    frame = read_capture(spark, str(tmp_path / "capture"), quarantine=str(tmp_path / "quarantine"))
    readable = {(each["partition"], each["sequence_number"]) for each in frame.collect()}
    done = backfill(frame, Selection(), FAST, read_target(world.settings))

    kept = [each for each in rows if (each[1], each[2]) in readable and each[2] < 400]
    assert 600 < len(kept) < 800
    assert world.documents() == latest(kept)
    assert done.total.reasons == {"json": 1, "unreadable": 1}
    assert [each.event.sequence_number for each in asyncio.run(dead_letters(world.settings))] == [400, 401]
    with pytest.raises(CheckFailedError, match="check failed: dead-letters 2, allowed 1; report: ") as told:
        save(spark, done, JobSettings(output=str(tmp_path / "out"), allow={"dead-letters": Limit(count=1)}))
    assert "2 dead letters" in Path(str(told.value).rpartition("report: ")[2]).read_text()
    assert result_table(spark, str(tmp_path / "out"), "partitions").count() == 2
    before = world.operations()
    again = backfill(frame, Selection(), FAST, read_target(world.settings))
    assert (again.total.skipped, again.total.written) == (len(readable), 0)
    assert world.operations() <= before + 2  # each partition tries once whether bulk requests work


def test_events_of_a_hub_created_anew_are_documents_and_letters_beside_those_of_the_hub_before(
    spark, world, tmp_path
):
    old = [*flights(1, 20, 20), row(20, "0", b"not json")]
    latest_at = max(each[4] for each in old).timestamp()
    later = [(*each[:4], each[4] + timedelta(days=1), *each[5:]) for each in old]
    captured(tmp_path / "capture", old)
    captured(tmp_path / "capture", later)
    frame = read_capture(spark, str(tmp_path / "capture"))
    by_position = {**world.settings, "CONSUMER_ID": "position"}
    with pytest.raises(InputError, match=r"two hubs named 'flights': in partition 0 .* 0 comes once more"):
        backfill(frame, Selection(), FAST, read_target(by_position))
    assert world.count() == 0
    created = int((latest_at + 3600.0) * 1000)
    asyncio.run(claimed_anew(by_position, Origin(created, 1, str(created))))

    done = backfill(frame, Selection(), FAST, read_target(by_position))

    places = {"0", f"0@{created}"}
    assert set(done.partitions) == places
    assert done.total.written == 40
    assert set(world.documents()) == {f"flights~{place}~{n}" for place in places for n in range(20)}
    assert {each.event.place for each in asyncio.run(dead_letters(world.settings))} == places


def test_tasks_find_a_transform_beside_the_settings(spark, world, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_settings.py").write_text(
        "f = lambda document, event: {**document, 'by': 'mine'}\n"
    )
    captured(tmp_path / "capture", list(flights(1, 5, 5)))
    transform = {"CONSUMER_TRANSFORM": "beside_the_settings:f", OWN_MODULES: str(tmp_path)}
    settings = {**world.settings, **transform}
    find_own_modules(settings)

    backfill(read_capture(spark, str(tmp_path / "capture")), Selection(), FAST, read_target(settings))

    assert {document["by"] for document in world.documents().values()} == {"mine"}


async def claimed_anew(settings, origin):
    store = Parts(read_config(settings), settings).checkpoints()
    async with contextlib.aclosing(store):
        await store.put(
            Checkpoint("0", -1, "", origin=origin), deadline=asyncio.get_running_loop().time() + 30
        )


def test_only_what_is_listed_as_missing_is_written_and_what_no_file_holds_is_told(spark, world, tmp_path):
    rows = list(flights(2, 30, 30))
    captured(tmp_path / "capture", rows)
    lost = [
        ("flights", "0", 3),
        ("flights", "1", 7),
        ("FLIGHTS", "1", 9),
        ("flights", "1", 99),
        ("other", "0", 5),
    ]
    spark.createDataFrame(lost, "hub string, partition string, sequence_number long").write.parquet(
        str(tmp_path / "lost")
    )
    frame = read_capture(spark, str(tmp_path / "capture"))

    done = backfill(frame, Selection(only_missing=str(tmp_path / "lost")), FAST, read_target(world.settings))

    assert sorted(world.documents()) == ["p0-3", "p1-7", "p1-9"]
    assert done.lines[-1] == "1 of the missing events are in no capture file"
    merge_rows(
        spark.read.parquet(str(tmp_path / "lost")),
        str(tmp_path / "lost in delta"),
        ["partition", "sequence_number"],
    )
    in_delta = Selection(only_missing=str(tmp_path / "lost in delta"))
    assert backfill(frame, in_delta, FAST, read_target(world.settings)).lines[-1] == done.lines[-1]
    spark.createDataFrame([], "hub string, partition string, sequence_number long").write.parquet(
        str(tmp_path / "none")
    )
    assert (
        backfill(frame, Selection(only_missing=str(tmp_path / "none")), FAST, read_target(world.settings))
        is None
    )
    with pytest.raises(InputError, match="EVENTHUB_NAME"):
        backfill(frame, Selection(), FAST, read_target({**world.settings, "EVENTHUB_NAME": "orders"}))
    with pytest.raises(InputError, match="none that --from, --to, --partitions"):
        backfill(frame, Selection(partitions=("7",)), FAST, read_target(world.settings))


def test_what_is_missing_is_of_the_last_finished_run_of_a_reconciliation_of_this_hub(spark, tmp_path):
    folder = str(tmp_path / "reconciliation")

    def unsettled(*numbers):
        rows = [("0", number) for number in numbers]
        return spark.createDataFrame(rows, "partition string, sequence_number long")

    facts = {
        "hub": "flights",
        "topic": "ns/flights",
        "account": "https://one.example/",
        "target": "db/flights",
    }
    first = Results.begin(spark, folder, job="reconciliation", fmt="delta", about=facts)
    first.write("unsettled", unsettled(1, 2))
    first.publish()
    failed = Results.begin(spark, folder, job="reconciliation", fmt="delta", about={"hub": "flights"})
    failed.write("unsettled", unsettled(3))  # and then it was killed

    missing = missing_table(spark, f"{folder}/unsettled", {**facts, "hub": "Flights"})

    assert sorted(row.sequence_number for row in missing.collect()) == [1, 2]
    new = f"{folder}-new"
    killed = Results.begin(spark, new, job="reconciliation", fmt="delta", about={"hub": "flights"})
    killed.write("unsettled", unsettled(3))
    with pytest.raises(InputError, match=r"no run has finished in .*-new"):
        missing_table(spark, f"{new}/unsettled", facts)
    others = {
        "hub": ("hub", "orders"),
        "topic": ("hub", "other/flights"),
        "account": ("account", "https://two.example/"),
        "target": ("container", "db/Flights"),
    }
    for fact, (is_of, other) in others.items():
        words = f"is of the {is_of} '{facts[fact]}', and this backfill of '{other}'"
        with pytest.raises(InputError, match=words):
            missing_table(spark, f"{folder}/unsettled", {**facts, fact: other})
    with pytest.raises(InputError, match="has no table 'lost'"):
        missing_table(spark, f"{folder}/lost", facts)
    made = {**facts, "mapping": "a1", "bodies": "b2"}
    noted = Results.begin(spark, folder, job="reconciliation", fmt="delta", about=made)
    noted.write("unsettled", unsettled(4))
    noted.publish()
    assert [row.sequence_number for row in missing_table(spark, f"{folder}/unsettled", made).collect()] == [4]
    with pytest.raises(
        InputError, match=r"changed since: transform, steps and routes; options of decoding\. "
    ):
        missing_table(spark, f"{folder}/unsettled", {**made, "mapping": "a2", "bodies": "b3"})


def test_what_a_later_reconciliation_finds_missing_again_is_written_again(spark, world, tmp_path):
    """The same events: settled by the backfill before, and their documents are gone since, by a restored account for one."""
    captured(tmp_path / "capture", list(flights(1, 5, 5)))
    frame, folder = read_capture(spark, str(tmp_path / "capture")), str(tmp_path / "reconciliation")
    listed = Selection(only_missing=f"{folder}/unsettled")

    def found():
        run = Results.begin(spark, folder, job="reconciliation", fmt="delta", about={"hub": "flights"})
        run.write("unsettled", spark.createDataFrame([("0", 3)], "partition string, sequence_number long"))
        run.publish()

    def filled():
        done = backfill(frame, listed, FAST, read_target(world.settings))
        return done.total.written, done.total.skipped

    found()
    assert filled() == (1, 0)
    assert filled() == (0, 1)  # the same command goes on where it was
    world.remove("p0-3")
    found()
    assert filled() == (1, 0)
    assert "p0-3" in world.documents()


@pytest.mark.torture
@pytest.mark.timeout(1200)
def test_a_job_whose_worker_and_then_whose_driver_is_killed_ends_with_the_same_documents(
    world, start, tmp_path
):
    rows = list(flights(2, 600, 250))
    captured(tmp_path / "capture", rows)
    slow = start("--records-per-second", "150")
    until(lambda: world.count() > 100, slow)
    os.kill(worker_of(slow.pid), signal.SIGKILL)
    _, errors = slow.communicate(timeout=400)
    assert slow.returncode == 1
    assert "the same command goes on from there" in errors

    slow = start("--records-per-second", "150")
    before = world.operations()
    until(lambda: world.operations() > before + 100, slow)
    os.killpg(slow.pid, signal.SIGKILL)
    slow.communicate()

    told, errors = start("--records-per-second", "100000").communicate(timeout=400)
    assert world.documents() == latest(rows), errors
    skipped = int(told.split(" settled before")[0].split()[-1].replace(",", ""))
    assert 0 < skipped < 1_200
    assert (tmp_path / "out/backfill.html").exists()


@pytest.fixture
def start(world, tmp_path):
    """Starts the job as a process in a group of its own; nothing of it is left behind."""
    started = []

    def start(*options):
        words = [
            "--capture",
            str(tmp_path / "capture"),
            "--mode",
            "upsert",
            "--cores",
            "2",
            "--memory",
            "512m",
        ]
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "spark_jobs",
                "backfill",
                *words,
                "--output",
                str(tmp_path / "out"),
                *(
                    "--root",
                    str(tmp_path),
                ),  # not this repository's settings: they name a file of a stack that has run
                *options,
            ],
            env={**os.environ, **world.settings, "CONSUMER_CHECKPOINT_AFTER": "20"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(condition, process, within=400.0):
    deadline = time.monotonic() + within
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.05)


def worker_of(pid):
    """The Python process that runs a task: a child of Spark's daemon, which is a child of Java."""
    for _ in range(3):
        pid = max(children(pid))
    return pid


def children(pid):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True
    )
    return [int(word) for word in found.stdout.split()]


FILE = """
version = 1
[sinks.flights]
type = "cosmos"
connection = "Account"
database = "db"
container = "flights"
meta = true
[sinks.hook]
type = "http"
url = "https://example.com/hook"
[hubs.flights]
connection = "Hub"
storage_connection = "Blobs"
hub = "flights"
checkpoint_container = "{BLOB_CONTAINER}"
dead_letter_container = "{CONSUMER_DEAD_LETTER_CONTAINER}"
steps = [{{ split = "/flights" }}, {{ filter = "seats > 0" }}]
[[hubs.flights.routes]]
to = "hook"
when = "kind == 'alert'"
[[hubs.flights.routes]]
to = "flights"
steps = [{{ rename = {{ "/number" = "/id" }} }}]
"""


def test_one_hub_of_a_consumers_file_is_written_and_judged_by_its_steps_and_routes(spark, world, tmp_path):
    """Events of two flights, of one for another sink, of none, and two that no step can read."""
    settings = world.settings
    (tmp_path / "consumer.toml").write_text(FILE.format(**settings))
    file = {
        "CONSUMER_FILE": str(tmp_path / "consumer.toml"),
        "Hub": settings["EventHubConnection"],
        "Account": settings["CosmosConnection"],
        "Blobs": settings["AzureWebJobsStorage"],
        "CONSUMER_CHECKPOINT_AFTER": "5",
    }

    def flight(number, **more):
        return {"number": number, "seats": 1, "origin": "O", **more}

    def two(n):
        return [flight(f"a{n}"), flight(f"b{n}"), flight(f"c{n}", seats=0)]

    kinds = [two, lambda n: [flight(f"d{n}", kind="alert")], lambda n: [flight(f"e{n}", seats=0)]]
    rows = [row(n, "0", json.dumps({"flights": kinds[n % 3](n)}).encode()) for n in range(30)]
    rows += [row(n, "0", b'{"flights": 7}') for n in (30, 31)]
    captured(tmp_path / "capture", rows)
    budget = BackfillSettings("upsert", records_per_second=100_000)
    paths = {"capture": str(tmp_path / "capture"), "output": str(tmp_path / "out")}
    target = read_target(file, "upsert")

    lines = run_backfill(
        spark, BackfillJobSettings(selection=Selection(), budget=budget, target=target, **paths)
    )

    assert lines[0].startswith("20 written, 2 dead letters, "), lines
    assert {*world.documents()} == {f"{name}{n}" for n in range(0, 30, 3) for name in "ab"}

    world.remove("a3")
    reading = {**paths, "output": str(tmp_path / "after")}
    findings, _ = reconcile(ReconciliationSettings(consumer=file, checkpoints=False, **reading), spark)
    assert findings.counts == {"written": 9, "lost": 1, "dropped": 20, "dead_lettered": 2}
    assert [found["document_id"] for found in findings.unsettled] == ["a3"]
    missing = Selection(only_missing=str(tmp_path / "after" / "unsettled"))
    again = run_backfill(spark, BackfillJobSettings(selection=missing, budget=budget, target=target, **paths))
    assert again[0].startswith("2 written"), again
    assert "a3" in world.documents()
