"""The contract with the insides of azure-eventhub 5.15: run these first with another version of it."""

import asyncio
import contextlib
import inspect

import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub._pyamqp._encode import encode_frame, encode_payload
from azure.eventhub._pyamqp.aio import SendClientAsync
from azure.eventhub._pyamqp.aio._link_async import Link as SdkLinkAsync
from azure.eventhub._pyamqp.aio._sender_async import PendingDelivery, SenderLink
from azure.eventhub._pyamqp.aio._session_async import Session
from azure.eventhub._pyamqp.aio._transport_async import AsyncTransportMixin
from azure.eventhub._pyamqp.constants import LinkDeliverySettleReason as Settled
from azure.eventhub._pyamqp.error import AMQPLinkError, ErrorCondition
from azure.eventhub._pyamqp.message import BatchMessage
from azure.eventhub._pyamqp.performatives import TransferFrame
from azure.eventhub._transport._pyamqp_transport import PyamqpTransport
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.publisher.errors import UnsupportedPublishingError
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import LinkError
from tidemark.publisher.event_hubs.sdk import link_hooks, single_frames
from tidemark.publisher.event_hubs.sdk.event_encoding import (
    EPOCH,
    NUMBER,
    PRODUCER_ID,
    encode_event,
    size_in_batch,
    stamped_events,
)
from tidemark.publisher.event_hubs.sdk.link_hooks import CAPABILITY, SdkLink, SdkLinks
from tidemark.publisher.model import MAX_SEQUENCE_NUMBER, Claims, Stamp

CONNECTION = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
)


@pytest.fixture
async def client():
    client = EventHubProducerClient.from_connection_string(CONNECTION, eventhub_name="flights")
    yield client
    await client.close()


def full_event(**annotations):
    message = AmqpAnnotatedMessage(
        data_body=b"body",
        header=AmqpMessageHeader(durable=True, priority=3),
        properties={"message_id": "m", "content_type": "text/plain"},
        application_properties={"a": 1, "ö": "ü"},
        annotations=annotations,
    )
    return EventData._from_message(message=None, raw_amqp_message=message)


def sent(event, stamp):
    return decode_payload(
        memoryview(stamped_events([encode_event(event, stamped=stamp is not None)], stamp)[0])
    )


# --- names


async def test_the_client_has_what_a_link_is_made_of(client):
    links = SdkLinks(client)

    sender = links._sender("3", await client._create_auth_async(auth_uri=client._auth_uri))

    assert (links.namespace, links.hub) == ("localhost:1", "flights")
    assert sender.target == "amqps://localhost:1/flights/Partitions/3"
    for name in (
        *(
            "_link_credit",
            "_send_settle_mode",
            "_receive_settle_mode",
            "_max_message_size",
            "_link_properties",
        ),
        *("_session", "_connection", "_link", "_socket_timeout", "open_async", "auth_complete_async"),
        *("client_ready_async", "do_work_async", "close_async"),
    ):
        assert hasattr(sender, name), name
    assert isinstance(sender, SendClientAsync)
    assert sender._retry_policy.total_retries == 0


def test_a_sender_link_takes_capabilities_and_properties_and_tells_those_of_the_service():
    source = inspect.getsource(SdkLinkAsync)

    assert 'kwargs.pop("desired_capabilities"' in source
    assert 'kwargs.pop("properties"' in source
    assert "self.remote_properties = frame[13]" in source
    assert "self.remote_max_message_size = frame[10]" in source
    assert "_error" in source
    assert "create_sender_link" in dir(Session)
    assert issubclass(SenderLink, SdkLinkAsync)


def test_a_ready_client_makes_no_link_if_there_is_one():
    assert "if not self._link:" in inspect.getsource(SendClientAsync._client_ready_async)


def test_the_sdk_reads_so_that_it_can_be_cut_off_anywhere_and_tells_what_is_written_and_answered():
    """What a transfer without a task of its own relies on, when its caller is cancelled."""
    assert "asyncio.CancelledError" in inspect.getsource(AsyncTransportMixin.read)
    assert "self._read_buffer = read_frame_buffer" in inspect.getsource(AsyncTransportMixin.read)
    assert not PendingDelivery().sent
    source = inspect.getsource(SenderLink.send_transfer)
    assert "self._pending_deliveries.append(delivery)" in source
    assert 'kwargs.get("on_send_complete")' in source
    assert "update_pending_deliveries" in inspect.getsource(SendClientAsync._client_run_async)


def test_claims_are_link_properties_of_their_types_all_three_or_none():
    assert link_hooks._link_properties(None) == {}
    assert link_hooks._link_properties(Claims()) == {PRODUCER_ID: None, EPOCH: None, NUMBER: None}
    found = link_hooks._link_properties(Claims(5, 6, 7))

    assert [(name, value["TYPE"], value["VALUE"]) for name, value in found.items()] == [
        (PRODUCER_ID, "LONG", 5),
        (EPOCH, "SHORT", 6),
        (NUMBER, "INT", 7),
    ]
    assert CAPABILITY == b"com.microsoft:idempotent-producer"


