"""The listener's side of a session, driven frame by frame."""

import asyncio

import pytest

from devstack.amqp.connection import Connection
from devstack.amqp.ports import ACCEPTED
from devstack.amqp.wire.errors import MESSAGE_TOO_LARGE, NOT_FOUND, AmqpError
from devstack.amqp.wire.frames import AMQP_HEADER, SASL, SASL_HEADER, Frame, FrameParser, encode_frame
from devstack.amqp.wire.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    decode_performative,
)
from devstack.amqp.wire.values import Described, ULong
from tests.support.servers.transport import RecordingTransport

SOURCE = Described(ULong(0x28), ["amqp://host:1/orders"])
TARGET = Described(ULong(0x29), ["orders"])


class Store:
    """A service with one place, "orders": takes messages in and gives `outbox` away."""

    def __init__(self):
        self.inbox, self.outbox, self.settlements, self.detached = [], [], [], 0

    def attach_sink(self, link):
        self.link = link
        if link.address != "orders":
            raise AmqpError(NOT_FOUND, f"no {link.address}")
        return self

    attach_source = attach_sink

    def on_message(self, delivery):
        self.inbox.append(delivery.payload)
        delivery.settle(ACCEPTED)

    def on_credit(self):
        while self.outbox and self.link.ready:
            payload = self.outbox.pop(0)
            self.link.send(payload[:4], payload)

    def on_settlement(self, settlement):
        self.settlements.append(settlement.tag)
        settlement.confirm(settlement.outcome)

    def on_detached(self):
        self.detached += 1


class Peer:
    """The client's end, without a socket."""

    def __init__(self, max_message_size=1000):
        self.store = Store()
        self.lost = []
        self.connection = Connection(
            lambda _: self.store,
            container_id="test",
            max_message_size=max_message_size,
            lost=self.lost.append,
        )
        self.transport = RecordingTransport()
        self.parser = FrameParser(2**31)
        self.connection.connection_made(self.transport)

    def say(self, performative, payload=b"", type_=0):
        """Send one performative; returns what comes back as (performative, payload)."""
        return self.say_bytes(encode_frame(0, performative, payload, type_))

    def say_bytes(self, data):
        self.connection.data_received(data)
        return self.heard()

    def heard(self):
        written, self.transport.written = self.transport.written, b""
        answers = []
        for item in self.parser.feed(written):
            if isinstance(item, Frame) and item.body:
                performative, start = decode_performative(item.body)
                answers.append((performative, item.body[start:]))
            else:
                answers.append((item, b""))
        return answers

    def open(self, **options):
        self.say(Open("client", **options))
        return self.say(Begin(None, 0, 5000, 5000))

    def attach_sender(self):
        return self.say(Attach("s", 1, role=False, source=SOURCE, target=TARGET, initial_delivery_count=0))

    def attach_receiver(self, credit, **options):
        answers = self.say(Attach("r", 2, role=True, source=SOURCE, target=TARGET))
        return answers + self.flow(credit, **options)

    def flow(self, credit, *, delivery_count=0, window=5000, next_incoming_id=1, **options):
        return self.say(Flow(next_incoming_id, window, 0, 5000, 2, delivery_count, credit, None, **options))


@pytest.fixture
async def peer():
    return Peer()


def kinds(answers):
    return [type(performative) for performative, _ in answers]


def send(peer, payload, **fields):
    transfer = {"delivery_id": 0, "delivery_tag": b"t", "message_format": 0, **fields}
    return peer.say(Transfer(1, **transfer), payload)


async def test_sasl_and_open_are_answered_step_by_step(peer):
    [header, mechanisms] = peer.say_bytes(SASL_HEADER.encode())
    assert header[0] == SASL_HEADER
    assert isinstance(mechanisms[0], SaslMechanisms)
    assert peer.say(SaslInit("ANONYMOUS"), type_=SASL) == [(SaslOutcome(0), b"")]
    assert peer.say_bytes(AMQP_HEADER.encode()) == [(AMQP_HEADER, b"")]
    assert kinds(peer.say(Open("client"))) == [Open]
    [(begin, _)] = peer.say(Begin(None, 0, 5000, 5000))
    assert (begin.remote_channel, begin.next_outgoing_id) == (0, 1)
    assert begin.handle_max is not None
    assert kinds(peer.say(Close())) == [Close]
    assert peer.transport.closed


async def test_an_unknown_mechanism_is_not_accepted(peer):
    assert peer.say(SaslInit("GSSAPI"), type_=SASL) == [(SaslOutcome(1), b"")]


async def test_a_peer_that_hangs_up_on_silence_gets_heartbeats(peer):
    answers = peer.say(Open("client", idle_time_out=20_000))
    assert answers[1:] == [(Frame(0, 0, b""), b"")]

    peer.connection.connection_lost(None)
    assert peer.connection._heartbeat.cancelled()


