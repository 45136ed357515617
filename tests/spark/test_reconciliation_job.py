"""The reconciliation from capture files, a local Cosmos DB and Azurite to its report and its exit status."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta

import pytest
from azure.cosmos import CosmosClient

from consumer.config import read_config
from consumer.mapping.documents import DocumentMapper, MappingOptions
from consumer.model import Batch, Checkpoint, DeadLetter, Event, Origin, Rejection, Write
from consumer.running.assembly import Parts
from devstack.cosmos import CosmosServer
from devstack.event_hubs.storage.capture import CapturedEvent, write_capture
from spark_jobs.cli import run_command
from spark_jobs.reconciliation import extract, job
from spark_jobs.reconciliation.job import OnGap, Settings, command, run
from spark_jobs.reconciliation.schemas import Status
from tests.spark.conftest import EAST, WEST
from tests.spark.result_files import read, runs
from tests.support.servers.threaded import running_in_thread
from tidemark.analysis.errors import CheckFailedError, InputError, JobError
from tidemark.analysis.limits import Limit
from tidemark.consuming import delete, drop

pytestmark = [
    pytest.mark.wire,
    pytest.mark.timeout(600),
]

HUB = "flights"
T0 = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
EACH = 20  # events in each of two partitions


class Place:
    """A hub's capture, a container with documents, dead letters and checkpoints."""

    def __init__(self, azurite, cosmos, folder):
        self.cosmos = cosmos
        self.folder = folder
        self.capture = folder / "capture"
        self.settings = {
            "EventHubConnection": "Endpoint=sb://hub.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
            "EVENTHUB_NAME": HUB,
            "CosmosConnection": cosmos.connection_string,
            "COSMOS_DATABASE": "db",
            "COSMOS_CONTAINER": HUB,
            "AzureWebJobsStorage": azurite,
            "BLOB_CONTAINER": f"checkpoints-{uuid.uuid4().hex[:12]}",
            "CONSUMER_DEAD_LETTER_CONTAINER": f"letters-{uuid.uuid4().hex[:12]}",
            "CONSUMER_META": "true",
        }
        self.config = read_config(self.settings)
        self.mapper = DocumentMapper(MappingOptions(HUB, meta=True), ("/dest",))
        self.bodies = {
            (partition, n): json.dumps({"id": f"f{partition}-{n}", "dest": f"D{n % 5}"}).encode()
            for partition in ("0", "1")
            for n in range(EACH)
        }
        self.bodies["0", 5] = b"{broken"

    def event(self, partition, n):
        return Event(partition, n, str(n), self.at(n).timestamp(), self.bodies[partition, n])

    def at(self, n):
        return T0 + timedelta(minutes=3 * n)

    def capture_files(self, left_out=()):
        events = [
            CapturedEvent(partition, n, str(n), self.at(n), body)
            for (partition, n), body in sorted(self.bodies.items())
            if (partition, n) not in left_out
        ]
        write_capture(self.capture, HUB, events, every_seconds=900)

    def write(self, positions):
        """Documents of these events, as the consumer's mapping makes them."""
        url, _, key = self.cosmos.connection_string.removeprefix("AccountEndpoint=").partition(";AccountKey=")
        with CosmosClient(url, key.rstrip(";")) as client:
            container = client.get_database_client("db").get_container_client(HUB)
            for partition, n in positions:
                container.upsert_item(
                    json.loads(self.mapper.prepare(Write(self.event(partition, n))).payload)
                )

    def settle(self, settled, dead_letters=(), parked=()):
        """Stores checkpoints, by partition, dead letters, and parked events."""

        async def work():
            parts = Parts(self.config, self.settings)
            store, later, checkpoints = parts.dead_letters(), parts.parked(), parts.checkpoints()
            deadline = asyncio.get_running_loop().time() + 60
            why = Rejection("json", "ends early")
            try:
                for kept, group, events in (
                    (store, "$Default", dead_letters),
                    (later, "$Default~parked", parked),
                ):
                    await kept.open()
                    letters = [
                        DeadLetter(HUB, group, self.event(*place), why, 1, time.time()) for place in events
                    ]
                    await kept.put(letters, deadline=deadline)
                for partition, number in settled.items():
                    await checkpoints.put(Checkpoint(partition, number, str(number)), deadline=deadline)
            finally:
                await store.aclose()
                await later.aclose()
                await checkpoints.aclose()

        asyncio.run(work())

    def job(self, name, **options):
        return Settings(
            consumer=self.settings, capture=str(self.capture), output=str(self.folder / name), **options
        )


