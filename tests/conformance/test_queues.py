"""What every ActionSender and PoisonQueues does: those in memory and those on storage queues."""

import base64
import uuid

import pytest
from azure.storage.queue.aio import QueueServiceClient

from scaling.codec import MessageError, decode_action
from scaling.connections import ConnectionSettingsError
from scaling.model import Reason, ScaleAction
from scaling.ports import StoreUnavailableError
from scaling.queues import QueueActionSender, QueuePoisonQueues, shown
from tests.fakes import MemoryActionSender, MemoryPoisonQueues

T0 = 1_795_000_000.0
UNREACHABLE = "AccountName=acme;AccountKey=c2VjcmV0;QueueEndpoint=http://127.0.0.1:9/acme"


class MemoryQueues:
    def __init__(self):
        self.sender = MemoryActionSender()
        self.poison = MemoryPoisonQueues(queues=("metrics", "actions"))

    async def received(self):
        return self.sender.messages

    async def put_poison(self, queue, *texts):
        self.poison.messages.setdefault(queue, []).extend((T0, text) for text in texts)

    async def aclose(self):
        pass


class StorageQueues:
    def __init__(self, connection):
        settings = {"Store": connection}
        self.prefix = f"q{uuid.uuid4().hex[:12]}"
        self.sender = QueueActionSender(settings, "Store", queue=f"{self.prefix}-actions")
        names = [f"{self.prefix}-metrics", f"{self.prefix}-actions"]
        self.poison = QueuePoisonQueues(settings, "Store", queues=names)
        self.service = QueueServiceClient.from_connection_string(connection)

    async def received(self):
        client = self.service.get_queue_client(f"{self.prefix}-actions")
        messages = await client.peek_messages(32)
        return [base64.b64decode(message.content, validate=True).decode() for message in messages]

    async def put_poison(self, queue, *texts):
        client = self.service.get_queue_client(f"{self.prefix}-{queue}-poison")
        await client.create_queue()
        for text in texts:
            await client.send_message(text)

    async def aclose(self):
        await self.sender.aclose()
        await self.poison.aclose()
        await self.service.close()


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.wire)])
def backend(request):
    """None for memory, else a connection string; asked for outside the loop, where Azurite is started."""
    return None if request.param == "memory" else request.getfixturevalue("azurite")


@pytest.fixture
async def queues(backend):
    made = StorageQueues(backend) if backend else MemoryQueues()
    yield made
    await made.aclose()


def action(number=1, line="2 → 3 „ü“"):
    return ScaleAction(f"id-{number}", "plan", 2, 3, T0, T0 + 600, Reason.SCALE_OUT, line)


def encoded(text):
    return base64.b64encode(text.encode()).decode()


async def test_actions_arrive_in_order_on_a_queue_that_did_not_exist(queues):
    await queues.sender.send([action(1), action(2)])
    await queues.sender.send([action(1)])

    assert [decode_action(text) for text in await queues.received()] == [action(1), action(2), action(1)]


async def test_an_action_beyond_a_message_is_refused_before_any_is_sent(queues):
    await queues.sender.send([action(1)])

    with pytest.raises(MessageError, match="at most 49152"):
        await queues.sender.send([action(2), action(3, "x" * 48 * 1024)])

    assert [decode_action(text) for text in await queues.received()] == [action(1)]


async def test_the_largest_message_the_codec_allows_can_be_sent(queues):
    spare = 48 * 1024 - 250
    await queues.sender.send([action(1, "x" * spare)])

    [text] = await queues.received()
    assert decode_action(text).line == "x" * spare


async def test_missing_poison_queues_hold_nothing(queues):
    assert await queues.poison.peek() == (0, [])


async def test_poison_messages_are_shown_in_turn_and_stay(queues):
    await queues.put_poison("metrics", encoded('{"v": 9, "text": "ü"}'), "plain {text", encoded("third"))
    await queues.put_poison("actions", encoded("x" * 2_000))

    total, first = await queues.poison.peek(3)
    again = await queues.poison.peek(3)

    assert total == 4
    assert [(m.queue.split("-", 1)[-1] if m.queue.startswith("q") else m.queue, m.body) for m in first] == [
        ("metrics-poison", '{"v": 9, "text": "ü"}'),
        ("actions-poison", "x" * 1_000),
        ("metrics-poison", "plain {text"),
    ]
    assert all(message.message_id and message.inserted_at for message in first)
    assert again == (4, first)


async def test_more_poison_than_one_peek_can_show_is_counted(queues):
    await queues.put_poison("metrics", *(encoded(f"m{n}") for n in range(40)))

    total, messages = await queues.poison.peek(16)
    assert (total, len(messages)) == (40, 16)
    total, messages = await queues.poison.peek(0)
    assert (total, messages) == (40, [])


@pytest.mark.parametrize(
    ("content", "body"),
    [
        ("aGVsbG8=", "hello"),
        ("aMOpbGxv\n", "aMOpbGxv\n"),
        ("aMOpbGxv", "héllo"),
        ("hello", "hello"),
        ("abcd", "abcd"),  # base64 of no text
        ("AAAA", "AAAA"),  # base64 of NULs
        (base64.b64encode(b"\xff\xfe").decode(), "//4="),
        ("", ""),
        ("y" * 3_001, "y" * 1_000),
    ],
)
def test_a_body_is_decoded_only_where_it_is_base64_of_text(content, body):
    assert shown(content) == body


async def test_queues_that_do_not_answer_are_unavailable_by_name():
    sender = QueueActionSender({"Store": UNREACHABLE}, "Store", queue="actions", retry_total=0)
    poison = QueuePoisonQueues({"Store": UNREACHABLE}, "Store", queues=["metrics"], retry_total=0)

    with pytest.raises(StoreUnavailableError, match="queue 'actions' of storage account 'acme'"):
        await sender.send([action()])
    with pytest.raises(StoreUnavailableError, match="queue 'metrics-poison' of storage account 'acme'"):
        await poison.peek()
    await sender.aclose()
    await poison.aclose()


@pytest.mark.parametrize(
    "make", [QueueActionSender, lambda s, p: QueuePoisonQueues(s, p, queues=["metrics"])]
)
def test_missing_connection_settings_are_named_when_a_queue_is_made(make):
    with pytest.raises(ConnectionSettingsError, match="Store__queueServiceUri"):
        make({}, "Store")


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_fake_can_crash_before_and_after_each_call(point):
    def crash(name):
        raise RuntimeError(name)

    sender = MemoryActionSender(**{point: crash})

    with pytest.raises(RuntimeError, match=r"actions\.send"):
        await sender.send([action()])
    assert sender.sent == ([] if point == "before" else [action()])
