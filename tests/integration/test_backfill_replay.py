"""What the tasks of a backfill do, without Spark: many on one loop, with a real coordinator and a local Cosmos DB."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from consumer.config import read_config
from consumer.errors import PoisonError
from consumer.model import Batch, Event, Write
from consumer.running.assembly import Parts
from consumer.stores.blob.checkpoints import BlobCheckpointStore
from spark_jobs.backfill import replay as module
from spark_jobs.backfill.budget.coordinator import Coordinator, UnreachableError
from spark_jobs.backfill.budget.shares import Shares, SupersededError
from spark_jobs.backfill.replay import Replaying, replay
from spark_jobs.backfill.target import BackfillSink, CountedDeadLetters, container_id, read_target
from tests.support.consumer.backfill import Log, dead_letters, documents, server, settings
from tests.support.waiting import until
from tidemark import consuming
from tidemark.analysis.errors import InputError
from tidemark.foundation.errors import UnavailableError


class Replays:
    def __init__(self, cosmos, environment):
        self.cosmos = cosmos
        self.environment = environment

    async def run(self, streams, coordinator, *, mode="upsert", unit="records", attempt="1"):
        """Replays of the partitions (name -> events) at the same time; their counts by partition."""
        checkpoint_groups = dict.fromkeys(streams, "ledger")
        replaying = Replaying(
            read_target(self.environment), mode, unit, checkpoint_groups, coordinator.address
        )
        async with asyncio.TaskGroup() as group:
            tasks = {
                partition: group.create_task(replay(replaying, partition, attempt, chunks(events)))
                for partition, events in streams.items()
            }
        return {partition: task.result() for partition, task in tasks.items()}


@pytest.fixture
async def replays(azurite):
    async with server() as cosmos:
        yield Replays(cosmos, settings(cosmos.connection_string, azurite))


async def chunks(events, size=100):
    for start in range(0, len(events), size):
        yield events[start : start + size]


def event(partition, number, body):
    return Event(partition, number, str(number * 100), 1_790_000_000.0 + number, body)


def stream(partition, count, *, documents=None, first=0, padding=0):
    """Events of a partition; with `documents` several versions of each."""
    return [
        event(partition, number, flight(f"{partition}-{number % (documents or count)}", number, padding))
        for number in range(first, first + count)
    ]


def flight(name, version, padding=0):
    return json.dumps({"id": name, "origin": name[-1], "version": version, "pad": "x" * padding}).encode()


@asynccontextmanager
async def log_of(cosmos):
    log = Log(cosmos)
    task = asyncio.create_task(log.keep())
    try:
        yield log
    finally:
        task.cancel()


@pytest.mark.parametrize(("unit", "budget", "column"), [("records", 400, 1), ("request_units", 3_000, 2)])
async def test_all_tasks_together_keep_the_budget_in_every_second_of_the_servers_log(
    replays, unit, budget, column
):
    """A request may be on its way for a while: what started in one slot, a tenth of a second, may arrive in the next."""
    streams = {name: stream(name, 300, padding=int(name) * 300) for name in "0123"}
    async with log_of(replays.cosmos) as log:
        with Coordinator(Shares(budget, whole=unit == "records")) as coordinator:
            counts = await replays.run(streams, coordinator, unit=unit)

    assert sum(count.written for count in counts.values()) == 1_200
    assert replays.cosmos.document_count("db", "flights") == 1_200
    assert log.most_within_a_second(column) <= 1.15 * budget
    lasted = log.samples[-1][0] - log.samples[0][0]
    assert log.samples[-1][column] / lasted > 0.1 * budget  # and it does not crawl, also on a loaded machine


async def test_a_replay_killed_in_the_middle_goes_on_behind_what_was_saved(replays):
    events = stream("0", 1_500, documents=700)
    with Coordinator(Shares(500, whole=True)) as coordinator:
        first = asyncio.create_task(replays.run({"0": events}, coordinator))
        await until(lambda: replays.cosmos.document_count("db", "flights") > 600)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

    with Coordinator(Shares(10_000, whole=True)) as coordinator:
        counts = await replays.run({"0": events}, coordinator)

    assert documents(replays.cosmos) == {
        f"0-{number % 700}": {
            "id": f"0-{number % 700}",
            "origin": str(number % 700)[-1],
            "version": number,
            "pad": "",
        }
        for number in range(1_500)
    }
    assert 0 < counts["0"].skipped < 1_500
    assert counts["0"].skipped + counts["0"].written == 1_500 == counts["0"].settled


async def test_copies_of_an_event_are_written_once(replays):
    events = stream("0", 50)
    with Coordinator(Shares(1_000, whole=True)) as coordinator:
        counts = await replays.run({"0": [each for each in events for _ in range(2)]}, coordinator)

    assert (counts["0"].written, counts["0"].skipped, counts["0"].settled) == (50, 50, 100)


async def test_mode_create_leaves_documents_as_they_are_and_counts_them(replays):
    with Coordinator(Shares(1_000, whole=True)) as coordinator:
        await replays.run({"0": stream("0", 5)}, coordinator)
        later = stream("0", 20, documents=10, first=100)
        counts = await replays.run({"0": later}, coordinator, mode="create", attempt="2")

    assert documents(replays.cosmos)["0-3"]["version"] == 3
    assert counts["0"].existed == 15  # five by the first replay, ten by the earlier events of this one
    assert len(documents(replays.cosmos)) == 10


def deleting(document, event):
    """A transform: every second event deletes its document."""
    return consuming.delete(document) if document["version"] % 2 else document


async def test_what_mode_create_leaves_out_is_counted_apart_from_what_was_dropped_on_purpose(replays):
    replays.environment["CONSUMER_TRANSFORM"] = f"{__name__}:deleting"
    with Coordinator(Shares(1_000, whole=True)) as coordinator:
        counts = (await replays.run({"0": stream("0", 20)}, coordinator, mode="create"))["0"]

    assert (counts.written, counts.left_out, counts.dropped, counts.settled) == (10, 10, 0, 20)


@pytest.mark.parametrize("mode", ["upsert", "create"])
async def test_under_the_guard_a_backfill_overwrites_nothing_that_the_consumer_wrote_later(replays, mode):
    replays.environment["COSMOS_GUARD"] = "number"
    sink = Parts(read_config(replays.environment), replays.environment).sink()
    routes = await sink.open()
    for each in stream("0", 5, documents=10, first=105):  # ids 5 to 9, by the consumer
        record = sink.prepare(Write(each))
        batch = Batch(1, routes.lane_of(record), (record,))
        await sink.write(batch, deadline=asyncio.get_running_loop().time() + 10)
    await sink.aclose()
    with Coordinator(Shares(1_000, whole=True)) as coordinator:
        counts = await replays.run({"0": stream("0", 10)}, coordinator, mode=mode)

    versions = {name: found["version"] for name, found in documents(replays.cosmos).items()}
    assert versions == {f"0-{number}": number + (100 if number >= 5 else 0) for number in range(10)}
    assert (counts["0"].existed, counts["0"].written) == (5, 10)


async def test_poison_becomes_dead_letters_of_the_consumers_own_kind(replays):
    events = [*stream("0", 20), event("0", 20, b"not json"), event("0", 21, b'{"no": "id"}')]
    with Coordinator(Shares(1_000, whole=True)) as coordinator:
        counts = await replays.run({"0": events}, coordinator)

    assert counts["0"].reasons == {"json": 1, "id": 1}
    kept = await dead_letters(replays.environment)
    assert [(each.hub, each.consumer_group, each.event.sequence_number) for each in kept] == [
        ("flights", "$Default", 20),
        ("flights", "$Default", 21),
    ]
    assert kept[0].event.body == b"not json"


async def test_nothing_but_poison_ends_the_replay(replays):
    replays.environment["CONSUMER_POISON_LIMIT"] = "20"
    with (
        Coordinator(Shares(1_000, whole=True)) as coordinator,
        pytest.RaisesGroup(pytest.RaisesExc(PoisonError, match="POISON_LIMIT is 20")),
    ):
        await replays.run({"0": [event("0", number, b"?") for number in range(50)]}, coordinator)


async def test_a_later_attempt_takes_over_and_the_earlier_one_ends(replays):
    events = stream("0", 300)
    with Coordinator(Shares(100, whole=True)) as coordinator:
        first = asyncio.create_task(replays.run({"0": events}, coordinator, attempt="first"))
        await until(lambda: replays.cosmos.document_count("db", "flights") > 0)
        second = asyncio.create_task(replays.run({"0": events}, coordinator, attempt="second"))
        with pytest.RaisesGroup(pytest.RaisesExc(SupersededError)):
            await first
        counts = (await second)["0"]

    assert counts.skipped + counts.written == 300
    assert replays.cosmos.document_count("db", "flights") == 300


async def test_without_the_driver_nothing_is_written_once_the_lease_has_ended(replays):
    coordinator = Coordinator(Shares(200, whole=True, lease=4.0))  # a loaded machine may not ask for seconds
    with coordinator:
        run = asyncio.create_task(replays.run({"0": stream("0", 2_000)}, coordinator))
        await until(lambda: replays.cosmos.document_count("db", "flights") > 0)
    with pytest.RaisesGroup(pytest.RaisesExc(UnreachableError, match="gave no share of the budget in time")):
        await run

    written = replays.cosmos.document_count("db", "flights")
    await asyncio.sleep(0.3)
    assert written == replays.cosmos.document_count("db", "flights") < 2_000


async def test_who_does_not_know_the_token_gets_no_share(replays, monkeypatch):
    monkeypatch.setattr(module, "FIRST_ANSWER_WITHIN", 0.5)
    with Coordinator(Shares(100, whole=True)) as coordinator:
        other = Coordinator(Shares(100, whole=True))
        coordinator.address = type(coordinator.address)(coordinator.address.url, other.address.token)
        other._server.server_close()
        with pytest.RaisesGroup(pytest.RaisesExc(UnreachableError, match="answered 401")):
            await replays.run({"0": stream("0", 10)}, coordinator)

    assert replays.cosmos.document_count("db", "flights") == 0


async def test_a_container_created_anew_is_another_one_and_a_missing_one_is_told_at_once(replays):
    hub = read_target(replays.environment)
    first = await container_id(hub)

    assert await container_id(hub) == first
    replays.cosmos.recreate_container("db", "flights")
    assert await container_id(hub) != first
    missing = {**replays.environment, "COSMOS_CONTAINER": "trains"}
    with pytest.raises(InputError, match="trains"):
        await container_id(read_target(missing))


@pytest.mark.parametrize(
    ("part", "call"), [(BackfillSink, "open"), (CountedDeadLetters, "open"), (BlobCheckpointStore, "claim")]
)
async def test_what_is_away_at_the_opening_is_waited_for(replays, monkeypatch, part, call):
    """A short outage must not cost the whole start of a job."""
    monkeypatch.setattr(module, "AGAIN_AFTER", 0.05)
    works, failures = getattr(part, call), [UnavailableError("away"), UnavailableError("away")]

    async def away_at_first(self, *args, **options):
        if failures:
            raise failures.pop()
        return await works(self, *args, **options)

    monkeypatch.setattr(part, call, away_at_first)
    with Coordinator(Shares(1_000, whole=True)) as coordinator:
        [counts] = (await replays.run({"0": stream("0", 20)}, coordinator)).values()

    assert (counts.written, failures) == (20, [])