@pytest.fixture
def place(azurite, tmp_path):
    with running_in_thread(CosmosServer) as threaded:
        threaded.call(lambda: threaded.server.create_container("db", HUB, "/dest", throughput=20_000))
        yield Place(azurite, threaded.server, tmp_path)


def tables(folder):
    """The results' rows as they are, but for the evidence."""
    return {
        name: sorted((tuple(row.values()) for row in read(folder, name).to_pylist()), key=repr)
        for name in ("events", "unsettled", "duplicates", "hours", "gaps")
    }


class Killed(BaseException):
    """Not an Exception: nobody may catch it on the way."""


def test_a_loss_fails_the_check_and_a_repair_lets_it_pass(spark, place, capsys, monkeypatch, set_zone):
    """Two lost, one unreadable and kept, one parked, one written twice over, the last five of a partition not consumed yet.

    A run that was killed once the events were read changes nothing.
    """
    every = [body for body in place.bodies if body != ("0", 5)]
    place.capture_files()
    place.write(each for each in every if each not in {("0", 7), ("1", 3), ("0", 8)} and each[1] < 15)
    place.settle({"0": 14, "1": 14}, dead_letters=[("0", 5), ("1", 2)], parked=[("0", 8), ("1", 4)])
    set_zone(EAST)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(extract, "read_dead_letters", raising(Killed))
        run(place.job("first"), spark)
    assert runs(place.folder / "first") == []
    (place.folder / "first" / ".work" / "events").mkdir(parents=True)
    (place.folder / "first" / ".work" / "events" / "part-0.parquet").write_text("of a run that was killed")
    findings, _ = run(place.job("first"), spark)

    assert findings.counts == {
        Status.WRITTEN: 26,
        Status.DEAD_LETTERED: 1,
        Status.PARKED: 1,
        Status.LOST: 2,
        Status.PENDING: 10,
    }
    assert (findings.events_total, findings.unsettled_total, findings.duplicates_total, findings.missing) == (
        40,
        2,
        1,
        0,
    )
    assert findings.failed
    assert not (place.folder / "first" / ".work").exists()
    dead_letters = read(place.folder / "first", "dead-letters").to_pylist()
    assert {(row["partition"], row["sequence_number"], row["parked"]) for row in dead_letters} == {
        ("0", 5, False),
        ("1", 2, False),
        ("0", 8, True),
        ("1", 4, True),
    }
    documents = read(place.folder / "first", "documents").to_pylist()
    assert {(row["id"], row["partition"], row["sequence_number"]) for row in documents} == {
        (f"f{partition}-{n}", partition, n)
        for partition, n in every
        if n < 15 and (partition, n) not in {("0", 7), ("1", 3), ("0", 8)}
    }
    written = tables(place.folder / "first")
    assert [row[:2] for row in written["unsettled"]] == [("0", 7), ("1", 3)]
    assert [(row[0], row[1], row[3]) for row in written["duplicates"]] == [
        ("1", 2, "document and dead letter")
    ]
    page = (place.folder / "first" / "reconciliation-flights.html").read_text()
    assert "2 events are due and not settled; 1 are settled twice" in page
    assert "f0-7" in page
    assert (place.folder / "first" / "findings.png").stat().st_size > 1000

    place.write(every)
    place.settle({"0": 19, "1": 19})
    for name, value in place.settings.items():
        monkeypatch.setenv(name, value)
    set_zone(WEST)
    with pytest.raises(SystemExit) as ended:
        run_command(
            command,
            [
                "--capture",
                str(place.capture),
                "--output",
                str(place.folder / "second"),
                "--root",
                str(place.folder),
            ],
        )
    told = capsys.readouterr().out
    assert ended.value.code == 3, told  # the letter beside the document is still there
    assert "40 events: 1 dead lettered, 39 written; 1 settled twice; 0 sequence numbers missing" in told
    assert "check failed" in told
    assert "The newest event in the capture files came" in told


def raising(error):
    def raised(*_args, **_options):
        raise error

    return raised


