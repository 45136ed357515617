"""Idempotent publishing and its faults, frame by frame."""

import pytest

from devstack.amqp.connection import Connection
from devstack.amqp.wire.encoder import encode
from devstack.amqp.wire.errors import NOT_ALLOWED
from devstack.amqp.wire.frames import AMQP_HEADER, Frame, FrameParser, encode_frame
from devstack.amqp.wire.messages import BATCH_FORMAT, DATA, MESSAGE_ANNOTATIONS, encode_section
from devstack.amqp.wire.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    Open,
    Transfer,
    decode_performative,
)
from devstack.amqp.wire.values import Array, Described, Int, Short, Symbol, ULong
from devstack.event_hubs.namespace import Namespace
from devstack.event_hubs.peer import EventSink
from devstack.event_hubs.storage.hubs import Hubs
from devstack.event_hubs.storage.idempotence import (
    CAPABILITY,
    EPOCH,
    EPOCH_STOLEN,
    NUMBER,
    OUT_OF_ORDER,
    PRODUCER_ID,
    Idempotence,
)
from devstack.servers.faults import Fault, FaultRegistry
from tests.support.servers.transport import RecordingTransport

ACCEPTED, REJECTED = 0x24, 0x25


class Client:
    """A producer that speaks frames, on a link to partition "0" of a hub, or to the gateway."""

    def __init__(self, namespace):
        self.namespace = namespace
        self.transport = RecordingTransport()
        self.connection = Connection(
            lambda _: self, container_id="server", max_message_size=1_000_000, lost=lambda _: None
        )
        self.connection.connection_made(self.transport)
        self.delivery = 0
        self.say(Open("client"), Begin(None, 1, 5000, 5000), before=AMQP_HEADER.encode())

    def attach_sink(self, link):
        hub = self.namespace.hubs.hub("flights")
        return EventSink(self.namespace, hub, hub.partition("0") if "/" in link.address else None, link)

    def say(self, *performatives, before=b""):
        frames = (
            encode_frame(3, *performative)
            if isinstance(performative, tuple) and len(performative) == 2
            else encode_frame(3, performative)
            for performative in performatives
        )
        self.connection.data_received(before + b"".join(frames))
        return self.heard()

    def heard(self):
        items = FrameParser(100_000).feed(self.transport.written)
        self.transport.written = b""
        return [decode_performative(item.body)[0] for item in items if isinstance(item, Frame) and item.body]

    def attach(self, address="flights/Partitions/0", *, desired=CAPABILITY, **values):
        """What the server answers: an attach, and a detach if it refuses."""
        properties = {PRODUCER_ID: None, EPOCH: None, NUMBER: None, **values} if desired else None
        heard = self.say(
            Attach(
                "link",
                0,
                role=False,
                target=Described(ULong(0x29), [address]),
                initial_delivery_count=0,
                desired_capabilities=Array([Symbol(desired)]) if desired else None,
                properties=properties,
            )
        )
        return [each for each in heard if isinstance(each, Attach | Detach)]

    def send(self, stamp, *numbers, wrapped=True):
        """The outcome of a batch: None, or its code and condition."""
        events = [event(stamp, number) for number in numbers]
        payload = b"".join(encode_section(DATA, each) for each in events) if wrapped else events[0]
        self.delivery += 1
        transfer = Transfer(
            0,
            self.delivery,
            self.delivery.to_bytes(4, "big"),
            BATCH_FORMAT if wrapped else 0,
            settled=False,
        )
        heard = self.say((transfer, payload))
        outcomes = [disposition.state for disposition in heard if isinstance(disposition, Disposition)]
        if not outcomes:
            return None
        error = outcomes[0].value[0].value[0] if outcomes[0].value else None
        return int(outcomes[0].descriptor), error

    @property
    def stored(self):
        return len(self.namespace.hubs.hub("flights").partition("0").log)


def event(stamp, number):
    annotations = {
        Symbol(PRODUCER_ID): stamp[PRODUCER_ID],
        Symbol(EPOCH): Short(stamp[EPOCH]),
        Symbol(NUMBER): Int(number),
    }
    return encode_section(MESSAGE_ANNOTATIONS, annotations) + encode_section(DATA, b"event")


@pytest.fixture
async def namespace():
    hubs = Hubs(lambda: 1000.0)
    hubs.create("flights", 1)
    namespace = Namespace(hubs, FaultRegistry(), lambda: 1000.0, "key")
    yield namespace
    namespace.close()


@pytest.fixture
async def client(namespace):
    return Client(namespace)


async def test_the_answer_to_an_attach_offers_the_capability_and_says_who_the_producer_is(client):
    [reply] = client.attach()

    assert list(reply.offered_capabilities) == [CAPABILITY]
    assert reply.properties == {PRODUCER_ID: 1_000_001, EPOCH: 0, NUMBER: 0}
    assert {type(key) for key in reply.properties} == {Symbol}
    types = {key: type(value) for key, value in reply.properties.items()}
    assert types == {PRODUCER_ID: int, EPOCH: Short, NUMBER: Int}
    assert encode(reply.properties[EPOCH])[0] == 0x61


