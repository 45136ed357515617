"""The big-batch sender over real sockets: the unmodified SDK on one side, the local Service Bus on the other."""

import asyncio
import random
from datetime import UTC, datetime, timedelta

import opentelemetry.trace
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from devstack.servers.faults import Fault
from devstack.service_bus import PREMIUM, STANDARD, Counts, EntityLimits, QueueSettings, ServiceBusServer
from devstack.service_bus.messages.messages import identity
from tests.support.consumer.messaging import decoded
from tests.support.servers.event_hubs import abandon_sockets
from tests.support.servers.service_bus import receiving, sdk_drops_its_socket
from tests.support.servers.threaded import running_in_thread
from tests.support.waiting import until
from tidemark.publisher.errors import PublishRefusedError, PublishSettingsError
from tidemark.publisher.service_bus.core.errors import OversizedMessageError, PartiallySentError
from tidemark.publisher.service_bus.core.sending import SendPolicy
from tidemark.publisher.service_bus.sdk.message_sizes import plain_message
from tidemark.publisher.service_bus.sender import BigBatchSender
from tidemark.publisher.service_bus.sync_sender import SyncBigBatchSender

pytestmark = pytest.mark.wire

QUICK = SendPolicy(look_ahead=0, attempts=3, retry_delay=0.01)
LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
async def server(tmp_path):
    async with ServiceBusServer(ca_dir=tmp_path) as running:
        running.create_queue("orders", QueueSettings(limits=STANDARD))
        yield running
    await abandon_sockets()


