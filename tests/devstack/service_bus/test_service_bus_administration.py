from datetime import UTC, datetime, timedelta

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from devstack.amqp.wire.messages import DATA, encode_section
from devstack.servers.faults import Fault
from devstack.service_bus import Counts, QueueSettings, ServiceBusServer
from devstack.service_bus.messages.messages import Sent

pytestmark = pytest.mark.wire


@pytest.fixture
def client(threaded):
    threaded.call(threaded.server.broker.queues.clear)
    threaded.call(threaded.server.broker.topics.clear)
    server = threaded.server
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.ca_path), retry_total=0
    ) as administration:
        yield administration


def fill(threaded, address, *, dead=0, active=0, locked=0):
    def work():
        queue = threaded.server.broker.source(address)
        for _ in range(dead + active + locked):
            queue.send(Sent.parse(encode_section(DATA, b"x")))
        for _ in range(dead):
            queue.dead_letter(queue.receive().lock_token, "r", "d")
        for _ in range(locked):
            queue.receive()

    threaded.call(work)


def test_a_queue_is_created_read_updated_and_deleted(client):
    created = client.create_queue(
        "orders", lock_duration=timedelta(seconds=30), max_delivery_count=3, user_metadata="a < b & c"
    )
    assert (created.name, created.status, created.max_delivery_count) == ("orders", "Active", 3)

    created.status = EntityStatus.SEND_DISABLED
    created.max_delivery_count = 5
    client.update_queue(created)
    read = client.get_queue("orders")
    assert (read.status, read.max_delivery_count) == ("SendDisabled", 5)
    assert (read.lock_duration, read.user_metadata) == (timedelta(seconds=30), "a < b & c")

    client.delete_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("orders")


def test_the_settings_made_over_http_are_those_the_broker_acts_upon(threaded, client):
    client.create_queue(
        "orders",
        lock_duration="PT5S",
        max_delivery_count=3,
        default_message_time_to_live="PT1H",
        dead_lettering_on_message_expiration=True,
    )

    assert threaded.call(lambda: threaded.server.broker.queues["orders"].settings) == QueueSettings(
        lock_duration=5, max_delivery_count=3, default_ttl=3600, dead_letter_on_expiration=True
    )


def test_runtime_properties_count_messages_with_the_locked_ones_among_the_active(threaded, client):
    client.create_queue("orders")
    fill(threaded, "orders", dead=2, active=3, locked=1)

    runtime = client.get_queue_runtime_properties("orders")

    assert (runtime.active_message_count, runtime.dead_letter_message_count) == (4, 2)
    assert (runtime.scheduled_message_count, runtime.transfer_message_count) == (0, 0)
    assert runtime.total_message_count == 6
    assert runtime.size_in_bytes > 0
    assert abs(runtime.created_at_utc - datetime.now(UTC)) < timedelta(minutes=1)


def test_topics_and_subscriptions_are_created_listed_counted_and_deleted(threaded, client):
    client.create_topic("news")
    for name in ("all", "audit"):
        client.create_subscription("news", name, max_delivery_count=4)
    fill(threaded, "news/subscriptions/all", dead=1, active=2)

    assert client.get_topic("news").status == "Active"
    assert client.get_topic_runtime_properties("news").subscription_count == 2
    assert [topic.name for topic in client.list_topics()] == ["news"]
    assert [subscription.name for subscription in client.list_subscriptions("news")] == ["all", "audit"]
    assert client.get_subscription("news", "all").max_delivery_count == 4
    runtime = client.get_subscription_runtime_properties("news", "all")
    assert (runtime.active_message_count, runtime.dead_letter_message_count) == (2, 1)
    listed = {
        property_.name: property_.total_message_count
        for property_ in client.list_subscriptions_runtime_properties("news")
    }
    assert listed == {"all": 3, "audit": 0}

    subscription = client.get_subscription("news", "all")
    subscription.status = "ReceiveDisabled"
    client.update_subscription("news", subscription)
    assert client.get_subscription("news", "all").status == "ReceiveDisabled"
    client.delete_subscription("news", "all")
    with pytest.raises(ResourceNotFoundError):
        client.get_subscription_runtime_properties("news", "all")
    client.delete_topic("news")
    assert list(client.list_topics()) == []


