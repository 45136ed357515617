"""Messages that are settled as they are sent, connections that hang, and the port that all protocols share."""

import asyncio

import pytest

from devstack.amqp.connection import Connection
from devstack.amqp.links import PRE_SETTLED
from devstack.amqp.listener import AMQP, ANYTHING_ELSE, Listener, Route
from devstack.amqp.wire.frames import AMQP_HEADER, EMPTY_FRAME, Frame, FrameParser, encode_frame
from devstack.amqp.wire.performatives import Attach, Begin, Flow, Open, Transfer, decode_performative
from devstack.amqp.wire.values import Described, ULong
from tests.support.servers.transport import RecordingTransport

SOURCE, TARGET = Described(ULong(0x28), ["log"]), Described(ULong(0x29), ["here"])
FRAME_SIZE = 1024


class Log:
    """A service that insists on sending its messages settled."""

    def attach_source(self, link):
        self.link = link
        link.pre_settled = True
        return self

    credits_seen = 0

    def on_credit(self):
        self.credits_seen += 1

    def on_detached(self):
        pass


class Peer:
    def __init__(self, *, credit=100, window=2000, idle_time_out=None):
        self.transport, self.log = RecordingTransport(), Log()
        self.connection = Connection(
            lambda _: self.log, container_id="server", max_message_size=10_000, lost=lambda _: None
        )
        self.connection.connection_made(self.transport)
        self.say(
            Open("peer", max_frame_size=FRAME_SIZE, idle_time_out=idle_time_out),
            Begin(None, 1, window, window),
            Attach("link", 5, role=True, snd_settle_mode=0, source=SOURCE, target=TARGET),
            Flow(1, window, 1, window, 5, 0, credit),
            before=AMQP_HEADER.encode(),
        )

    def say(self, *performatives, before=b""):
        self.connection.data_received(
            before + b"".join(encode_frame(3, performative) for performative in performatives)
        )

    def heard(self):
        """Performatives with their payloads since the last call."""
        items = FrameParser(FRAME_SIZE).feed(self.transport.written)
        self.transport.written = b""
        frames = [item for item in items if isinstance(item, Frame) and item.body]
        return [
            (performative, frame.body[start:])
            for frame in frames
            for performative, start in [decode_performative(frame.body)]
        ]


async def test_the_attach_of_a_source_that_settles_says_so():
    attaches = [each for each, _ in Peer().heard() if isinstance(each, Attach)]

    assert [attach.snd_settle_mode for attach in attaches] == [PRE_SETTLED]


async def test_settled_transfers_are_the_frames_that_they_would_be_one_by_one():
    peer = Peer()
    peer.heard()
    payloads = [b"small", b"x" * 3000, b"", b"y" * (FRAME_SIZE - 200), b"last"]

    peer.log.link.send_settled(payloads)

    heard = peer.heard()
    assert all(transfer.handle == 5 and transfer.settled for transfer, _ in heard)
    messages, parts, ids = [], b"", []
    for transfer, payload in heard:
        parts += payload
        if not transfer.more:
            messages.append(parts)
            ids.append(transfer.delivery_id)
            parts = b""
    assert messages == payloads
    assert len(heard) > len(payloads)
    assert ids == [1, 2, 3, 4, 5]


async def test_a_settled_transfer_is_the_one_that_the_codec_writes():
    peer = Peer()
    peer.heard()

    peer.log.link.send_settled([b"payload"])
    [(transfer, payload)] = peer.heard()

    assert payload == b"payload"
    assert transfer == Transfer(
        handle=5,
        delivery_id=1,
        delivery_tag=b"\0\0\0\1",
        message_format=0,
        settled=True,
        more=False,
    )


@pytest.mark.parametrize(("credit", "window", "room"), [(3, 100, 3), (100, 4, 4), (0, 100, 0)])
async def test_there_is_room_for_what_credit_and_window_allow(credit, window, room):
    peer = Peer(credit=credit, window=window)

    assert peer.log.link.room == room
    peer.log.link.send_settled([b"x"] * room)
    assert peer.log.link.room == 0


async def test_ids_of_deliveries_start_again_behind_the_last():
    peer = Peer()
    peer.heard()
    peer.log.link.session._next_delivery_id = 2**32 - 1

    peer.log.link.send_settled([b"a", b"b"])

    assert [transfer.delivery_id for transfer, _ in peer.heard()] == [2**32 - 1, 0]
    assert peer.log.link.session.remote_window == 1998


@pytest.fixture
async def beats(monkeypatch):
    """What the loop was asked to call later; it does not."""
    asked = []

    def call_later(_delay, function, *arguments):
        asked.append(lambda: function(*arguments))
        return asyncio.TimerHandle(0, function, arguments, asyncio.get_running_loop())

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    return asked


async def test_an_open_connection_sends_heartbeats(beats):
    peer = Peer(idle_time_out=1000)
    peer.heard()

    beats.pop()()
    await asyncio.sleep(0)

    assert peer.transport.written == EMPTY_FRAME
    assert len(beats) == 1


async def test_a_frozen_connection_hears_and_says_nothing_not_even_heartbeats(beats):
    peer = Peer(idle_time_out=1000)
    peer.heard()

    peer.connection.freeze()
    seen = peer.log.credits_seen
    peer.say(Flow(1, 100, 1, 100, 5, 0, 10, echo=True))
    peer.log.link.send_settled([b"x"])
    peer.connection.resume_writing()
    beats.pop()()
    await asyncio.sleep(0)

    assert (peer.transport.written, peer.transport.reading, peer.log.link.room) == (b"", False, 0)
    assert (peer.log.credits_seen, beats) == (seen, [])


class Greeter(asyncio.Protocol):
    def __init__(self, greeting):
        self.greeting = greeting

    def connection_made(self, transport):
        transport.write(self.greeting)


async def test_the_first_byte_decides_who_answers_and_stopping_hangs_up():
    listener = Listener()
    await listener.start(
        {AMQP: Route(lambda: Greeter(b"amqp")), ANYTHING_ELSE: Route(lambda: Greeter(b"else"))}
    )
    answers, streams = [], []
    for first in (b"A", b"G"):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(first)
        answers.append(await reader.readexactly(4))
        streams.append((reader, writer))

    await listener.stop()

    assert answers == [b"amqp", b"else"]
    for reader, writer in streams:
        assert await reader.read() == b""
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
