"""What the lag collector makes of hubs and containers that are odd; both are stubs in memory."""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec
import pytest
from azure.eventhub.exceptions import AuthenticationError, ConnectError

from scaling.collectors.event_hub import collector as event_hub_lag
from scaling.collectors.event_hub.age import EventHubAgeCollector
from scaling.collectors.event_hub.checkpoint_layouts import Consumer
from scaling.collectors.event_hub.collector import Clients, EventHubLagCollector
from scaling.ports import CollectError
from scaling.service.registry import reader_class
from tidemark.foundation.settings_reader import parse_params

NOW = 1_700_000_000.0
CREATED = 1_600_000_000.0
FOLDER = "acme.servicebus.windows.net/orders/$default"
CONSUMER = Consumer("acme.servicebus.windows.net", "Orders", "$Default")


class StubHub:
    """`partitions`: first number, last number of each; a partition whose first is above its last is empty."""

    def __init__(self, partitions: dict[str, tuple[int, int]]) -> None:
        self.partitions = partitions
        self.log: list[str] = []
        self.failure: Exception | None = None
        self.closed = 0
        self.created_at = CREATED

    async def get_eventhub_properties(self):
        if self.failure is not None:
            raise self.failure
        created_at = datetime.fromtimestamp(self.created_at, UTC)
        return {"partition_ids": list(self.partitions), "created_at": created_at}

    async def get_partition_properties(self, partition: str):
        self.log.append("partition")
        begin, last = self.partitions[partition]
        return {
            "beginning_sequence_number": begin,
            "last_enqueued_sequence_number": last,
            "is_empty": begin > last,
        }

    async def close(self) -> None:
        self.closed += 1


class StubContainer:
    """`blobs`: name -> (metadata or None, body, time written)."""

    def __init__(self, log: list[str]) -> None:
        self.blobs: dict[str, tuple[dict | None, bytes, float]] = {}
        self.log = log
        self.failure: Exception | None = None
        self.closed = 0

    def checkpoint(self, partition: str, number: int, written_at: float = NOW, **more: str) -> None:
        name = f"{FOLDER}/checkpoint/{partition}"
        self.blobs[name] = ({"sequencenumber": str(number), "offset": "1", **more}, b"", written_at)

    async def list_blobs(self, *, name_starts_with: str, include: list[str]):
        self.log.append(f"list {name_starts_with}")
        if self.failure is not None:
            raise self.failure
        for name, (metadata, _, written_at) in self.blobs.items():
            if name.startswith(name_starts_with):
                yield SimpleNamespace(
                    name=name, metadata=metadata, last_modified=datetime.fromtimestamp(written_at, UTC)
                )

    async def walk_blobs(self, *, include: list[str], delimiter: str):
        async for blob in self.list_blobs(name_starts_with="", include=include):
            yield blob if delimiter not in blob.name else SimpleNamespace(name=blob.name.split("/")[0] + "/")

    async def download_blob(self, name: str):
        async def readall() -> bytes:
            return self.blobs[name][1]

        return SimpleNamespace(readall=readall)

    async def close(self) -> None:
        self.closed += 1


class Stubbed(EventHubLagCollector):
    def __init__(self, partitions: dict[str, tuple[int, int]], **options) -> None:
        params, problems = parse_params(self.Params, {"connection": "Hubs", "event_hub": "Orders", **options})
        assert not problems
        super().__init__(params, {})
        self.hub = StubHub(partitions)
        self.container = StubContainer(self.hub.log)

    def _open(self):
        return Clients(self.hub, self.container, CONSUMER)

    async def values(self) -> dict[str, float]:
        return dict((await self.collect(now=NOW)).values)


