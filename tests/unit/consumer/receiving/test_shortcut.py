"""Where the SDK's inside is not as expected, everything goes the SDK's own way, and it is told once."""

import asyncio
import importlib
import random
import subprocess
import sys
from collections import deque
from types import SimpleNamespace

import pytest
from azure.eventhub._pyamqp import _decode
from azure.eventhub._pyamqp.aio._transport_async import AsyncTransport

from consumer.config import read_config
from consumer.receiving import link as link_module
from consumer.receiving.fast_path import Shortcut, _hook_link, _hook_transport
from consumer.receiving.link import LinkOptions, _shortcut
from consumer.receiving.receiver import HubReceiver
from consumer.running.assembly import Parts

SETTINGS = {
    "EVENTHUB_NAME": "hub",
    "COSMOS_DATABASE": "db",
    "COSMOS_CONTAINER": "c",
    "EventHubConnection": "Endpoint=sb://h.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=a2V5",
}


class Told(list):
    def __call__(self, error):
        self.append(error)


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def options(told):
    return LinkOptions("0", "-1", inclusive=False, epoch=1, prefetch=10, batch=10, on_broken=told)


class Consumer(SimpleNamespace):
    """Has what the first hooks need, and a handler without an inside."""

    _next_message_in_buffer = None

    async def _open(self):
        self.running = True


def test_a_client_of_another_make_is_left_alone(options, told):
    client = SimpleNamespace()

    assert _shortcut(client, options) is None
    assert vars(client) == {}
    assert len(told) == 1


def test_it_is_not_taken_where_the_sdk_is_told_to_trace(monkeypatch, options, told):
    client = SimpleNamespace(_create_consumer=None)
    assert _shortcut(client, options)
    assert told == []

    monkeypatch.setattr("consumer.receiving.link.settings", SimpleNamespace(tracing_enabled=lambda: True))

    assert _shortcut(client, options) is None
    assert "tracing" in str(told[0])


def test_of_another_version_nothing_private_is_even_imported(monkeypatch, options, told):
    monkeypatch.setattr(link_module, "_installed", lambda: "5.16.0")
    monkeypatch.setitem(sys.modules, "consumer.receiving.fast_path", None)  # an import would fail

    assert _shortcut(SimpleNamespace(_create_consumer=None), options) is None
    assert str(told[0]) == "azure-eventhub 5.16.0 is installed, its inside is known of 5.15.*"


@pytest.mark.parametrize("moved", ["decode_frame", "decode_payload"])
def test_a_private_name_that_moved_costs_the_short_way_and_nothing_else(monkeypatch, options, told, moved):
    monkeypatch.delattr(_decode, moved)
    monkeypatch.delitem(sys.modules, "consumer.receiving.fast_path")
    monkeypatch.delattr("consumer.receiving.fast_path", raising=False)

    assert _shortcut(SimpleNamespace(_create_consumer=None), options) is None
    assert isinstance(told[0], ImportError)


def test_the_consumer_is_imported_without_any_of_the_sdk_s_private_names():
    code = (
        "import sys; sys.modules['azure.eventhub._pyamqp._decode'] = None;"
        "import consumer.running.process; assert 'consumer.receiving.fast_path' not in sys.modules"
    )

    # The SDK needs its own module: what is imported before stays.
    code = "import azure.eventhub.aio; " + code
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_setting_turns_it_off():
    config = read_config({**SETTINGS, "CONSUMER_SHORTCUT": "false"})

    assert Parts(config, SETTINGS).receiver().options.shortcut is False
    assert Parts(read_config(SETTINGS), SETTINGS).receiver().options.shortcut is True


def test_a_receiver_tells_once_and_asks_for_no_more(caplog):
    receiver = HubReceiver({}, "Hub", "hub", "$Default")
    receiver._without_shortcut(ValueError("one"))
    receiver._without_shortcut(ValueError("two"))

    assert receiver.options.shortcut is False
    assert [record.message.split(": ")[1] for record in caplog.records] == ["ValueError('one')"]


async def test_a_link_or_transport_of_another_make_opens_all_the_same(told):
    made = Consumer(_message_buffer=deque(), _handler=SimpleNamespace(), running=False)
    client = SimpleNamespace(_create_consumer=lambda: made)
    Shortcut(client, "0", told)

    consumer = client._create_consumer()
    await consumer._open()

    assert consumer.running
    assert vars(consumer._handler) == {}
    assert len(told) == 1


