"""What a task makes of the rows it gets."""

import asyncio
from types import SimpleNamespace

import pyarrow as pa
import pytest

from consumer.model import Event
from spark_jobs.backfill import replay as replay_module
from spark_jobs.backfill import task as module
from spark_jobs.backfill.budget.coordinator import Answer, UnreachableError
from spark_jobs.backfill.budget.progress import Counts
from spark_jobs.backfill.budget.shares import LEASE, SupersededError
from spark_jobs.backfill.task import events_of, replay_partition
from tests.support.virtual_time import in_virtual_time


def rows(*numbers, partition="3", **values):
    return pa.RecordBatch.from_pylist(
        [
            {
                "partition": partition,
                "sequence_number": number,
                "offset": str(number),
                "enqueued_us": 1_790_000_000_500_000,
                "partition_key": None,
                "body": b"{}",
                "properties": [("source", "test")],
                **values,
            }
            for number in numbers
        ],
        schema=pa.schema(
            [
                ("partition", pa.string()),
                ("sequence_number", pa.int64()),
                ("offset", pa.string()),
                ("enqueued_us", pa.int64()),
                ("partition_key", pa.string()),
                ("body", pa.binary()),
                ("properties", pa.map_(pa.string(), pa.string())),
            ]
        ),
    )


@pytest.fixture
def replayed(monkeypatch):
    """What a replay of the task's events would have got."""
    found = []

    async def replay(replaying, partition, attempt, chunks):
        found.extend([event.sequence_number async for events in chunks for event in events])
        return Counts(received=len(found))

    monkeypatch.setattr(module, "replay", replay)
    return found


class SlowClient:
    """Its first answer comes too late: it takes the end of the task's patience for the end of its own."""

    def __init__(self):
        self.asked = 0

    async def ask(self, _ask):
        self.asked += 1
        if self.asked == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise UnreachableError("no answer within a second") from None
        return Answer(amount=10.0, number=1, seconds=3.0)


@in_virtual_time
async def test_a_share_that_comes_after_the_tasks_patience_ended_is_told_as_such():
    asking = replay_module._ShareRequests(
        SlowClient(), "3", "1.1", SimpleNamespace(counts=Counts, use_share=lambda _answer: None)
    )

    with pytest.raises(UnreachableError, match="gave no share of the budget in time"):
        await asking.keep_asking()


class StarvedClient:
    """Gives a share; for nine seconds the driver does not come to answer; then a later attempt has begun."""

    def __init__(self):
        self.asked = 0

    async def ask(self, _ask):
        self.asked += 1
        if self.asked == 1:
            return Answer(amount=10.0, number=1, seconds=LEASE)
        if self.asked == 5:
            raise SupersededError
        await asyncio.sleep(3)
        raise UnreachableError("no answer in time")


@in_virtual_time
async def test_a_driver_that_is_silent_for_some_seconds_ends_no_task():
    client = StarvedClient()
    asking = replay_module._ShareRequests(
        client, "3", "1.1", SimpleNamespace(counts=Counts, use_share=lambda _answer: None)
    )

    with pytest.raises(SupersededError):
        await asking.keep_asking()

    assert client.asked == 5


def test_rows_become_the_events_the_consumer_would_have_received():
    (event,) = events_of(rows(7, partition_key="LGA"))

    assert event == Event("3", 7, "7", 1_790_000_000.5, b"{}", "LGA", {"source": "test"})


def test_an_event_without_a_body_says_so():
    (event,) = events_of(rows(7, body=None, properties=None))

    assert (event.body, event.unreadable) == (b"", "the capture file has no body for it")


def test_a_task_replays_all_batches_in_their_order_and_gives_one_row(replayed):
    batches = iter([rows(), rows(1, 2), rows(3)])

    (result,) = replay_partition(batches, SimpleNamespace())

    assert replayed == [1, 2, 3]
    assert (result.column("partition")[0].as_py(), result.column("received")[0].as_py()) == ("3", 3)


ANOTHER = {"offset": "other", "enqueued_us": 1_790_000_900_500_000}
"""A quarter of an hour later."""


@pytest.mark.parametrize(
    ("batches", "is_told"),
    [
        ([rows(1, 2, 2, 3), rows(3)], False),  # a copy, as capture at least once makes it
        ([rows(1, 2), rows(2, **{**ANOTHER, "offset": "2"})], False),
        ([rows(1, 2), rows(2, **{**ANOTHER, "enqueued_us": 1_790_000_000_000_000})], False),  # whole seconds
        ([rows(1, 2), rows(2, **ANOTHER)], True),
        ([rows(1, 2), rows(2, enqueued_us=1_790_000_000_000_000), rows(2, **ANOTHER)], True),
    ],
)
def test_two_events_of_one_number_end_the_task_and_are_no_copies(batches, is_told, replayed):
    """Two hubs of one name within two hours: `begins_again` cannot tell. One of the two events would be left out in silence."""
    if not is_told:
        replay_partition(iter(batches), SimpleNamespace()).__next__()
        return
    told = r"partition 3: two events have the number 2, enqueued at 2026-09-21T.* and 2026-09-21T14:28:20"
    with pytest.raises(RuntimeError, match=told):
        replay_partition(iter(batches), SimpleNamespace()).__next__()


@pytest.mark.parametrize(("earlier_by", "is_told"), [(59, False), (3600, True)])
def test_times_that_go_back_where_numbers_go_on_end_the_task(earlier_by, is_told, replayed):
    """Two hubs of one name within two hours whose numbers do not meet: of the first only later ones were captured."""
    batches = [rows(1, 2), rows(50, enqueued_us=1_790_000_000_500_000 - earlier_by * 1_000_000)]
    if not is_told:
        replay_partition(iter(batches), SimpleNamespace()).__next__()
        return
    with pytest.raises(
        RuntimeError, match=r"partition 3: event 50 came at .*, and 1, before it, at 2026-09-21T14:13:20"
    ):
        replay_partition(iter(batches), SimpleNamespace()).__next__()


def test_a_task_without_rows_gives_none():
    assert list(replay_partition(iter([]), SimpleNamespace())) == []


def test_events_of_two_partitions_in_one_task_are_refused(replayed):
    with pytest.raises(RuntimeError, match="came to one task"):
        list(replay_partition(iter([rows(1), rows(2, partition="4")]), SimpleNamespace()))