async def test_raw_and_capped_lag_are_both_kept_beside_what_bounds_the_useful_instances():
    collector = Stubbed({"0": (0, 199), "1": (0, 9), "2": (0, 4)}, target=64)
    for partition, number in (("0", 99), ("1", 9), ("2", 3)):
        collector.container.checkpoint(partition, number)
    collector.hub.partitions["0"] = (0, 1099)

    assert await collector.values() == {
        "lag": 1001.0,
        "capped_lag": 192.0,
        "max_partition_lag": 1000.0,
        "partitions": 3.0,
        "partitions_with_lag": 2.0,
        "no_checkpoint": 0.0,
        "hub_recreated": 0.0,
        "expired": 0.0,
        "stale": 0.0,
        "lost": 0.0,
        "incoming": 1115.0,
        "outgoing": 114.0,
    }


async def test_without_a_target_no_capped_lag_is_made_up():
    assert "capped_lag" not in await Stubbed({"0": (0, 9)}).values()


async def test_the_states_of_partitions_are_counted():
    collector = Stubbed({"0": (0, 10), "1": (0, 10), "2": (990, 1000), "3": (0, 10), "4": (5, 4)})
    for partition, number in (("1", 50_010), ("2", 900), ("3", 15)):
        collector.container.checkpoint(partition, number)

    values = await collector.values()

    assert values["lag"] == 11 + 11 + 11
    states = ("no_checkpoint", "hub_recreated", "expired", "stale")
    assert [values[name] for name in states] == [1, 1, 1, 1]
    assert values["lost"] == 89


async def test_a_checkpoint_written_before_the_hub_was_created_is_of_an_earlier_hub():
    collector = Stubbed({"0": (0, 60_000)})
    collector.container.checkpoint("0", 50_010, written_at=CREATED - 60)

    values = await collector.values()

    assert (values["lag"], values["hub_recreated"]) == (60_001, 1)


@pytest.mark.parametrize(("created", "is_other"), [(CREATED, 0), (CREATED - 30, 1), (CREATED + 30, 1)])
async def test_a_checkpoint_that_tells_its_hub_is_of_another_one_by_that_alone(created, is_other):
    collector = Stubbed({"0": (0, 60_000)})
    origin = f'{{"hub":{round(created * 1000)}}}'
    collector.container.checkpoint("0", 50_010, written_at=CREATED + 90, origin=origin)

    assert (await collector.values())["hub_recreated"] == is_other


async def test_a_checkpoint_saved_before_the_hub_was_created_stays_one_when_its_partition_is_claimed_anew():
    """Our consumer's claim writes to the blob and keeps the position, and the time it was saved."""
    collector = Stubbed({"0": (0, 60_000)})
    metadata = {"sequencenumber": "50010", "offset": "1", "savedat": repr(CREATED - 60)}
    collector.container.blobs[f"{FOLDER}/checkpoint/0"] = (metadata, b"", NOW)

    assert (await collector.values())["hub_recreated"] == 1


@pytest.mark.parametrize(
    ("partitions", "checkpoints", "change", "keeps"),
    [
        ({"0": (0, 9)}, {"0": 4}, {"0": 6}, {"incoming", "outgoing"}),
        ({"0": (0, 9), "1": (0, -1)}, {"0": 4}, {"0": 5}, {"incoming", "outgoing"}),
        ({"0": (0, 9), "1": (0, 9)}, {"0": 4}, {"1": 5}, {"incoming"}),  # its first checkpoint
        ({"0": (5, 9)}, {"0": 2}, {"0": 6}, {"incoming"}),  # of events that retention removed before
        ({"0": (0, 9)}, {"0": 4}, {}, set()),  # the hub is made anew, below
    ],
)
async def test_what_is_counted_is_named_by_the_hub_and_by_the_partitions_with_a_position(
    partitions, checkpoints, change, keeps
):
    collector = Stubbed(partitions)
    for partition, number in checkpoints.items():
        collector.container.checkpoint(partition, number)
    before = await collector.collect(now=NOW)
    for partition, number in change.items():
        collector.container.checkpoint(partition, number)
    if not change:
        collector.hub.created_at += 0.001
    after = await collector.collect(now=NOW + 60)

    assert {name for name, counter in after.counters.items() if before.counters[name] == counter} == keeps
    assert set(EventHubLagCollector.GROWING) == set(before.counters)