def test_a_missing_capture_file_is_a_gap_unless_its_events_are_known_elsewhere(spark, place):
    place.capture_files(left_out={*(("0", n) for n in range(5, 10)), *(("1", n) for n in range(10, 15))})
    place.write(body for body in place.bodies if body[0] == "1" or body[1] not in range(5, 10))
    allow = {"quarantined": Limit(count=9)}  # without a quarantine nobody knows
    with pytest.raises(CheckFailedError, match="check failed: quarantined not known, allowed 9; report: "):
        run(place.job("gaps", checkpoints=False, on_gap=OnGap.REPORT, allow=allow), spark)
    rows = {row[0]: (row[1:6], row[-1]) for row in tables(place.folder / "gaps")["gaps"]}

    assert rows == {
        "0": ((5, 9, 5, 0, "between files"), True),
        "1": ((10, 14, 5, 5, "between files"), False),
    }
    [told] = runs(place.folder / "gaps")
    assert (told.counts["missing"], told.failures) == (5, ["quarantined not known, allowed 9"])


def test_an_input_that_cannot_be_read_is_an_error_and_not_a_passed_check(spark, place, monkeypatch):
    place.capture_files()
    with pytest.raises(InputError, match=r"of the hub 'flights', none is of 'others' \(EVENTHUB_NAME\)"):
        run(
            Settings(
                consumer={**place.settings, "EVENTHUB_NAME": "others"},
                capture=str(place.capture),
                output=str(place.folder / "x"),
            ),
            spark,
        )
    with pytest.raises(InputError, match="no container 'nowhere'"):
        run(
            Settings(
                consumer={**place.settings, "COSMOS_CONTAINER": "nowhere"},
                capture=str(place.capture),
                output=str(place.folder / "x"),
            ),
            spark,
        )
    with pytest.raises(InputError, match="--consumer-group is '\\$Default', the consumer's own"):
        run(Settings(consumer=place.settings, output=str(place.folder / "x")), spark)
    for module, name in ((extract, "distinct_events"), (job, "judged")):
        whole = getattr(module, name)
        with monkeypatch.context() as patch:
            lost = "first < 0" if module is extract else "sequence_number > 0"
            patch.setattr(
                module, name, lambda *given, of=whole, lost=lost, **more: of(*given, **more).where(lost)
            )
            with pytest.raises(
                JobError, match=r"the hub's events: 40 rows were read, .*: nothing is published"
            ):
                run(place.job("x"), spark)
    broken = {**place.settings, "BLOB_CONTAINER": "UPPER"}
    with pytest.raises(JobError, match="InvalidResourceName"):
        run(Settings(consumer=broken, capture=str(place.capture), output=str(place.folder / "x")), spark)


def test_under_the_guard_deletes_drops_and_several_documents_are_found_on_purpose(spark, place, monkeypatch):
    """The consumer's own sink writes: 0-1 deleted by 0-2, 0-3 dropped, 0-4 three documents of which one is lost."""
    names = [("put", "a"), ("put", "b"), ("delete", "b"), ("drop", "c"), ("several", "d"), ("put", "e")]
    place.bodies = {
        ("0", n): json.dumps({"id": name, "dest": "x", "op": op}).encode()
        for n, (op, name) in enumerate(names)
    }
    place.capture_files()
    place.settings |= {
        "COSMOS_GUARD": "number",
        "CONSUMER_TRANSFORM": "tests.spark.test_reconciliation_job:by_operation",
    }
    config = read_config(place.settings)

    async def consume():
        parts = Parts(config, place.settings)
        sink = parts.sink()
        routes = await sink.open()
        records = parts.preparation(sink).records([place.event("0", n) for n in range(5)])
        for record in records:
            if record.dropped is None and "d-2" not in record.key:
                batch = Batch(1, routes.lane_of(record), (record,))
                [result] = await sink.write(batch, deadline=asyncio.get_running_loop().time() + 30)
                assert result.outcome == "written"
        await sink.aclose()

    asyncio.run(consume())
    place.settle({"0": 4})
    findings, _ = run(place.job("deletes"), spark)

    assert findings.counts == {
        Status.WRITTEN: 2,
        Status.SUPERSEDED: 1,
        Status.DROPPED: 1,
        Status.LOST: 1,
        Status.PENDING: 1,
    }
    assert (findings.missing, findings.copies, findings.duplicates_total) == (0, 0, 0)
    [lost] = read(place.folder / "deletes", "unsettled").to_pylist()
    assert (lost["sequence_number"], lost["document_id"], lost["writes"]) == (4, "d-2", 3)