async def test_an_attached_sender_gets_credit_and_every_message_an_outcome(peer):
    peer.open()
    [(attach, _), (flow, _)] = peer.attach_sender()
    assert (attach.name, attach.handle, attach.role, attach.max_message_size) == ("s", 1, True, 1000)
    assert flow.link_credit > 0

    assert send(peer, b"hello", delivery_id=7) == [
        (Disposition(role=True, first=7, settled=True, state=ACCEPTED), b"")
    ]
    assert send(peer, b"settled", settled=True) == []
    assert peer.store.inbox == [b"hello", b"settled"]


async def test_a_message_in_parts_arrives_whole_and_an_aborted_one_not_at_all(peer):
    peer.open()
    peer.attach_sender()
    assert send(peer, b"ab", more=True) == []
    assert kinds(send(peer, b"cd", delivery_id=None, delivery_tag=None)) == [Disposition]
    send(peer, b"xx", more=True)
    assert send(peer, b"", aborted=True) == []
    send(peer, b"ef")

    assert peer.store.inbox == [b"abcd", b"ef"]


async def test_a_message_over_the_maximum_is_rejected_once_it_is_over(peer):
    peer.open()
    peer.attach_sender()
    assert send(peer, b"x" * 600, more=True) == []
    [(disposition, _)] = send(peer, b"x" * 600)

    assert disposition.state.value[0].value[0] == MESSAGE_TOO_LARGE
    assert peer.store.inbox == []


async def test_a_sender_that_keeps_sending_is_given_new_credit_and_window(peer):
    peer.open()
    peer.attach_sender()
    answers = [answer for number in range(3000) for answer, _ in send(peer, b"x", delivery_id=number)]

    flows = [answer for answer in answers if isinstance(answer, Flow)]
    assert [flow.delivery_count for flow in flows if flow.handle == 1] == [500, 1000, 1500, 2000, 2500, 3000]
    assert [flow.next_incoming_id for flow in flows if flow.handle is None] == [2500]


async def test_a_receiver_gets_no_more_than_its_credit(peer):
    peer.open()
    peer.store.outbox = [b"aaaa", b"bbbb", b"cccc"]
    answers = peer.attach_receiver(2)
    assert [payload for _, payload in answers if payload] == [b"aaaa", b"bbbb"]
    transfers = [transfer for transfer, _ in answers if isinstance(transfer, Transfer)]
    assert [transfer.delivery_id for transfer in transfers] == [1, 2]
    assert [transfer.delivery_tag for transfer in transfers] == [b"aaaa", b"bbbb"]

    assert peer.flow(0, delivery_count=2, next_incoming_id=3) == []
    assert [payload for _, payload in peer.flow(1, delivery_count=2, next_incoming_id=3)] == [b"cccc"]


async def test_a_closed_window_holds_deliveries_back_until_it_opens(peer):
    peer.open()
    peer.store.outbox = [b"aaaa", b"bbbb"]
    answers = peer.attach_receiver(10, window=1)
    assert [payload for _, payload in answers if payload] == [b"aaaa"]

    opened = peer.say(Flow(2, 5000, 0, 5000))

    assert [payload for _, payload in opened] == [b"bbbb"]


async def test_a_full_socket_holds_deliveries_back_until_it_drains(peer):
    peer.open()
    peer.connection.pause_writing()
    peer.store.outbox = [b"aaaa"]
    assert Transfer not in kinds(peer.attach_receiver(10))

    peer.connection.resume_writing()
    await asyncio.sleep(0)

    assert [payload for _, payload in peer.heard()] == [b"aaaa"]


async def test_draining_uses_up_the_credit_and_says_so(peer):
    peer.open()
    peer.store.outbox = [b"aaaa"]
    *_, (transfer, payload), (flow, _) = peer.attach_receiver(5, drain=True)

    assert (payload, transfer.more) == (b"aaaa", False)
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 5)
    assert not peer.store.link.ready


async def test_a_message_larger_than_a_frame_of_the_peer_goes_out_in_parts(peer):
    peer.open(max_frame_size=512)
    peer.store.outbox = [bytes(range(250)) * 4]
    parts = [
        (transfer, payload) for transfer, payload in peer.attach_receiver(1) if isinstance(transfer, Transfer)
    ]

    assert b"".join(payload for _, payload in parts) == bytes(range(250)) * 4
    assert [transfer.more for transfer, _ in parts] == [True, True, False]
    assert {transfer.delivery_id for transfer, _ in parts} == {1}
    assert all(len(encode_frame(0, transfer, payload)) <= 512 for transfer, payload in parts)