OURS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced(monkeypatch):
    """What gives the finished spans of the process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "get_tracer", provider.get_tracer)
    return exporter.get_finished_spans


def sender_to(server, *, queue="orders", **options):
    return BigBatchSender.from_connection_string(
        server.connection_string,
        queue_name=queue,
        client_options={"keep_alive": 0},
        **{"policy": QUICK, "timeout": 5.0, **options},
    )


def stored(server, queue="orders"):
    """Bodies of what the queue holds, in order."""
    return [message.sent.bare.rpartition(b"\x00\x53\x75")[2] for message in messages_in(server, queue)]


def messages_in(server, queue="orders"):
    return server.broker.queues[queue].peek(0, 1_000_000)


def ids_in(server, queue="orders"):
    return [identity(message.sent.bare).message_id for message in messages_in(server, queue)]


async def test_any_number_of_messages_of_any_size_arrives_in_order(server):
    rng = random.Random(7)
    sizes = [rng.choice((10, 300, 5_000, 200_000)) for _ in range(300)]
    async with sender_to(server) as sender:
        report = await sender.send((b"%06d" % n).ljust(size, b".") for n, size in enumerate(sizes))
        limits = sender.limits

    assert report.complete
    assert len(report.sent) == 300
    assert report.size_refusals == 0
    assert (limits.batch, limits.message) == (262_144, 262_144)
    assert [body[-size:][:6] for body, size in zip(stored(server), sizes, strict=True)] == [
        b"%06d" % n for n in range(300)
    ]
    overhead = 100
    assert report.batches <= sum(sizes) // (262_144 - 200_000 - overhead) + 1


async def test_iterables_of_every_kind_and_messages_of_every_kind_are_taken(server):
    async def later():
        for n in range(3):
            yield {"n": n}

    async with sender_to(server) as sender:
        await sender.send([b"bytes", "text", ["json"], ServiceBusMessage(b"whole", message_id="own")])
        await sender.send(later())
        empty = await sender.send([])

    assert server.counts("orders").active == 7
    assert ids_in(server)[3] == "own"
    assert empty.complete
    assert empty.batches == 0


async def test_a_received_message_is_sent_on_as_it_is(server):
    server.create_queue("next", QueueSettings(limits=STANDARD))
    original = ServiceBusMessage(
        b"body", message_id="m", subject="s", session_id="t", application_properties={"a": 1, "b": "text"}
    )
    async with sender_to(server) as sender:
        await sender.send([original])
    async with receiving(server) as receiver, sender_to(server, queue="next") as sender:
        (received,) = await receiver.receive_messages(1, max_wait_time=2)
        await sender.send([received])

    (first,), (second,) = messages_in(server), messages_in(server, "next")
    assert second.sent.bare == first.sent.bare


@pytest.mark.parametrize("sdk_insides", [True, False])
async def test_each_transfer_is_a_span_and_each_message_carries_a_context(server, traced, sdk_insides):
    own = ServiceBusMessage(b"own", application_properties={"traceparent": OURS, "a": 1})
    server.faults.add(Fault("send:orders", "error"))
    async with sender_to(server, tracing=True, sdk_insides=sdk_insides) as sender:
        await sender.send([b"plain", own])

    found = [decoded(message.sent.bare).application_properties for message in messages_in(server)]
    *created, refused, sent = sorted(traced(), key=lambda span: span.start_time)
    assert [span.name for span in (*created, refused, sent)] == [
        "create orders",
        "send orders",
        "send orders",
    ]
    assert found[0][b"traceparent"].decode().split("-")[2] == f"{created[0].context.span_id:016x}"
    assert found[1] == {b"traceparent": OURS.encode(), b"a": 1}
    assert (refused.attributes["error.type"], refused.status.status_code.name) == ("busy", "ERROR")
    assert "error.type" not in sent.attributes
    assert len(sent.links) == sent.attributes["messaging.batch.message_count"] == 2
    assert sent.attributes["messaging.system"] == "servicebus"
    assert own.application_properties == {"traceparent": OURS, "a": 1}


async def test_a_stream_is_read_no_further_than_the_look_ahead(server):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield bytes(1000)

    async with sender_to(server) as sender:
        sent = []

        def stop(progress):
            sent.append((progress.sent, taken))
            if len(sent) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await sender.send(endless(), on_progress=stop)
        report = sender.last_report

    assert all(read - count < 3 * 262 for count, read in sent)
    assert len(report.sent) == server.counts("orders").active == sent[-1][0]
    assert not report.exhausted


@pytest.mark.parametrize("kind", ["generator", "async generator"])
async def test_what_an_iterable_gave_before_it_failed_is_not_lost(server, kind):
    def failing():
        for n in range(70):
            yield b"%04d" % n
        raise LookupError("the source is gone")

    async def failing_later():
        for message in failing():
            yield message

    async with sender_to(server) as sender:
        with pytest.raises(LookupError):
            await sender.send(failing() if kind == "generator" else failing_later())
        assert not sender.last_report.sent
        report = await sender.resume(sender.last_report)

    assert report.complete
    assert [body[-4:] for body in stored(server)] == [b"%04d" % n for n in range(70)]


async def test_a_batch_filled_to_the_last_byte_is_accepted(server):
    async with sender_to(server) as sender:
        report = await sender.send(bytes(97) for _ in range(10_000))
        tail = await sender.send([bytes(262_144 - 2 * 45 - 8 - 3)])

    assert report.complete
    assert report.size_refusals == 0
    assert tail.batches == 1


async def test_the_sdks_own_batch_is_over_the_limit_that_it_claims_to_keep(server):
    """Why sizes are measured with the envelope: the SDK does not count it."""
    async with ServiceBusClient.from_connection_string(
        server.connection_string, retry_total=0, keep_alive=0
    ) as client:
        sender = client.get_queue_sender("orders")
        batch = await sender.create_message_batch()
        room = batch.max_size_in_bytes - 8 - (len(plain_message(bytes(300), "m" * 36)) - 300)
        batch.add_message(ServiceBusMessage(bytes(room), message_id="m" * 36))
        assert batch.size_in_bytes <= batch.max_size_in_bytes
        with pytest.raises(Exception, match="exceeds the limit"):
            await sender.send_messages(batch)
        await sender.close()
    async with sender_to(server) as ours:
        assert (await ours.send([ServiceBusMessage(bytes(room), message_id="m" * 36)])).complete


async def test_a_message_too_large_in_a_list_is_refused_before_anything_is_sent(server):
    async with sender_to(server) as sender:
        with pytest.raises(OversizedMessageError, match=r"message 5000 .* accepted: up to 262,144"):
            await sender.send([bytes(100)] * 5000 + [bytes(300_000)])

    assert server.counts("orders").active == 0


async def test_large_messages_of_a_premium_entity_go_singly(server):
    server.create_queue("large", QueueSettings(limits=EntityLimits(message=PREMIUM.message, batch=500_000)))
    async with sender_to(server, queue="large") as sender:
        report = await sender.send([b"a", bytes(3_000_000), b"b"])
        limits = sender.limits

    assert (limits.batch, limits.message) == (500_000, 104_857_600)
    assert report.batches == 3
    assert [len(body) > 3_000_000 for body in stored(server, "large")] == [False, True, False]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (EntityLimits(10_000, 10_000, header=20), lambda learned: learned.header == 20),
        (EntityLimits(10_000, 10_000, unannounced=7_000), lambda learned: 6_000 < learned.batch <= 7_000),
    ],
    ids=["larger header", "95 percent"],
)
async def test_a_size_refused_although_it_fits_teaches_the_sender_once(server, limits, expected):
    server.create_queue("odd", QueueSettings(limits=limits))
    async with sender_to(server, queue="odd") as sender:
        first = await sender.send([b"%04d" % n for n in range(600)])
        learned = sender.limits
        second = await sender.send([b"%04d" % n for n in range(600, 1200)])

    assert first.complete
    assert first.size_refusals >= 1
    assert expected(learned)
    assert second.size_refusals == 0
    assert [body[-4:] for body in stored(server, "odd")] == [b"%04d" % n for n in range(1200)]


async def test_what_is_refused_for_now_is_tried_again_and_arrives_once(server):
    server.faults.add(Fault("send:orders", "error", count=2))
    server.faults.add(Fault("send:orders", "size"))
    async with sender_to(server) as sender:
        report = await sender.send([b"%04d" % n for n in range(10)])

    assert report.complete
    assert report.retries == 2
    assert report.size_refusals == 1
    assert [body[-4:] for body in stored(server)] == [b"%04d" % n for n in range(10)]


async def test_what_stays_refused_is_reported_as_not_sent_and_resumed(server):
    async with sender_to(server) as sender:
        await sender.send([b"first"])
        server.faults.add(Fault("send:orders", "error", count=3))
        with pytest.raises(PartiallySentError, match="0 sent in 0 batches, 3 not sent") as failure:
            await sender.send([b"a", b"b", b"c"])
        report = await sender.resume(failure.value.report)

    assert [item.index for item in failure.value.report.unsent] == [0, 1, 2]
    assert report.complete
    assert len(report.sent) == 3
    assert server.counts("orders").active == 4


@sdk_drops_its_socket
@pytest.mark.parametrize("kind", ["drop_connection", "detach", "drop_ack"])
async def test_an_outcome_that_is_not_known_is_reported_so_and_not_sent_again(server, kind):
    messages = [bytes(100_000)] * 6
    # Long enough for the SDK to try again by itself, which it must not.
    async with sender_to(server, timeout=1.0 if kind == "drop_ack" else 5.0) as sender:
        await sender.send(messages[:2])
        server.faults.add(Fault("send:orders", kind))
        with pytest.raises(PartiallySentError) as failure:
            await sender.send(iter(messages))
        report = failure.value.report
        rest = await sender.resume(report)

    assert [item.index for item in report.unknown] == [0, 1]
    assert not report.sent
    assert set(rest.sent) == {2, 3, 4, 5}
    assert [item.index for item in rest.unknown] == [0, 1]
    assert not rest.complete
    assert server.counts("orders").active == (8 if kind == "drop_ack" else 6)


@sdk_drops_its_socket
@pytest.mark.parametrize("kind", ["drop_connection", "drop_ack"])
async def test_with_duplicate_detection_the_unknown_is_sent_again_and_arrives_once(server, kind):
    server.create_queue("once", QueueSettings(limits=STANDARD, duplicate_window=600.0))
    policy = SendPolicy(look_ahead=0, attempts=3, retry_delay=0.01, resend_unknown=True)
    async with sender_to(server, queue="once", timeout=1.0, policy=policy) as sender:
        await sender.send([b"warm"])
        server.faults.add(Fault("send:once", kind, count=2))
        report = await sender.send([bytes(100_000)] * 6)

    assert report.complete
    assert report.retries == 2
    assert server.counts("once").active == 7


async def test_a_link_that_was_closed_in_the_meantime_is_no_unknown_outcome(server):
    async with sender_to(server) as sender:
        await sender.send([b"a"])
        connection = next(iter(server._connections))
        for session in connection._sessions.values():
            for link in list(session.links.values()):
                if link.address == "orders":
                    link.detach()
        await sender._link.sender._handler.do_work_async()  # as the SDK's keep-alive does every 30 seconds
        report = await sender.send([b"b"])

    assert report.complete
    assert server.counts("orders").active == 2


async def test_a_topic_is_sent_to_like_a_queue(server):
    server.create_topic("news", limits=STANDARD)
    server.create_subscription("news", "all")
    async with BigBatchSender.from_connection_string(
        server.connection_string, topic_name="news", client_options={"keep_alive": 0}
    ) as sender:
        report = await sender.send([bytes(10_000)] * 100)

    assert report.batches == 4
    assert server.counts("news/Subscriptions/all").active == 100


async def test_sessions_share_no_batch_and_each_keeps_its_order(server):
    server.create_queue(
        "sessions", QueueSettings(limits=EntityLimits(partitioned=True), requires_session=True)
    )
    messages = [ServiceBusMessage(f"{n}", session_id=f"s{n % 3}") for n in range(30)]
    async with sender_to(server, queue="sessions") as sender:
        report = await sender.send(messages)
    async with receiving(server, "sessions", session_id="s1") as receiver:
        received = await receiver.receive_messages(20, max_wait_time=2)

    assert report.batches == 3
    assert [str(message) for message in received] == [str(n) for n in range(1, 30, 3)]


async def test_scheduled_messages_go_in_requests_that_fit_and_can_be_cancelled(server):
    async with sender_to(server) as sender:
        report = await sender.send([bytes(20_000)] * 30, schedule_at=LATER)
        scheduled = server.counts("orders")
        await sender.cancel_scheduled(report)

    assert report.batches == 3
    assert sorted(report.sequence_numbers) == list(range(30))
    assert scheduled == Counts(scheduled=30)
    assert server.counts("orders") == Counts()


@pytest.mark.parametrize("limits", [EntityLimits(20_000), EntityLimits(20_000, unannounced=12_000)])
async def test_a_request_that_schedules_has_its_own_limit(server, limits):
    server.create_queue("small", QueueSettings(limits=limits))
    async with sender_to(server, queue="small") as sender:
        report = await sender.send((bytes(97) for _ in range(600)), schedule_at=LATER)
        again = await sender.send((bytes(97) for _ in range(100)), schedule_at=LATER)

    assert report.complete
    assert again.size_refusals == 0
    assert server.counts("small").scheduled == 700


async def test_a_lost_answer_to_a_request_that_schedules_is_unknown(server):
    async with sender_to(server, timeout=1.0) as sender:
        server.faults.add(Fault("manage:orders", "drop_ack"))
        with pytest.raises(PartiallySentError) as failure:
            await sender.send([b"a"], schedule_at=LATER)

    assert [item.index for item in failure.value.report.unknown] == [0]
    assert server.counts("orders").scheduled == 1


async def test_an_entity_that_is_not_there_is_refused_by_name(server):
    async with sender_to(server, queue="nowhere") as sender:
        with pytest.raises(PublishRefusedError, match="nowhere"):
            await sender.send([b"a"])


async def test_wrong_settings_are_refused_by_name(server):
    with pytest.raises(PublishSettingsError, match="exactly one of them"):
        BigBatchSender.from_connection_string(server.connection_string)
    with pytest.raises(PublishSettingsError, match="limit is 0"):
        sender_to(server, limit=0)
    async with sender_to(server) as sender:
        for single in ("text", b"bytes", {"a": 1}, ServiceBusMessage("x")):
            with pytest.raises(PublishSettingsError, match="accepted: an iterable of messages"):
                await sender.send(single)
    async with sender_to(server, limit=300_000) as sender:
        with pytest.raises(PublishSettingsError, match="limit is 300,000 bytes, accepted: up to the 262,144"):
            await sender.send([b"a"])
        with pytest.raises(PublishSettingsError, match="accepted: a time with a time zone"):
            await sender.send([b"a"], schedule_at=LATER.replace(tzinfo=None))


async def test_a_cancelled_call_says_what_it_had_sent(server):
    async with sender_to(server) as sender:
        await sender.send([b"warm"])
        server.faults.add(Fault("send:orders", "latency", seconds=5.0))
        task = asyncio.create_task(sender.send(iter([bytes(200_000)] * 3)))
        await until(lambda: not server.faults.list())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        report = sender.last_report

    assert [item.index for item in report.unknown] == [0]
    assert [item.index for item in report.unsent] == [1, 2]


def test_the_blocking_sender_does_the_same(tmp_path):
    with running_in_thread(lambda: ServiceBusServer(ca_dir=tmp_path)) as threaded:
        server = threaded.server
        threaded.call(lambda: server.create_queue("orders", QueueSettings(limits=STANDARD)))
        with SyncBigBatchSender.from_connection_string(
            server.connection_string, queue_name="orders", client_options={"keep_alive": 0}, policy=QUICK
        ) as sender:
            report = sender.send(bytes(1000) for _ in range(1000))
            server.faults.add(Fault("send:orders", "error", count=3))
            with pytest.raises(PartiallySentError) as failure:
                sender.send([b"a", b"b"])
            resumed = sender.resume(failure.value.report)
            scheduled = sender.send([b"later"], schedule_at=LATER)
            sender.cancel_scheduled(scheduled)
            with pytest.raises(OversizedMessageError, match="message 1 "):
                sender.send([b"a", bytes(300_000)])

        assert report.complete
        assert report.batches == 5
        assert resumed.complete
        assert threaded.call(lambda: server.counts("orders")) == Counts(active=1002)