@pytest.mark.parametrize("wrapped", [True, False])
async def test_a_lone_event_is_published_in_a_batch_or_as_it_is(client, wrapped):
    [reply] = client.attach()

    assert client.send(reply.properties, 1, wrapped=wrapped) == (ACCEPTED, None)
    assert client.send(reply.properties, 1, wrapped=wrapped) == (ACCEPTED, None)

    assert client.stored == 1


async def test_a_gap_is_rejected_and_the_link_goes_on(client):
    [reply] = client.attach()
    client.send(reply.properties, 1, 2)

    assert client.send(reply.properties, 4) == (REJECTED, OUT_OF_ORDER)
    assert client.send(reply.properties, 3) == (ACCEPTED, None)
    assert client.stored == 3


async def test_the_state_outlives_the_connection_and_a_higher_epoch_fences(namespace, client):
    [reply] = client.attach()
    client.send(reply.properties, 1, 2)

    [again] = Client(namespace).attach(
        **{PRODUCER_ID: reply.properties[PRODUCER_ID], EPOCH: Short(0), NUMBER: Int(2)}
    )
    assert again.properties == {**reply.properties, NUMBER: 2}
    [higher] = Client(namespace).attach(**{PRODUCER_ID: reply.properties[PRODUCER_ID], EPOCH: Short(1)})
    assert higher.properties == {**reply.properties, EPOCH: 1}

    assert client.send(reply.properties, 3) == (REJECTED, EPOCH_STOLEN)


async def test_the_gateway_refuses_idempotent_publishing(client):
    [reply, detach] = client.attach("flights")

    assert reply.target is None
    assert detach.error.value[0] == NOT_ALLOWED


async def test_an_unknown_producer_is_refused(client):
    [_, detach] = client.attach(**{PRODUCER_ID: 5, EPOCH: Short(0), NUMBER: Int(0)})

    assert detach.error.value[0] == NOT_ALLOWED


async def test_a_hub_without_idempotent_publishing_attaches_the_link_and_offers_nothing(namespace, client):
    namespace.hubs.hub("flights").set_idempotence(Idempotence(offered=False))

    [reply] = client.attach()

    assert reply.offered_capabilities is None
    assert reply.properties is None
    assert client.send({PRODUCER_ID: 1, EPOCH: 0}, 7) == (ACCEPTED, None)
    assert client.send({PRODUCER_ID: 1, EPOCH: 0}, 7) == (ACCEPTED, None)
    assert client.stored == 2


async def test_a_link_that_does_not_ask_for_it_publishes_as_ever(client):
    [reply] = client.attach(desired=None)

    assert reply.offered_capabilities is None
    assert client.send({PRODUCER_ID: 1, EPOCH: 0}, 7, 9) == (ACCEPTED, None)
    assert client.stored == 2


@pytest.mark.parametrize(
    ("kind", "stored", "cut"),
    [
        ("drop_ack", 1, False),
        ("drop_ack_and_connection", 1, True),
        ("no_answer", 0, False),
        ("drop_connection", 0, True),
    ],
)
async def test_a_fault_loses_the_acknowledgement_or_the_request(namespace, client, kind, stored, cut):
    [reply] = client.attach()
    namespace.faults.add(Fault("send:flights/Partitions/0", kind))

    assert client.send(reply.properties, 1) is None

    assert client.stored == stored
    assert client.transport.aborted is cut


async def test_a_link_may_be_detached_after_what_it_sent_was_stored(namespace, client):
    [reply] = client.attach()
    namespace.faults.add(Fault("send:*", "drop_ack_and_link", condition="com.microsoft:timeout"))

    heard = client.say((Transfer(0, 1, b"\0\0\0\1", 0, settled=False), event(reply.properties, 1)))

    [detach] = [each for each in heard if isinstance(each, Detach)]
    assert detach.error.value[0] == "com.microsoft:timeout"
    assert client.stored == 1


@pytest.mark.parametrize("kind", ["drop_connection", "detach", "half_open"])
async def test_a_batch_that_is_cut_in_the_middle_is_not_stored_even_if_the_rest_arrives(
    namespace, client, kind
):
    [reply] = client.attach()
    namespace.faults.add(Fault("part:flights/Partitions/0", kind))
    whole = event(reply.properties, 1)
    first = Transfer(0, 1, b"\0\0\0\1", 0, settled=False, more=True)
    rest = Transfer(0, settled=False, more=False)

    heard = client.say((first, whole[:20]), (rest, whole[20:]))

    assert client.stored == 0
    assert not any(isinstance(each, Disposition) for each in heard)


async def test_throttling_is_a_rejection_after_which_the_same_numbers_are_good(namespace, client):
    [reply] = client.attach()
    namespace.faults.add(Fault("send:*", "error"))

    assert client.send(reply.properties, 1) == (REJECTED, "com.microsoft:server-busy")
    assert client.send(reply.properties, 1) == (ACCEPTED, None)
    assert client.stored == 1