@pytest.mark.parametrize(("last", "counts"), [(9, False), (-1, True)])
async def test_without_any_checkpoint_what_was_settled_is_known_of_an_empty_hub_only(last, counts):
    assert ("outgoing" in await Stubbed({"0": (0, last)}).values()) is counts


async def test_a_state_that_is_to_be_held_is_an_error_that_names_setting_partition_numbers_and_blob():
    collector = Stubbed({"7": (0, 10)}, hub_recreated="hold")
    collector.container.checkpoint("7", 50_010)

    with pytest.raises(CollectError) as raised:
        await collector.values()

    assert 'hub_recreated = "hold"' in str(raised.value)
    assert "partition 7 is hub_recreated: checkpoint 50010, events 0 to 10" in str(raised.value)
    assert f"blob 'eventhub-checkpoints/{FOLDER}/checkpoint/7'" in str(raised.value)


async def test_of_two_checkpoints_the_one_written_last_is_read_even_when_its_number_is_lower():
    """A consumer set back to an earlier event leaves the blob of its predecessor far ahead."""
    collector = Stubbed({"0": (0, 999)})
    collector.container.checkpoint("0", 99, written_at=NOW)
    body = b'{"Offset": "1", "SequenceNumber": 899}'
    collector.container.blobs[f"{FOLDER}/0"] = ({}, body, NOW - 60)
    assert (await collector.values())["lag"] == 900

    collector.container.blobs[f"{FOLDER}/0"] = ({}, body, NOW + 60)
    assert (await collector.values())["lag"] == 100


async def test_a_newer_lease_without_a_position_does_not_hide_a_checkpoint():
    collector = Stubbed({"0": (0, 999)})
    collector.container.checkpoint("0", 99)
    lease = b'{"Offset": "", "SequenceNumber": 0}'
    collector.container.blobs[f"{FOLDER}/0"] = ({}, lease, NOW + 60)

    assert (await collector.values())["lag"] == 900


async def test_a_forced_layout_is_the_only_one_read():
    collector = Stubbed({"0": (0, 9)}, layout="legacy")
    collector.container.checkpoint("0", 9)
    collector.container.blobs["$Default/0"] = (None, b'{"Offset": "1", "SequenceNumber": 5}', NOW - 60)

    assert (await collector.values())["lag"] == 4


async def test_checkpoints_are_read_before_partitions_and_in_one_request():
    """So that a consumer that settles events meanwhile cannot be found ahead of its partition."""
    collector = Stubbed({"0": (0, 9), "1": (0, 9)})
    collector.container.checkpoint("0", 9)
    collector.container.checkpoint("1", 9)

    await collector.values()

    assert collector.hub.log == [f"list {FOLDER}/", "partition", "partition"]


async def test_a_blob_that_holds_no_position_is_an_error_that_names_it():
    collector = Stubbed({"0": (0, 9)})
    collector.container.blobs[f"{FOLDER}/0"] = ({}, b"<html>", NOW)

    with pytest.raises(
        CollectError, match=r"blob 'eventhub-checkpoints/acme\..*/0' is no checkpoint of the layout"
    ):
        await collector.values()


async def test_a_missing_hub_is_told_whichever_way_the_service_says_it():
    collector = Stubbed({"0": (0, 9)})
    for error in (
        AuthenticationError("CBS Token authentication failed.\nStatus code: 404\nDescription: not found"),
        ConnectError("gone", SimpleNamespace()),
    ):
        error.error = "not-found" if error.message == "gone" else None
        collector.hub.failure = error
        with pytest.raises(CollectError, match=r"event hub 'Orders'.* does not exist"):
            await collector.values()


async def test_one_failing_partition_fails_the_read_and_leaves_no_task_behind():
    collector = Stubbed({"0": (0, 9), "1": (0, 9)})
    del collector.hub.partitions["1"]
    collector.hub.get_eventhub_properties = properties_of("0", "1")

    with pytest.raises(CollectError, match="event hub 'Orders'"):
        await collector.values()


