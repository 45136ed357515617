"""The receiver against the local Event Hubs, over the real SDK and real sockets, with everything that can happen to a
connection: what is handed over is every event once, in order.
"""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_frame, decode_payload
from azure.eventhub._pyamqp.aio import _receiver_async
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.aio._client_base_async import ClientBaseAsync
from azure.eventhub.amqp import AmqpAnnotatedMessage

from consumer.errors import FencedError, PositionError
from consumer.leasing.start_position import Start
from consumer.receiving import fast_path as shortcut_module
from consumer.receiving.layouts import EventReader, TransferLayout
from consumer.receiving.link import Link
from consumer.receiving.receiver import HubReceiver, ReceiverOptions
from consumer.receiving.sdk_frames import LinkCounters
from devstack.servers.faults import Fault
from tests.support.servers.event_hubs import FAST, HUB, producing, running_server
from tests.support.waiting import until
from tidemark.foundation.errors import SettingsError, UnavailableError

pytestmark = pytest.mark.wire

FROM_THE_BEGINNING = Start()


@pytest.fixture
async def server(tmp_path):
    async with running_server(tmp_path) as running:
        yield running


@asynccontextmanager
async def a_receiver(server, *, hub=HUB, group="$Default", tls=False, **options):
    settings, client = {"Hub": server.connection_string()}, dict(FAST)
    if tls:
        settings = {"Hub": server.tls_connection_string(), "TIDEMARK_CA_BUNDLE": str(server.ca_path)}
        client = {"custom_endpoint_address": server.tls_options()["custom_endpoint_address"]}
    receiver = HubReceiver(settings, "Hub", hub, group, options=ReceiverOptions(**options), **client)
    try:
        yield receiver
    finally:
        await receiver.close()


class Taken:
    """What `on_events` got. With events it waits while `gate` is closed."""

    def __init__(self):
        self.events = []
        self.last_enqueued = []
        self.idle = 0
        self.lost = []
        self.gate = asyncio.Event()
        self.gate.set()

    def on_expired(self, expired):
        self.lost.append((expired.first, expired.last, expired.count))

    async def __call__(self, events, last_enqueued):
        self.events += events
        self.idle += not events
        self.last_enqueued.append(last_enqueued)
        if events:
            await self.gate.wait()

    @property
    def numbers(self):
        return [event.sequence_number for event in self.events]


@asynccontextmanager
async def taking(receiver, *, partition="0", start=FROM_THE_BEGINNING, epoch=1):
    taken = Taken()
    task = asyncio.create_task(receiver.receive(partition, start, epoch, taken, taken.on_expired))
    taken.task = task
    try:
        yield taken
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, FencedError, PositionError):
            await task


def fill(server, count, *, size=20, partition="0"):
    server.append(HUB, partition, [b"x" * size for _ in range(count)])


async def test_partitions_and_their_states_are_what_the_hub_says(server):
    fill(server, 10)
    server.expire(HUB, "0", 4)

    async with a_receiver(server) as receiver:
        assert await receiver.partitions() == ["0", "1"]
        state, empty = await receiver.state("0"), await receiver.state("1")

    assert (state.begin_sequence_number, state.last_sequence_number, state.empty) == (4, 9, False)
    assert state.last_offset == server.log(HUB, "0").last_offset
    assert (empty.last_sequence_number, empty.empty) == (-1, True)


async def test_callers_at_the_same_time_share_a_question_after_their_calls_and_links_do(server, monkeypatch):
    fill(server, 1)
    asked, ask = [], ClientBaseAsync._get_eventhub_properties_async

    async def counting(client):
        asked.append(client)
        return await ask(client)

    monkeypatch.setattr(ClientBaseAsync, "_get_eventhub_properties_async", counting)
    async with a_receiver(server) as receiver:
        first = asyncio.create_task(receiver.partitions())
        await until(lambda: asked)
        later = [asyncio.create_task(receiver.partitions()) for _ in range(8)]
        await asyncio.sleep(0)
        later[0].cancel()
        answers = await asyncio.gather(first, *later[1:])
        assert answers == [["0", "1"]] * 8
        assert len(asked) == 2
        async with taking(receiver) as taken, taking(receiver, partition="1"):
            await until(lambda: taken.events)

    assert len(asked) == 3