def by_operation(document, _event):
    match document.pop("op"):
        case "delete":
            return delete(document)
        case "drop":
            return drop("not wanted")
        case "several":
            return [{**document, "id": f"d-{n}"} for n in range(3)]
    return document


def test_a_hub_that_was_made_anew_is_told_and_not_mixed_up(spark, place):
    place.capture_files()
    again = [CapturedEvent("0", 3, "3", T0 + timedelta(days=1), b'{"id": "new", "dest": "x"}')]
    write_capture(place.capture, HUB, again, every_seconds=900)
    with pytest.raises(InputError, match="partition 0 has several events of number 3"):
        run(place.job("lives", checkpoints=False), spark)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_events_of_a_hub_created_anew_are_found_with_and_without_checkpoints(spark, place, checkpoints):
    place.settings |= {"CONSUMER_ID": "position", "CONSUMER_META": "false"}
    created = int((T0 - timedelta(minutes=10)).timestamp() * 1000)
    place.bodies = {("0", n): b'{"dest": "x"}' for n in range(5)}
    place.capture_files()

    async def claim_anew():
        deadline = asyncio.get_running_loop().time() + 60
        store = Parts(place.config, place.settings).checkpoints()
        async with aclosing(store):
            origin = Origin(created, 1, str(created))
            await store.put(Checkpoint("0", 4, "4", origin=origin), deadline=deadline)

    asyncio.run(claim_anew())
    place.mapper = DocumentMapper(MappingOptions(HUB, "position"), ("/dest",))
    place.event = lambda partition, n: Event(
        *(partition, n, str(n), place.at(n).timestamp(), place.bodies[partition, n]), incarnation=str(created)
    )
    place.write(place.bodies)
    findings, _ = run(place.job("anew", checkpoints=checkpoints), spark)

    assert findings.counts == {Status.WRITTEN: 5}


def put_checkpoints(place, *checkpoints):
    async def work():
        deadline = asyncio.get_running_loop().time() + 60
        store = Parts(place.config, place.settings).checkpoints()
        async with aclosing(store):
            for checkpoint in checkpoints:
                await store.put(checkpoint, deadline=deadline)

    asyncio.run(work())


def of_position(place, numbers, incarnation="", *, at=None):
    """Documents of events whose ids are their positions."""
    place.settings |= {"CONSUMER_ID": "position", "CONSUMER_META": "false"}
    place.config = read_config(place.settings)
    place.bodies = {("0", n): b'{"dest": "x"}' for n in numbers}
    place.mapper = DocumentMapper(MappingOptions(HUB, "position"), ("/dest",))
    at = at or place.at
    place.event = lambda partition, n: Event(
        *(partition, n, str(n), at(n).timestamp(), place.bodies[partition, n]), incarnation=incarnation
    )
    place.write(place.bodies)


def milliseconds(at):
    return int(at.timestamp() * 1000)


def capture_of(place, numbers, begin):
    """Of a hub whose first event that is captured came at `begin`, one a second."""
    events = [
        CapturedEvent("0", n, str(n), begin + timedelta(seconds=place_), b'{"dest": "x"}')
        for place_, n in enumerate(numbers)
    ]
    write_capture(place.capture, HUB, events, every_seconds=900)


def test_hubs_an_hour_apart_whose_numbers_do_not_meet_are_told_apart_by_times_that_go_back(spark, place):
    """Of the first hub 50 to 54 are captured, of the second 0 to 4, which the first one's checkpoint calls settled."""
    of_position(place, range(5))
    put_checkpoints(place, Checkpoint("0", 54, "54"))
    capture_of(place, range(50, 55), T0)
    capture_of(place, range(5), T0 + timedelta(minutes=40))
    said = r"partition 0: an event from number 50 on came at .*T..:00:00.*, one with a lower number not before .*T..:40:04"
    with pytest.raises(InputError, match=said):
        run(place.job("mixed"), spark)