def test_a_consumer_of_another_make_is_left_alone(told):
    client = SimpleNamespace(_create_consumer=SimpleNamespace)
    Shortcut(client, "0", told)

    assert vars(client._create_consumer()) == {}
    assert len(told) == 1


def test_an_event_that_cannot_be_made_stays_where_it_is(told):
    made = Consumer(_message_buffer=deque(["no message"]), running=False)
    client = SimpleNamespace(_create_consumer=lambda: made)
    Shortcut(client, "0", told)
    consumer = client._create_consumer()

    for _ in range(2):
        with pytest.raises(AttributeError):
            consumer._next_message_in_buffer()

    assert list(made._message_buffer) == ["no message"]
    assert len(told) == 1


class SdkLink(SimpleNamespace):
    """What the hooked link's own way got."""

    async def _incoming_transfer(self, frame):
        self.got.append(frame)


FRAME = [None, 7, None, None, True, False, None, None, None, None, None, b"message"]


def a_link(**inside):
    fields = {
        "received_delivery_id": 0,
        "delivery_count": 0,
        "current_link_credit": 10,
        "_received_payload": b"",
        "_received_delivery_tags": set(),
        **inside,
    }
    link = SdkLink(got=[], **fields)
    session = SimpleNamespace(
        _input_handles={0: link}, next_incoming_id=0, incoming_window=1_000, remote_outgoing_window=1_000
    )
    connection = SimpleNamespace(_incoming_endpoints={0: session}, _last_frame_received_time=0)
    handler = SimpleNamespace(
        _link=link, _session=session, _connection=connection, _last_activity_timestamp=0
    )
    return link, SimpleNamespace(_handler=handler, _message_buffer=deque())


@pytest.mark.parametrize("missing", ["delivery_count", "current_link_credit", "_received_payload"])
async def test_a_frame_that_cannot_be_taken_goes_the_sdk_s_way_whole_and_once(told, missing):
    link, consumer = a_link()
    _hook_link(consumer, Shortcut(SimpleNamespace(_create_consumer=None), "0", told))
    await link._incoming_transfer(FRAME)
    assert (list(consumer._message_buffer), link.current_link_credit) == ([b"message"], 9)
    delattr(link, missing)

    await link._incoming_transfer(FRAME)
    setattr(link, missing, 1)
    await link._incoming_transfer(FRAME)

    assert link.got == [FRAME, FRAME], "none but the first went the short way, which is given up"
    assert list(consumer._message_buffer) == [b"message"]
    assert len(told) == 1


async def test_a_frame_of_another_shape_is_the_sdk_s(told):
    link, consumer = a_link()
    _hook_link(consumer, Shortcut(SimpleNamespace(_create_consumer=None), "0", told))

    await link._incoming_transfer([1, 2])

    assert link.got == [[1, 2]]
    assert len(told) == 1


async def test_bytes_that_cannot_be_read_are_left_to_the_sdk(monkeypatch, told):
    buffered = bytearray((20).to_bytes(4) + bytes([2, 0, 0, 0]) + b"x" * 12)
    before = bytes(buffered)
    stream = SimpleNamespace(_buffer=buffered, _maybe_resume_transport=lambda: None)
    _, consumer = a_link()

    async def receive_frame(timeout=None, **_options):
        return "the SDK's", bytes(buffered)

    transport = SimpleNamespace(
        reader=stream,
        receive_frame=receive_frame,
        _read_buffer=importlib.import_module("io").BytesIO(),
        socket_lock=SimpleNamespace(locked=lambda: False),
    )
    consumer._handler._connection._transport = transport
    monkeypatch.setattr("consumer.receiving.fast_path.decode_frame", lambda _data: 1 / 0)
    _hook_transport(consumer, Shortcut(SimpleNamespace(_create_consumer=None), "0", told))

    assert await transport.receive_frame(timeout=1) == ("the SDK's", before)
    assert isinstance(told[0], ZeroDivisionError)


def transfer(number):
    """A frame of AMQP: the transfer with this delivery id, of which every seventh is not settled."""
    settled = b"\x42" if number % 7 == 6 else b"\x41"
    fields = b"\x43\x52" + bytes([number]) + b"\xa0\x01t\x43" + settled + b"\x42" + b"\x40" * 5
    body = b"\x00\x53\x14\xc0" + bytes([len(fields) + 1, 11]) + fields + bytes([number]) + b"x" * (number % 5)
    return (8 + len(body)).to_bytes(4) + b"\x02\x00\x00\x00" + body