async def test_a_hub_that_is_not_there_is_a_wrong_setting(server):
    async with a_receiver(server, hub="nowhere") as receiver:
        with pytest.raises(SettingsError, match="no event hub 'nowhere'"):
            await receiver.partitions()


async def test_a_refused_or_silent_management_node_is_unavailable(server, monkeypatch):
    monkeypatch.setattr("consumer.receiving.hub._REQUEST_TIMEOUT", 1.0)
    async with a_receiver(server) as receiver:
        for kind in ("error", "no_answer", "half_open", "drop_connection"):
            server.faults.add(Fault(f"manage:{HUB}", kind))
            with pytest.raises(UnavailableError, match=HUB):
                await receiver.partitions()
            server.faults.clear()

        assert await receiver.partitions() == ["0", "1"]


async def test_a_request_that_swallows_its_cancellation_holds_up_nobody(server, monkeypatch):
    asked, answer = asyncio.Event(), asyncio.Event()

    async def swallowing(_client, _partition):
        asked.set()
        with suppress(asyncio.CancelledError):
            await answer.wait()
        await answer.wait()

    monkeypatch.setattr(EventHubConsumerClient, "get_partition_properties", swallowing)
    async with a_receiver(server) as receiver:
        asking = asyncio.create_task(receiver.state("0"))
        await asked.wait()
        asking.cancel()
        await asyncio.wait({asking}, timeout=5)
        ended = asking.done()
        answer.set()

        assert ended
        assert asking.cancelled()


@pytest.mark.parametrize("shortcut", [True, False])
async def test_events_arrive_whole(server, shortcut):
    async with producing(server) as producer:
        batch = await producer.create_batch(partition_id="0")
        event = EventData(b'{"a":1}')
        event.properties = {"name": "München", "count": 3, "raw": b"\xff", "header": b"text"}
        event.content_type = "avro/binary+0123"
        event.raw_amqp_message.properties.content_encoding = "gzip"
        batch.add(event)
        batch.add(AmqpAnnotatedMessage(data_body=[b"one", b"two"]))
        batch.add(AmqpAnnotatedMessage(value_body={"a": 1}))
        batch.add(AmqpAnnotatedMessage(sequence_body=[[1, 2], ["x"]]))
        batch.add(EventData(b""))
        await producer.send_batch(batch)
    server.append(HUB, "0", [b"keyed"], partition_key="k")

    async with a_receiver(server, shortcut=shortcut) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 6)

    first, sections, value, sequence, empty, keyed = taken.events
    assert (first.partition, first.sequence_number, first.body) == ("0", 0, b'{"a":1}')
    assert first.properties == {"name": "München", "count": 3, "raw": b"\xff", "header": "text"}
    assert (first.content_type, first.content_encoding) == ("avro/binary+0123", "gzip")
    assert (sections.content_type, sections.content_encoding) == (None, None)
    assert first.enqueued_at == server.events(HUB, "0")[0].enqueued_ms / 1000
    assert first.offset == server.events(HUB, "0")[0].offset
    assert (sections.body, sections.unreadable) == (b"onetwo", None)
    assert value.unreadable == "the body is an AMQP value, not data"
    assert b"1" in value.body
    assert sequence.unreadable == "the body is an AMQP sequence, not data"
    assert b"[1, 2]" in sequence.body
    assert (empty.body, empty.unreadable) == (b"", None)
    assert keyed.partition_key == "k"
    assert taken.last_enqueued[-1] == 5


