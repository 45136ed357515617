"""Where the SDK's inside is not as expected, everything goes the SDK's own way."""

from types import SimpleNamespace

from consumer.link import LinkOptions, _shortcut
from consumer.shortcut import Shortcut

OPTIONS = LinkOptions("0", "-1", inclusive=False, epoch=1, prefetch=10, batch=10)


class Consumer(SimpleNamespace):
    """Has what the first hooks need, and a handler without an inside."""

    _next_message_in_buffer = None

    async def _open(self):
        self.running = True


def test_a_client_of_another_make_is_left_alone():
    client = SimpleNamespace()

    assert _shortcut(client, OPTIONS) is None
    assert vars(client) == {}


def test_it_is_not_taken_where_the_sdk_is_told_to_trace(monkeypatch):
    client = SimpleNamespace(_create_consumer=None)
    assert _shortcut(client, OPTIONS)

    monkeypatch.setattr("consumer.link.settings", SimpleNamespace(tracing_enabled=lambda: True))

    assert _shortcut(client, OPTIONS) is None


async def test_a_link_or_transport_of_another_make_opens_all_the_same():
    made = Consumer(_message_buffer=[], _handler=SimpleNamespace(), running=False)
    client = SimpleNamespace(_create_consumer=lambda: made)
    Shortcut(client, "0")

    consumer = client._create_consumer()
    await consumer._open()

    assert consumer.running
    assert vars(consumer._handler) == {}


def test_a_consumer_of_another_make_is_left_alone():
    client = SimpleNamespace(_create_consumer=SimpleNamespace)
    Shortcut(client, "0")

    assert vars(client._create_consumer()) == {}