@pytest.mark.parametrize("window", [1_000, 5])
@pytest.mark.parametrize("seed", range(12))
async def test_frames_stay_in_order_while_the_keep_alive_of_the_sdk_receives_as_well(told, seed, window):
    link, consumer = a_link(current_link_credit=1_000)
    transport = consumer._handler._connection._transport = AsyncTransport("localhost:1")
    transport.reader = asyncio.StreamReader()
    shortcut, session = (
        Shortcut(SimpleNamespace(_create_consumer=None), "0", told),
        consumer._handler._session,
    )
    session.incoming_window = window
    _hook_link(consumer, shortcut)
    _hook_transport(consumer, shortcut)
    pieces, count, got = random.Random(seed), 60, consumer._message_buffer

    async def sdks_own(frame):  # what is not settled
        got.append(bytes(frame[-1]))
        link.delivery_count, link.current_link_credit = link.delivery_count + 1, link.current_link_credit - 1

    hooked = link._incoming_transfer

    async def receive():
        while True:
            _, frame = await transport.receive_frame(timeout=pieces.choice([60, 0.001]))
            if frame is not None and frame[0] == 20:
                session.next_incoming_id += 1
                session.remote_outgoing_window -= 1
                session.incoming_window = session.incoming_window - 1 or window
                await (hooked(frame[1]) if frame[1][4] else sdks_own(frame[1]))

    readers = [asyncio.create_task(receive()) for _ in range(2)]
    data = b"".join(map(transfer, range(count)))
    while data:
        size = pieces.choice([3, 20, 100, 400])
        transport.reader.feed_data(data[:size])
        data = data[size:]
        for _ in range(pieces.randrange(6)):
            await asyncio.sleep(0)
    for _ in range(1_000):
        await asyncio.sleep(0)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)

    assert [message[0] for message in got] == list(range(count))
    assert [len(message) for message in got] == [1 + number % 5 for number in range(count)]
    assert (link.delivery_count, link.current_link_credit) == (count, 1_000 - count)
    assert (session.next_incoming_id, session.remote_outgoing_window) == (count, 1_000 - count)
    assert told == []


@pytest.mark.parametrize(
    ("limits", "taken"),
    [({}, 9), ({"credit": 4}, 4), ({"window": 6}, 5), ({"most_bytes": 7}, 7), ({"begun": b"x"}, 0)],
)
async def test_no_more_frames_are_taken_together_than_credit_window_and_memory_allow(told, limits, taken):
    credit, window = limits.get("credit", 1_000), limits.get("window", 1_000)
    link, consumer = a_link(current_link_credit=credit, _received_payload=limits.get("begun", b""))
    consumer._handler._session.incoming_window = window
    transport = consumer._handler._connection._transport = AsyncTransport("localhost:1")
    transport.reader = asyncio.StreamReader()
    most_bytes = lambda: limits.get("most_bytes", 10**6)
    shortcut = Shortcut(SimpleNamespace(_create_consumer=None), "0", told, most_bytes=most_bytes)
    _hook_transport(consumer, shortcut)
    transport.reader.feed_data(transfer(35))
    assert (await transport.receive_frame(timeout=1))[1][0] == 20  # teaches what frames look like
    transport.reader.feed_data(b"".join([transfer(35)] * 9))
    _, frame = await transport.receive_frame(timeout=1)

    assert len(consumer._message_buffer) == taken
    assert (frame is None) == ("credit" in limits), "without credit the SDK ends its round, and grants some"
    assert told == []
    assert link.current_link_credit == credit - taken


async def test_a_stream_that_ends_or_fails_is_told_as_the_sdk_tells_it(told):
    _, consumer = a_link()
    transport = consumer._handler._connection._transport = AsyncTransport("localhost:1")
    transport.reader = asyncio.StreamReader()
    _hook_transport(consumer, Shortcut(SimpleNamespace(_create_consumer=None), "0", told))
    asyncio.get_running_loop().call_soon(transport.reader.feed_eof)

    with pytest.raises(OSError, match="Server unexpectedly closed connection"):
        await transport.receive_frame(timeout=1)
    transport.reader = asyncio.StreamReader()
    _hook_transport(consumer, Shortcut(SimpleNamespace(_create_consumer=None), "0", told))
    asyncio.get_running_loop().call_soon(transport.reader.set_exception, ConnectionResetError("gone"))

    with pytest.raises(ConnectionResetError, match="gone"):
        await transport.receive_frame(timeout=1)
    assert told == []