async def test_the_sdks_other_amqp_stack_is_refused(client, monkeypatch):
    monkeypatch.setattr(client._amqp_transport, "KIND", "uamqp")

    with pytest.raises(UnsupportedPublishingError, match="uamqp_transport"):
        SdkLinks(client)


class Silent:
    """The SDK's client for a service that never answers. Its first wait swallows a cancellation, as asyncio.wait_for of
    Python 3.11 does where it meets a result.
    """

    _connection = None

    def __init__(self):
        self.asked = asyncio.Event()
        self.looks = 0

    async def open_async(self):
        pass

    async def auth_complete_async(self):
        self.looks += 1
        self.asked.set()
        with contextlib.suppress(asyncio.CancelledError if self.looks == 1 else ()):
            await asyncio.Event().wait()
        return False


async def test_a_link_that_opens_ends_when_it_is_told_to_though_the_sdk_did_not_hear_it():
    sender = Silent()
    opening = asyncio.create_task(SdkLink(sender).attach(None))
    await sender.asked.wait()

    opening.cancel()
    await asyncio.wait({opening}, timeout=5)

    ended = opening.done()
    opening.cancel()
    assert ended
    assert opening.cancelled()
    assert sender.looks == 1


# --- answers


class Sender:
    """An AMQP client of the SDK that has sent a message and gets this answer; None: its link is gone already."""

    def __init__(self, *answer, runs=True, sent=True):
        self._answer = answer
        self._sent = sent
        self._runs = runs
        self._link = self
        self._error = None

    async def send_transfer(self, message, *, on_send_complete, timeout, send_async):
        if not self._answer:
            raise AMQPLinkError(condition=ErrorCondition.ClientError, description="Link is not attached.")
        self._settle = on_send_complete
        pending = PendingDelivery()
        pending.sent = self._sent
        return pending

    async def do_work_async(self):
        if self._runs:
            await self._settle(*self._answer)
        return self._runs


def rejected(condition):
    return Settled.DISPOSITION_RECEIVED, {"rejected": [[condition, b"a story", None]]}


async def test_an_accepted_transfer_returns():
    link = SdkLink(Sender(Settled.DISPOSITION_RECEIVED, {"accepted": []}))

    assert await link.transfer([], None, timeout=5) is None


@pytest.mark.parametrize(
    ("sender", "kind", "lost", "story"),
    [
        (Sender(*rejected(b"com.microsoft:server-busy")), FailureKind.BUSY, False, "server-busy a story"),
        (Sender(*rejected(b"amqp:unheard-of")), FailureKind.UNKNOWN, True, "unheard-of a story"),
        (
            Sender(Settled.DISPOSITION_RECEIVED, {"rejected": None}),
            FailureKind.UNKNOWN,
            True,
            "without a meaning",
        ),
        (
            Sender(Settled.DISPOSITION_RECEIVED, {"released": []}),
            FailureKind.UNKNOWN,
            True,
            "without a meaning",
        ),
        (Sender(Settled.DISPOSITION_RECEIVED, None), FailureKind.UNKNOWN, True, "without a meaning"),
        (Sender(Settled.TIMEOUT, None), FailureKind.UNKNOWN, True, "no answer within 5 s"),
        (Sender(Settled.TIMEOUT, None, sent=False), FailureKind.NOT_STORED, True, "not sent within 5 s"),
        (Sender(Settled.NOT_DELIVERED, None), FailureKind.UNKNOWN, True, "the link was lost"),
        (Sender(Settled.TIMEOUT, None, runs=False), FailureKind.UNKNOWN, True, "it was closed"),
        (Sender(), FailureKind.NOT_STORED, True, "Link is not attached"),
    ],
)
async def test_any_other_answer_is_told_for_what_it_is(sender, kind, lost, story):
    with pytest.raises(LinkError, match=story) as told:
        await SdkLink(sender).transfer([], None, timeout=5)

    assert (told.value.kind, told.value.link_lost) == (kind, lost)


async def test_a_token_that_never_comes_ends_a_transfer_in_one_frame_too(monkeypatch):
    monkeypatch.setattr(single_frames, "is_free", lambda _sender: True)
    sender = Sender()
    sender.client_ready_async = asyncio.Event().wait

    with pytest.raises(LinkError, match="no answer within"):
        async with asyncio.timeout(5):
            await SdkLink(sender).transfer([], None, timeout=-0.99)


# --- events on the wire


def test_an_event_arrives_whole_with_its_stamp():
    found = sent(full_event(), Stamp(2**40, 7, 5))

    assert found.message_annotations == {PRODUCER_ID: 2**40, EPOCH: 7, NUMBER: 5}
    assert found.data == [b"body"]
    assert found.properties.message_id == b"m"
    assert found.application_properties == {b"a": 1, "ö".encode(): "ü".encode()}
    assert (found.header.durable, found.header.priority) == (True, 3)


def test_a_plain_event_is_encoded_as_the_sdk_does():
    assert sent(full_event(x="y"), None).message_annotations == {b"x": b"y"}