def test_what_is_not_settled_of_a_hub_that_is_gone_is_lost_and_not_pending(spark, place):
    """The present hub's checkpoint says nothing of the numbers before it; nobody will consume them any more."""
    created = milliseconds(T0 + timedelta(minutes=30))
    of_position(place, range(2))
    capture_of(place, range(4), T0)
    capture_of(place, range(5), T0 + timedelta(minutes=31))
    of_position(place, range(5), str(created))
    put_checkpoints(place, Checkpoint("0", 4, "4", origin=Origin(created, 1, str(created))))
    findings, _ = run(place.job("gone"), spark)

    assert findings.counts == {Status.WRITTEN: 7, Status.LOST: 2}
    assert findings.missing == 0


def test_events_from_before_the_hub_with_plain_keys_cannot_be_judged(spark, place):
    """Its checkpoint is of other numbers, and its documents have the same ids as theirs."""
    created = T0 + timedelta(minutes=30)
    of_position(place, range(5))
    put_checkpoints(place, Checkpoint("0", 4, "4", origin=Origin(milliseconds(created), 1)))
    capture_of(place, range(5, 9), T0)
    with pytest.raises(
        InputError, match=r"partition 0: events from .*T..:00:00.* on came before the hub .*T..:30:00"
    ) as told:
        run(place.job("before"), spark)
    assert f"--from {created.isoformat()}" in str(told.value)
    capture_of(place, range(5), created)
    findings, _ = run(place.job("since", since=created), spark)

    assert findings.counts == {Status.WRITTEN: 5}


def test_a_third_hub_between_two_is_told_by_the_keys_of_its_documents(spark, place):
    """Checkpoints know since when the newest is there; a hub before it has documents with keys of its own."""
    second, third = T0 + timedelta(minutes=20), T0 + timedelta(minutes=40)
    capture_of(place, range(3), second)
    of_position(place, range(3), str(milliseconds(second)))
    capture_of(place, range(3), third)
    of_position(place, range(3), str(milliseconds(third)))
    incarnation = str(milliseconds(third))
    put_checkpoints(place, Checkpoint("0", 2, "2", origin=Origin(milliseconds(third), 1, incarnation)))
    with pytest.raises(
        InputError, match=rf"partition 0: documents .* created at {re.escape(second.isoformat())}"
    ):
        run(place.job("third"), spark)
    findings, _ = run(place.job("newest", since=third), spark)

    assert findings.counts == {Status.WRITTEN: 3}


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_hub_that_is_read_and_is_not_that_of_the_checkpoints_is_not_judged(
    spark, place, monkeypatch, checkpoints
):
    of_position(place, range(5))
    put_checkpoints(place, Checkpoint("0", 54, "54", origin=Origin(milliseconds(T0), 1)))
    monkeypatch.setattr(job, "created_at", lambda *_: (T0 + timedelta(hours=1)).timestamp())
    asked = Settings(
        consumer=place.settings,
        output=str(place.folder / "x"),
        consumer_group="other",
        checkpoints=checkpoints,
    )
    with pytest.raises(
        InputError, match=r"partition 0 .* that hub was created at .*, the one that is read at "
    ):
        run(asked, spark)


def kill_at_work(command, output, place):
    """Runs the job until it has read the events, and kills it."""
    log = place.folder / "killed.log"
    with log.open("wb") as said:
        job = subprocess.Popen(
            command,
            env={**os.environ, **place.settings, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    try:
        deadline = time.monotonic() + 200
        while not (output / ".work" / "events" / "_SUCCESS").exists():
            assert job.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


@pytest.mark.torture
def test_a_job_that_was_killed_gives_the_same_result_when_it_is_run_again(spark, place):
    place.capture_files()
    place.write(body for body in place.bodies if body != ("0", 5) and body[1] % 7)
    clean, _ = run(place.job("clean", checkpoints=False), spark)
    output = place.folder / "killed"
    command = [sys.executable, "-m", "spark_jobs.reconciliation.job", "--capture", str(place.capture)]
    command += ["--no-checkpoints", "--output", str(output), "--cores", "1", "--memory", "1g"]
    command += ["--root", str(place.folder)]  # not this repository's settings
    kill_at_work(command, output, place)
    assert runs(output) == []
    again, _ = run(place.job("killed", checkpoints=False), spark)

    assert (again.counts, again.duplicates_total) == (clean.counts, clean.duplicates_total)
    assert tables(output) == tables(place.folder / "clean")