@pytest.mark.parametrize(
    ("owner", "step", "sound_calls"),
    [
        (EventReader, "read", 40),
        (TransferLayout, "take", 2),
        (LinkCounters, "keep", 1),
        (shortcut_module, "decode_frame", 0),  # the first frame; those behind it look the same
    ],
)
async def test_a_shortcut_that_fails_on_the_way_costs_no_event_and_doubles_none(
    server, monkeypatch, owner, step, sound_calls
):
    sound, calls = getattr(owner, step), 0

    def failing(*arguments):
        nonlocal calls
        calls += 1
        if calls > sound_calls:
            raise ValueError("not as expected")
        return sound(*arguments)

    monkeypatch.setattr(owner, step, failing)
    for _ in range(30):  # transfers of their own
        server.append(HUB, "0", [b"x" * 100] * 10)

    async with a_receiver(server, prefetch=50, batch=20) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) >= 300)
        server.append(HUB, "0", [b"later"])
        await until(lambda: len(taken.events) >= 301)

    assert taken.numbers == list(range(301))
    assert receiver.options.shortcut is False


async def test_large_and_small_events_arrive_over_tls(server):
    for size in (10, 200_000, 0, 300, 70_000):
        server.append(HUB, "0", [bytes(range(256)) * (size // 256) + b"x" * (size % 256)] * 3)

    async with a_receiver(server, tls=True) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 15)

    assert taken.numbers == list(range(15))
    assert [len(event.body) for event in taken.events[::3]] == [10, 200_000, 0, 300, 70_000]
    assert taken.events[3].body[:256] == bytes(range(256))


async def test_the_hooks_into_the_sdk_hold(server, monkeypatch):
    decoded, alone = [], []

    def counting(buffer):
        decoded.append(buffer)
        return decode_payload(buffer)

    def counting_frame(frame):
        alone.append(frame)
        return decode_frame(frame)

    monkeypatch.setattr(_receiver_async, "decode_payload", counting)
    monkeypatch.setattr(shortcut_module, "decode_frame", counting_frame)
    fill(server, 500)
    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 500)
        seen = len(decoded)
        fill(server, 500)
        await until(lambda: len(taken.events) == 1000)

    assert seen < 500
    assert len(decoded) == seen, "the SDK decodes nothing any more"
    assert len(alone) < 10, "all but a few frames are taken together with others"
    assert taken.numbers == list(range(1000))


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (Start(), 0),
        (Start(sequence_number=5), 6),
        (Start(sequence_number=5, inclusive=True), 5),
        (Start(time=200.0), 10),
    ],
)
async def test_receiving_begins_at_the_start_given(server, start, first):
    server.append(HUB, "0", [b"old"] * 10, enqueued_ms=100_000)
    server.append(HUB, "0", [b"new"] * 10, enqueued_ms=200_000)

    async with a_receiver(server) as receiver, taking(receiver, start=start) as taken:
        await until(lambda: taken.events and taken.numbers[-1] == 19)

    assert taken.numbers == list(range(first, 20))
    assert receiver.statistics().redelivered == 0


async def test_a_blocked_callback_holds_the_service_back(server):
    fill(server, 1000)

    async with a_receiver(server, prefetch=50, batch=10) as receiver, taking(receiver) as taken:
        taken.gate.clear()
        await until(lambda: taken.events)
        consumer = server.consumers(HUB, "0")[0]
        await asyncio.sleep(0.5)
        sent_while_blocked = consumer.next_sequence_number
        held = len(taken.events)
        taken.gate.set()
        await until(lambda: len(taken.events) == 1000)

    assert held == 10
    assert sent_while_blocked <= 150
    assert taken.numbers == list(range(1000))


@pytest.mark.parametrize("shortcut", [True, False])
async def test_killed_connections_cost_neither_a_gap_nor_a_repeat(server, shortcut):
    fill(server, 6000)

    async with (
        a_receiver(server, prefetch=100, batch=20, shortcut=shortcut) as receiver,
        taking(receiver) as taken,
    ):
        for mark in (100, 1500, 3000):
            await until(lambda mark=mark: len(taken.events) > mark)
            server.drop_connections()
        await until(lambda: taken.events and taken.numbers[-1] == 5999, within=40)
        reconnects = receiver.statistics().reconnects

    assert taken.numbers == list(range(6000))
    assert reconnects >= 3