PROPERTIES = st.fixed_dictionaries(
    {}, optional={"message_id": st.text(max_size=3), "content_type": st.text(max_size=3)}
)
HEADERS = st.fixed_dictionaries({}, optional={"priority": st.integers(0, 9), "durable": st.booleans()})
BODIES = st.sampled_from([0, 1, 254, 255, 256, 70_000]).map(bytes) | st.text(max_size=5)


@settings(max_examples=60)
@given(
    bodies=st.lists(BODIES, min_size=1, max_size=3),
    header=HEADERS | st.none(),
    properties=PROPERTIES | st.none(),
    application=st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 9), max_size=2) | st.none(),
    footer=st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 9), max_size=1) | st.none(),
)
def test_any_event_is_encoded_byte_by_byte_as_the_sdk_does_with_or_without_a_stamp(
    bodies, header, properties, application, footer
):
    given = {"header": header, "properties": properties}
    raw = AmqpAnnotatedMessage(
        data_body=bodies,
        application_properties=application,
        footer=footer,
        **{name: value for name, value in given.items() if value is not None},
    )

    def by_the_sdk(**annotations):
        message = PyamqpTransport.to_outgoing_amqp_message(raw)
        output = bytearray()
        encode_payload(output, message._replace(message_annotations=annotations or None))
        return decode_payload(memoryview(output)) if annotations else bytes(output)

    assert stamped_events([encode_event(raw, stamped=False)], None) == [by_the_sdk()]
    stamp = {PRODUCER_ID.decode(): 1, EPOCH.decode(): 2, NUMBER.decode(): 3}
    assert sent(raw, Stamp(1, 2, 3)) == by_the_sdk(**stamp)


def test_an_events_own_annotations_stay_and_a_stamp_it_came_with_goes():
    event = full_event(x="y", **{"long": "z" * 300, NUMBER.decode(): 99})

    found = sent(event, Stamp(1, 0, 2))

    assert found.message_annotations == {
        PRODUCER_ID: 1,
        EPOCH: 0,
        NUMBER: 2,
        b"x": b"y",
        b"long": b"z" * 300,
    }


@settings(max_examples=40)
@given(size=st.integers(0, 400), annotation=st.integers(0, 200), number=st.integers(0, MAX_SEQUENCE_NUMBER))
def test_the_measured_size_is_the_size_on_the_wire_for_every_number(size, annotation, number):
    event = full_event(note="n" * annotation)
    event._raw_amqp_message._data_body = [b"b" * size]
    encoded = encode_event(event, stamped=True)

    for first in (0, number, MAX_SEQUENCE_NUMBER):
        output = bytearray()
        encode_payload(
            output, BatchMessage(data=stamped_events([encoded], Stamp(first, first % 2**15, first)))
        )
        assert len(output) == size_in_batch(encoded, stamped=True)


def test_numbers_are_of_the_types_that_the_service_wants():
    body = stamped_events([encode_event(EventData("x"), stamped=True)], Stamp(1, 2, 3))[0]

    assert PRODUCER_ID + b"\x81" + (1).to_bytes(8, "big") in body  # long
    assert EPOCH + b"\x61" + (2).to_bytes(2, "big") in body  # short
    assert NUMBER + b"\x71" + (3).to_bytes(4, "big") in body  # int


def test_the_events_of_a_set_are_numbered_across_the_highest_number():
    encoded = [encode_event(EventData("x"), stamped=True)] * 3

    found = [
        decode_payload(memoryview(one)).message_annotations[NUMBER]
        for one in stamped_events(encoded, Stamp(1, 0, 2**31 - 2))
    ]

    assert found == [2**31 - 2, 2**31 - 1, 0]


def test_a_batch_has_the_format_of_batches():
    assert BatchMessage(data=[b""])._code == 0x80013700


# --- sets in one frame


NUMBERS = st.sampled_from([0, 1, 255, 256, 2**31, 2**32 - 1])


@settings(max_examples=60)
@given(
    channel=st.integers(0, 2**16 - 1),
    handle=NUMBERS,
    delivery_id=NUMBERS,
    tag=NUMBERS,
    events=st.lists(st.sampled_from([0, 1, 255, 256, 9_000]).map(bytes), min_size=1, max_size=3),
)
def test_a_set_in_one_frame_is_written_byte_by_byte_as_the_sdk_does(
    channel, handle, delivery_id, tag, events
):
    payload = bytearray()
    encode_payload(payload, BatchMessage(data=events))
    names = ("rcv_settle_mode", "state", "resume", "aborted", "batchable")
    header, performative = encode_frame(
        TransferFrame(
            **dict.fromkeys(names),
            handle=handle,
            delivery_id=delivery_id,
            delivery_tag=tag.to_bytes(4, "big"),
            message_format=BatchMessage._code,
            settled=False,
            more=False,
            payload=payload,
        )
    )

    frame = single_frames.transfer_frame(channel, handle, delivery_id, tag, events)

    assert frame == header + channel.to_bytes(2, "big") + performative
    assert len(frame) <= sum(len(event) + 8 for event in events) + single_frames._ROOM