def properties_of(*partitions: str):
    async def get():
        return {"partition_ids": list(partitions), "created_at": datetime.fromtimestamp(CREATED, UTC)}

    return get


async def test_where_checkpoints_were_read_is_logged_when_it_changes(caplog):
    caplog.set_level(logging.INFO, logger=event_hub_lag.__name__)
    collector = Stubbed({"0": (0, 9), "1": (0, 9)})
    collector.container.checkpoint("0", 9)
    collector.container.checkpoint("1", 50_000)

    await collector.values()
    await collector.values()

    first, second = (record.getMessage() for record in caplog.records)
    assert f"2 of layout blob_metadata in 'eventhub-checkpoints/{FOLDER}/checkpoint/'" in first
    assert "partition 1 is hub_recreated" in second
    assert f"{FOLDER}/checkpoint/1" in second

    collector.container.checkpoint("1", 9)
    await collector.values()
    assert len(caplog.records) == 3


async def test_a_checkpoint_that_its_writer_keeps_ahead_of_a_hub_that_was_made_anew_hides_no_backlog():
    collector = Stubbed({"0": (0, 29)})
    collector.container.checkpoint("0", 89)  # written again after the hub was created
    lags = [(await collector.collect(now=NOW + seconds)).values["lag"] for seconds in (0.0, 30.0, 60.0)]
    collector.hub.partitions["0"] = (0, 109)
    lags.append((await collector.collect(now=NOW + 90.0)).values["lag"])
    collector.container.checkpoint("0", 99)
    lags.append((await collector.collect(now=NOW + 120.0)).values["lag"])

    assert lags == [0.0, 0.0, 30.0, 110.0, 10.0]


async def test_a_hub_that_is_made_anew_while_it_is_read_is_not_read():
    collector = Stubbed({"0": (0, 9)})
    collector.container.checkpoint("0", 89)
    found = collector.hub.get_partition_properties

    async def anew(partition):
        collector.hub.created_at += 1.0
        return await found(partition)

    collector.hub.get_partition_properties = anew
    with pytest.raises(CollectError, match=r"\(connection Hubs\): was created anew while it was read"):
        await collector.values()


class AgeStubbed(Stubbed, EventHubAgeCollector):
    """Events that came so many seconds ago, by partition and number; `received` are the numbers asked for."""

    def __init__(self, partitions, ages, **options) -> None:
        super().__init__(partitions, **options)
        self.ages = ages
        self.received: list[tuple[str, int]] = []
        self.hub.receive = self.receive

    async def receive(self, on_event, *, partition_id, starting_position, on_error, **options):
        assert options == {"prefetch": 1, "starting_position_inclusive": True}
        self.received.append((partition_id, starting_position))
        there = sorted(number for number in self.ages.get(partition_id, {}) if number >= starting_position)
        if there:
            came = self.ages[partition_id][there[0]]
            at = None if came is None else datetime.fromtimestamp(NOW - came, UTC)
            await on_event(None, SimpleNamespace(sequence_number=there[0], enqueued_time=at))
        await asyncio.Event().wait()


async def test_an_event_is_received_once_while_it_is_the_first_that_is_not_settled():
    collector = AgeStubbed({"0": (0, 9), "1": (0, 3)}, {"0": {5: 90, 8: 40, 2: 200}, "1": {}})
    collector.container.checkpoint("1", 3)
    ages = []
    for number in (4, 4, 6, 1, 9):  # with a gap in the numbers, and set back
        collector.container.checkpoint("0", number)
        ages.append(round((await collector.values())["oldest_age"]))
    collector.hub.created_at += 1
    collector.container.checkpoint("0", 6, written_at=NOW + 1)
    await collector.values()

    assert ages == [90, 90, 40, 200, 0]
    assert collector.received == [("0", 5), ("0", 7), ("0", 2), ("0", 7)]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (
            {},
            "events from number 5 on, but none came within 0.05 s to a reader in consumer group '.+', which has",
        ),
        ({5: None}, "the event 5 of partition 0 does not say when it came"),
        ({5: -90}, "oldest_age cannot be known: the message came 90 s after now"),
    ],
)
async def test_an_age_that_cannot_be_told_is_no_zero(monkeypatch, events, words):
    monkeypatch.setattr("scaling.collectors.event_hub.age.PATIENCE", 0.05)
    collector = AgeStubbed({"0": (0, 9)}, {"0": events})
    collector.container.checkpoint("0", 4)

    with pytest.raises(CollectError, match=words):
        await collector.values()