@pytest.mark.parametrize("kind", ["detach", "drop_connection"])
async def test_a_link_cut_before_its_first_event_begins_where_it_should(server, kind):
    fill(server, 10)
    server.faults.add(Fault("deliver:*", kind))
    server.faults.add(Fault("attach:*/Partitions/0", "error"))

    async with a_receiver(server) as receiver, taking(receiver, start=Start(sequence_number=2)) as taken:
        await until(lambda: len(taken.events) == 7)

    assert taken.numbers == list(range(3, 10))


async def test_a_failed_link_waits_for_a_callback_that_is_still_at_work(server):
    fill(server, 100)

    async with a_receiver(server, prefetch=20, batch=10) as receiver, taking(receiver) as taken:
        taken.gate.clear()
        await until(lambda: taken.events)
        server.drop_connections()
        await asyncio.sleep(1.5)
        held = len(taken.events)
        taken.gate.set()
        await until(lambda: len(taken.events) >= 100)

    assert held == 10
    assert taken.numbers == list(range(100))


async def test_expired_tokens_are_replaced(server):
    fill(server, 10)

    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 10)
        server.expire_tokens()
        fill(server, 10)
        await until(lambda: len(taken.events) == 20)

    assert taken.numbers == list(range(20))


async def test_a_higher_epoch_takes_the_partition_and_the_loser_is_told(server):
    fill(server, 10)

    async with a_receiver(server) as old, a_receiver(server) as new, taking(old, epoch=1) as loser:
        await until(lambda: len(loser.events) == 10)
        async with taking(new, epoch=2, start=Start(sequence_number=9)) as winner:
            with pytest.raises(FencedError, match="partition 0"):
                await asyncio.wait_for(loser.task, 10)
            fill(server, 5)
            await until(lambda: len(winner.events) == 5)

            with pytest.raises(FencedError):
                await asyncio.wait_for(old.receive("0", Start(), 1, loser), 10)

    assert loser.numbers == list(range(10))


async def test_a_silent_link_is_replaced_when_the_partition_has_more(server):
    fill(server, 10)

    async with a_receiver(server, idle=0.2, stuck_after=0.5) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 10)
        server.freeze_connections()
        fill(server, 10)
        await until(lambda: len(taken.events) == 20)

        replaced = receiver.statistics().stuck
        assert (
            replaced >= 1
        )  # more on a machine too busy to open a link within the time after which it is stuck
        idle_before = taken.idle
        await until(lambda: taken.idle > idle_before + 5)

    assert taken.numbers == list(range(20))
    assert receiver.statistics().stuck == replaced, "an idle partition is not a stuck one"


async def test_links_that_take_longer_to_open_than_a_silent_one_is_given_are_given_longer_each_time(
    server, monkeypatch
):
    fill(server, 10)
    run = Link._run

    async def slow(link, options):
        await asyncio.sleep(1.5)
        await run(link, options)

    monkeypatch.setattr(Link, "_run", slow)
    async with a_receiver(server, idle=0.1, stuck_after=0.4) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 10)
        assert receiver.statistics().stuck >= 1

    assert taken.numbers == list(range(10))


async def test_an_attach_that_is_never_answered_is_given_up(server):
    fill(server, 10)
    server.faults.add(Fault("attach:*", "half_open"))

    async with a_receiver(server, idle=0.2, stuck_after=0.5) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 10)

    assert taken.numbers == list(range(10))


async def test_a_consumer_group_that_does_not_exist_is_named_as_the_likely_cause(server, caplog):
    fill(server, 10)

    async with a_receiver(server, group="nobody", idle=0.2, stuck_after=0.5) as receiver, taking(receiver):
        await until(lambda: receiver.statistics().stuck > 0)

    assert "does the consumer group 'nobody' exist?" in caplog.text


async def test_a_wrong_key_is_told_and_tried_again(server):
    fill(server, 10)
    server.faults.add(Fault("put-token", "error", count=4))

    async with a_receiver(server) as receiver:
        with pytest.raises(UnavailableError, match="CBS"):
            await receiver.partitions()
        async with taking(receiver) as taken:
            await until(lambda: len(taken.events) == 10)
        assert receiver.statistics().reconnects >= 1