def deliveries(answers):
    """The transfers of an answer as the specification has them read (AMQP 1.0 part 2, 2.6.12 and 2.7.5): payloads by
    delivery id. A delivery's first transfer has an id, a tag and a format; the others may repeat the id and no other.
    """
    found, unfinished = [], None
    for transfer, payload in answers:
        if not isinstance(transfer, Transfer):
            continue
        if unfinished is None:
            assert None not in (transfer.delivery_id, transfer.delivery_tag, transfer.message_format)
            unfinished = [transfer.delivery_id, transfer.delivery_tag, b""]
        assert transfer.delivery_id in (None, unfinished[0])
        assert transfer.delivery_tag in (None, unfinished[1])
        unfinished[2] += payload
        if not transfer.more:
            found.append((unfinished[0], unfinished[2]))
            unfinished = None
    assert unfinished is None
    return found


@pytest.mark.parametrize("settled", [None, 1])
@pytest.mark.parametrize("bulk", [False, True])
async def test_delivery_ids_count_deliveries_and_the_sessions_ids_count_frames(peer, settled, bulk):
    peer.open(max_frame_size=512)
    peer.say(Attach("r", 2, role=True, source=SOURCE, target=TARGET, snd_settle_mode=settled))
    sizes = (10, 2000, 20, 900, 30)
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    if bulk and settled:
        peer.store.outbox = []
        answers = peer.flow(100)
        peer.store.link.session.send_settled(peer.store.link, payloads)
        answers += peer.heard()
    else:
        peer.store.outbox = list(payloads)
        answers = peer.flow(100)

    first, *_ = found = deliveries(answers)
    assert found == [(first[0] + n, payload) for n, payload in enumerate(payloads)]
    frames = sum(isinstance(each, Transfer) for each, _ in answers)
    assert frames > len(payloads)
    (told, _) = peer.flow(0, drain=True, delivery_count=5)[-1]
    assert told.next_outgoing_id == 1 + frames  # a Begin said 1


async def test_delivery_ids_that_pass_their_last_number_can_be_settled_together(peer):
    peer.open()
    peer.attach_receiver(0)
    peer.store.link.session._next_delivery_id = 2**32 - 2
    peer.store.outbox = [b"a---", b"b---", b"c---", b"d---"]
    found = deliveries(peer.flow(4))
    assert [number for number, _ in found] == [2**32 - 2, 2**32 - 1, 0, 1]

    peer.say(Disposition(True, 2**32 - 2, 0, True, ACCEPTED))

    assert peer.store.settlements == [b"a---", b"b---", b"c---"]


async def test_decisions_of_the_peer_reach_the_source_once_and_are_confirmed_if_it_asks(peer):
    peer.open()
    peer.store.outbox = [b"aaaa", b"bbbb", b"cccc"]
    peer.attach_receiver(3)

    confirmed = peer.say(Disposition(role=True, first=1, state=ACCEPTED))
    assert confirmed == [(Disposition(role=False, first=1, settled=True, state=ACCEPTED), b"")]
    assert peer.say(Disposition(role=True, first=1, last=2**32 - 1, settled=True, state=ACCEPTED)) == []
    assert peer.store.settlements == [b"aaaa", b"bbbb", b"cccc"]


async def test_a_refused_link_is_answered_without_its_terminus_and_detached_with_the_error(peer):
    peer.open()
    elsewhere = Described(ULong(0x28), ["elsewhere"])
    [(attach, _), (detach, _)] = peer.say(Attach("r", 5, role=True, source=elsewhere, target=TARGET))

    assert (attach.source, attach.target) == (None, TARGET)
    assert (detach.handle, detach.closed, detach.error.value[:2]) == (5, True, [NOT_FOUND, "no elsewhere"])


async def test_detach_and_end_are_answered_and_release_the_links(peer):
    peer.open()
    peer.attach_sender()
    peer.attach_receiver(0)
    assert peer.say(Detach(1, closed=True)) == [(Detach(1, closed=True), b"")]
    assert peer.store.detached == 1
    assert kinds(peer.say(End())) == [End]
    assert peer.store.detached == 2


async def test_a_lost_connection_detaches_everything_and_is_reported_once(peer):
    peer.open()
    peer.attach_sender()
    peer.connection.connection_lost(None)

    assert (peer.store.detached, peer.lost) == (1, [peer.connection])
    assert peer.heard() == []


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (encode_frame(0, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
        (encode_frame(9, Detach(1)), "amqp:not-allowed"),
        (encode_frame(0, Open("again")), "amqp:not-allowed"),
        (b"\x7f\xff\xff\xff\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x99\x45", "amqp:decode-error"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x16\x45", "amqp:invalid-field"),
    ],
)
async def test_what_the_protocol_does_not_allow_closes_the_connection_with_the_reason(peer, data, condition):
    peer.open()
    [(close, _)] = peer.say_bytes(data)

    assert close.error.value[0] == condition
    assert peer.transport.closed