def test_lists_go_on_over_pages(client, threaded):
    for number in range(205):
        threaded.call(lambda number=number: threaded.server.create_queue(f"q{number}"))

    assert [queue.name for queue in client.list_queues_runtime_properties()] == [f"q{n}" for n in range(205)]


def test_a_name_that_is_taken_and_an_update_of_nothing_are_refused(client):
    queue = client.create_queue("orders")
    with pytest.raises(ResourceExistsError):
        client.create_queue("orders")
    client.delete_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        client.update_queue(queue)


def test_sessions_and_duplicate_detection_are_set_and_told(threaded, client):
    client.create_queue("orders", requires_session=True, requires_duplicate_detection=True)

    told = client.get_queue("orders")
    settings = threaded.server.broker.queues["orders"].settings
    assert told.requires_session
    assert told.requires_duplicate_detection
    assert settings.requires_session
    assert settings.duplicate_window == 600.0


def test_a_wrong_key_is_refused(threaded, client):
    wrong = threaded.server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    with (
        ServiceBusAdministrationClient.from_connection_string(
            wrong, connection_verify=str(threaded.server.ca_path)
        ) as impostor,
        pytest.raises(ClientAuthenticationError),
    ):
        impostor.get_queue("orders")


def test_a_client_that_does_not_trust_the_certificate_does_not_get_through(threaded, client):
    with (
        ServiceBusAdministrationClient.from_connection_string(
            threaded.server.connection_string, retry_total=0
        ) as distrusting,
        pytest.raises(ServiceRequestError),
    ):
        distrusting.get_queue("orders")


def test_an_error_fault_answers_with_its_status_as_often_as_it_says(threaded, client):
    client.create_queue("orders")
    fault = Fault("admin.get:/orders", "error", count=2, status=429, retry_after=1)
    threaded.call(lambda: threaded.server.faults.add(fault))

    for _ in range(2):
        with pytest.raises(HttpResponseError) as refused:
            client.get_queue("orders")
        assert refused.value.status_code == 429
        assert refused.value.response.headers["Retry-After"] == "1"
    assert client.get_queue("orders").name == "orders"


def test_a_dropped_connection_is_a_transport_error_and_the_next_request_works(threaded, client):
    client.create_queue("orders")
    threaded.call(lambda: threaded.server.faults.add(Fault("admin.*", "drop_connection")))

    with pytest.raises(Exception, match=r"(?i)connection"):
        client.get_queue("orders")
    assert client.get_queue("orders").name == "orders"


def test_latency_beyond_the_clients_patience_is_a_timeout(threaded, client):
    client.create_queue("orders")
    threaded.call(lambda: threaded.server.faults.add(Fault("admin.*", "latency", seconds=30)))

    with pytest.raises(Exception, match=r"(?i)timed out"):
        client.get_queue("orders", read_timeout=0.2)


class AnyToken:
    """A credential whose bearer token the local server takes as it takes any."""

    async def get_token(self, *scopes, **kwargs):
        return AccessToken("anything", 2**40)

    async def close(self):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.close()


async def test_the_async_client_works_with_a_token_credential_on_the_loop_of_the_server(tmp_path):
    async with (
        ServiceBusServer(ca_dir=tmp_path) as server,
        AsyncAdministrationClient(
            server.endpoint, AnyToken(), connection_verify=str(server.ca_path)
        ) as administration,
    ):
        server.create_queue("orders")
        server.create_topic("news")
        server.create_subscription("news", "all")

        runtime = await administration.get_queue_runtime_properties("orders")
        subscription = await administration.get_subscription_runtime_properties("news", "all")
        with pytest.raises(ResourceNotFoundError):
            await administration.get_queue_runtime_properties("other")

        assert (runtime.name, runtime.active_message_count) == ("orders", 0)
        assert (subscription.name, subscription.active_message_count) == ("all", 0)
        assert server.counts("orders") == Counts()