async def test_what_is_delivered_again_is_left_out_and_what_is_missing_is_no_obstacle(server):
    fill(server, 50)
    server.skip_sequence_numbers(HUB, "0", 7)
    fill(server, 50)
    server.faults.add(Fault("deliver:*", "duplicate"))

    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) >= 100)
        server.rewind(HUB, "0", 10)
        fill(server, 1)
        await until(lambda: len(taken.events) >= 101)
        redelivered = receiver.statistics().redelivered

    assert taken.numbers == [*range(50), *range(57, 108)]
    assert redelivered >= 40 + 47  # those behind the gap come once more, by the next link


@pytest.mark.parametrize("late", [True, False], ids=["late", "never"])
async def test_an_event_that_a_link_hands_out_late_or_never_comes_by_the_next_one(server, monkeypatch, late):
    fill(server, 100)
    take, changed = Link.take, []

    async def out_of_order(link, timeout):
        events = list(await take(link, timeout))
        if events and not changed:
            changed.append(events.pop(5))
            events += changed * late
        return events

    monkeypatch.setattr(Link, "take", out_of_order)
    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await until(lambda: taken.numbers[-1:] == [99])
        doubted = receiver.statistics().doubted

    assert taken.numbers == [*range(100)]
    assert doubted == 1


def missing(taken, end):
    return sorted(set(range(taken.numbers[0], end)) - set(taken.numbers))


async def test_retention_that_overtakes_a_reader_is_no_obstacle_and_what_it_took_is_told(server):
    fill(server, 100)

    async with a_receiver(server, prefetch=10, batch=10) as receiver, taking(receiver) as taken:
        taken.gate.clear()
        await until(lambda: taken.events)
        server.expire(HUB, "0", 80)
        taken.gate.set()
        await until(lambda: taken.numbers[-1] == 99)

    gone = missing(taken, 100)
    assert taken.numbers == sorted(set(taken.numbers))
    assert gone
    assert taken.lost == [(gone[0], 79, len(gone))]


async def test_what_retention_took_while_the_link_was_away_is_told_though_nothing_comes_after_it(server):
    fill(server, 10)

    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 10)
        server.faults.add(Fault("attach:*/Partitions/0", "error"))
        server.drop_connections()
        fill(server, 20)
        server.expire(HUB, "0", 30)
        await until(lambda: taken.lost)
        server.faults.clear()
        fill(server, 1)
        await until(lambda: taken.numbers[-1] == 30)

    assert taken.lost == [(10, 29, 20)]


async def test_nothing_is_handed_over_beyond_a_gap_until_the_hub_has_explained_it(server, monkeypatch):
    monkeypatch.setattr("consumer.receiving.receiver._LONGEST_BACKOFF", 0.1)
    fill(server, 10)

    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 10)
        answer, handed_over = receiver.state, []

        async def state(partition):
            handed_over.append(len(taken.events))
            if len(handed_over) < 4:
                raise UnavailableError("away")
            return await answer(partition)

        monkeypatch.setattr(receiver, "state", state)
        server.log(HUB, "0").skip(20)
        server.expire(HUB, "0", 25)
        fill(server, 10)
        await until(lambda: len(taken.events) == 20)

    assert handed_over == [10] * 4
    assert taken.lost == [(10, 29, 20)]


async def test_sequence_numbers_that_never_were_are_not_told_as_lost(server):
    fill(server, 10)

    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) == 10)
        server.log(HUB, "0").skip(50_000)
        fill(server, 10)
        await until(lambda: len(taken.events) == 20)

    assert taken.lost == []


async def test_a_hub_created_anew_under_the_receiver_is_noticed(server):
    fill(server, 10)

    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await receiver.partitions()
        await until(lambda: len(taken.events) == 10)
        await asyncio.sleep(0.01)
        server.recreate_hub(HUB)
        with pytest.raises(PositionError, match="created anew"):
            await asyncio.wait_for(taken.task, 20)
        with pytest.raises(PositionError, match="created anew"):
            await receiver.partitions()