async def test_a_hub_that_does_not_let_anybody_receive_is_an_error_in_its_words():
    collector = AgeStubbed({"0": (0, 9)}, {})

    async def refuse(*_, on_error, **__):
        await on_error(None, ConnectError("no more readers", SimpleNamespace()))

    collector.hub.receive = refuse
    with pytest.raises(CollectError, match=r"event hub 'Orders'.*no more readers"):
        await collector.values()


async def test_a_link_that_does_not_close_costs_one_reading_and_not_all(monkeypatch):
    """The SDK sometimes loses a cancellation, and a client with such a link cannot receive from its partition any more."""
    monkeypatch.setattr("scaling.collectors.event_hub.age.CLOSING", 0.05)
    collector = AgeStubbed({"0": (0, 9)}, {"0": {0: 300, 5: 90}})
    receive = collector.receive

    async def deaf(*args, **options):
        with contextlib.suppress(asyncio.CancelledError):
            await receive(*args, **options)
        await asyncio.Event().wait()

    collector.hub.receive = deaf
    assert round((await collector.values())["oldest_age"]) == 300
    collector.container.checkpoint("0", 4)
    with pytest.raises(CollectError, match="has not closed; the next read opens others"):
        await collector.values()

    assert collector.hub.closed == 1
    assert round((await collector.values())["oldest_age"]) == 90
    await collector.aclose()


def test_the_age_is_a_reading_of_its_own():
    params, _ = parse_params(EventHubLagCollector.Params, {"connection": "Hubs", "event_hub": "orders"})
    with_group = msgspec.structs.replace(params, age_group="ages")

    assert reader_class(EventHubLagCollector, "oldest_age") is EventHubAgeCollector
    assert EventHubLagCollector.entity(params) == EventHubLagCollector.entity(with_group)
    ages = {EventHubAgeCollector.entity(params), EventHubAgeCollector.entity(with_group)}
    assert len(ages | {EventHubLagCollector.entity(params)}) == 3


async def test_both_clients_are_closed():
    collector = Stubbed({"0": (0, 9)})
    await collector.values()

    await collector.aclose()

    assert (collector.hub.closed, collector.container.closed) == (1, 1)


def test_metrics_share_a_read_unless_an_option_would_change_it():
    def entity(**options):
        params, _ = parse_params(
            EventHubLagCollector.Params, {"connection": "Hubs", "event_hub": "orders", **options}
        )
        return EventHubLagCollector.entity(params)

    assert entity() == entity(consumer_group="$Default", jitter=10_000)
    changes = [
        {"consumer_group": "b"},
        {"target": 5},
        {"stale": "hold"},
        {"container": "c"},
        {"storage": "S"},
    ]
    assert len({entity(), *(entity(**change) for change in changes)}) == len(changes) + 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"event_hub": ""}, "event_hub"),
        ({"layout": "java"}, "layout"),
        ({"no_checkpoint": "latest"}, "no_checkpoint"),
        ({"expired": "zero"}, "expired"),
        ({"stale": "earliest"}, "stale"),
        ({"target": 0}, "target"),
        ({"jitter": -1}, "jitter"),
    ],
)
def test_wrong_options_are_named(options, named):
    given = {"connection": "Hubs", "event_hub": "orders", **options}

    _, problems = parse_params(EventHubLagCollector.Params, given)

    assert named in problems
