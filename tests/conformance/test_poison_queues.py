"""What every PoisonQueues does: the one in memory and the one on storage queues."""

import base64
import uuid
from types import SimpleNamespace

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue.aio import QueueClient, QueueServiceClient

from scaling.storage.poison_queues import QueuePoisonQueues, shown
from tests.support.scaling.fakes import MemoryPoisonQueues
from tidemark.foundation.azure.connections import ConnectionSettingsError
from tidemark.foundation.errors import StoreUnavailableError

T0 = 1_795_000_000.0
UNREACHABLE = "AccountName=acme;AccountKey=c2VjcmV0;QueueEndpoint=http://127.0.0.1:9/acme"


class MemoryQueues:
    def __init__(self):
        self.poison = MemoryPoisonQueues(queues=("metrics", "actions"))

    def poison_name(self, queue):
        return queue

    async def put_poison(self, queue, *texts):
        self.poison.messages.setdefault(queue, []).extend((T0, text) for text in texts)

    async def aclose(self):
        pass


class StorageQueues:
    def __init__(self, connection):
        settings = {"Store": connection}
        self.prefix = f"q{uuid.uuid4().hex[:12]}"
        names = [f"{self.prefix}-metrics", f"{self.prefix}-actions"]
        self.poison = QueuePoisonQueues(settings, "Store", queues=names)
        self.service = QueueServiceClient.from_connection_string(connection)

    def poison_name(self, queue):
        return f"{self.prefix}-{queue}"

    async def put_poison(self, queue, *texts):
        client = self.service.get_queue_client(f"{self.prefix}-{queue}-poison")
        await client.create_queue()
        for text in texts:
            await client.send_message(text)

    async def aclose(self):
        await self.poison.aclose()
        await self.service.close()


@pytest.fixture
async def queues(backend):
    made = StorageQueues(backend) if backend else MemoryQueues()
    yield made
    await made.aclose()


def encoded(text):
    return base64.b64encode(text.encode()).decode()


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
    poison = QueuePoisonQueues({"Store": UNREACHABLE}, "Store", queues=["metrics"], retry_total=0)

    with pytest.raises(StoreUnavailableError, match="queue 'metrics-poison' of storage account 'acme'"):
        await poison.peek()
    await poison.aclose()


async def test_a_refusal_without_a_code_is_told_by_its_reason(monkeypatch):
    async def refuse(*_):
        raise HttpResponseError(response=SimpleNamespace(status_code=403, reason="Forbidden", headers={}))

    monkeypatch.setattr(QueueClient, "get_queue_properties", refuse)
    poison = QueuePoisonQueues({"Store": UNREACHABLE}, "Store", queues=["metrics"])

    with pytest.raises(StoreUnavailableError, match="answered 403 Forbidden"):
        await poison.peek()
    await poison.aclose()


def test_missing_connection_settings_are_named_when_the_queues_are_made():
    with pytest.raises(ConnectionSettingsError, match="Store__queueServiceUri"):
        QueuePoisonQueues({}, "Store", queues=["metrics"])


async def test_a_fake_can_crash_before_a_call():
    def crash(name):
        raise RuntimeError(name)

    with pytest.raises(RuntimeError, match=r"poison\.peek"):
        await MemoryPoisonQueues(before=crash).peek()


async def test_what_is_put_there_is_found_there(queues):
    for text in ("first", '{"second": "zw\u00f6lf"}'):
        await queues.poison.put(queues.poison_name("metrics"), text)

    count, messages = await queues.poison.peek()

    assert (count, [message.body for message in messages]) == (2, ["first", '{"second": "zw\u00f6lf"}'])