async def test_a_hub_created_anew_is_noticed_though_it_has_more_events_already(server):
    fill(server, 10)

    async with a_receiver(server) as receiver, taking(receiver) as taken:
        await receiver.partitions()
        await until(lambda: len(taken.events) == 10)
        server.recreate_hub(HUB)
        fill(server, 20)
        with pytest.raises(PositionError, match="created anew"):
            await asyncio.wait_for(taken.task, 20)

    assert len(taken.events) == 10


async def test_large_events_are_asked_for_in_smaller_numbers(server):
    fill(server, 60, size=200_000)

    async with (
        a_receiver(server, buffered_bytes=4_000_000, assumed_event_bytes=1000, batch=5) as receiver,
        taking(receiver) as taken,
    ):
        await until(lambda: len(taken.events) == 60)
        resized = receiver.statistics().resized

    assert taken.numbers == list(range(60))
    assert resized >= 1


@pytest.mark.parametrize("size", [150, 100_000])
async def test_while_nothing_is_taken_no_more_is_held_than_fits_whatever_its_size(server, size):
    """The SDK by itself reads a batch of 500 ahead, 950 MB in 8 partitions."""
    fits = 2_000_000 // (size + 512)
    fill(server, 5 * fits, size=size)

    async with a_receiver(server, buffered_bytes=2_000_000) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) > 1)
        taken.gate.clear()
        [consumer] = server.consumers(HUB, "0")
        before = -1
        while before != consumer.next_sequence_number:  # nothing more comes
            before = consumer.next_sequence_number
            await asyncio.sleep(0.3)
        handed = len(taken.events)
        assert before - handed <= 2 * fits
        taken.gate.set()
        await until(lambda: len(taken.events) == 5 * fits)

    assert taken.numbers == list(range(5 * fits))


async def test_events_that_become_large_are_bounded_by_their_bytes_not_by_what_the_small_ones_asked_for(
    server,
):
    fill(server, 1000)
    fill(server, 100, size=900_000)

    async with a_receiver(server, buffered_bytes=2_000_000) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) > 20)
        taken.gate.clear()

        def sent():
            return max((consumer.next_sequence_number for consumer in server.consumers(HUB, "0")), default=-1)

        await until(lambda: sent() > 1000)
        before = -1
        while before < 0 or before != sent():
            before = sent()
            await asyncio.sleep(0.3)  # until nothing more comes
        assert 1000 < before <= 1020  # some are in buffers of the network
        taken.gate.set()
        await until(lambda: len(taken.events) >= 1005)

    assert taken.numbers == list(range(len(taken.numbers)))


async def test_a_link_that_asked_for_too_much_is_replaced_while_it_waits(server):
    fill(server, 60, size=100_000)
    fill(server, 5, partition="1")

    async with a_receiver(server, buffered_bytes=4_000_000, idle=0.05) as receiver, taking(receiver) as taken:
        await until(lambda: len(taken.events) > 8)
        taken.gate.clear()
        [first] = server.consumers(HUB, "0")
        async with taking(receiver, partition="1"), taking(receiver, partition="1", epoch=2):
            await until(lambda: first not in server.consumers(HUB, "0"))
            taken.gate.set()
            await until(lambda: len(taken.events) == 60)

    assert taken.numbers == list(range(60))


async def test_closing_keeps_its_deadline_when_the_service_is_silent(server):
    fill(server, 10)
    loop = asyncio.get_running_loop()

    async with a_receiver(server) as receiver:
        async with taking(receiver) as taken:
            await until(lambda: len(taken.events) == 10)
            server.freeze_connections()
        before = loop.time()
        await receiver.close(deadline=before + 3.0)

        assert loop.time() - before < 5.0


async def test_an_error_of_the_callback_ends_receiving(server):
    fill(server, 10)

    async def refuse(_events, _last):
        raise RuntimeError("the pipeline is broken")

    async with a_receiver(server) as receiver:
        with pytest.raises(RuntimeError, match="broken"):
            await asyncio.wait_for(receiver.receive("0", Start(), 1, refuse), 10)
