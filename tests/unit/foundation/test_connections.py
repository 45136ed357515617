"""App settings become clients; what is wrong is said by name, and never by value."""

import asyncio
import contextlib
import os
import threading

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import aio

from tidemark.foundation.azure import connections
from tidemark.foundation.azure.connections import (
    ConnectionSettingsError,
    IdentityCredential,
    blob_container,
    credential,
    describe_identity_error,
    describe_network_error,
    event_hub_client,
    event_hubs_endpoint,
    identity_setting,
    queue_client,
    service_bus_endpoint,
    storage_endpoint,
    table_service,
    transport_options,
)
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.azure.tables import unavailable
from tidemark.foundation.keys import namespace_host

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
STORAGE = f"DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={KEY};EndpointSuffix=core.windows.net"
BUS = f"Endpoint=sb://acme.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"


DEVELOPMENT = "http://127.0.0.1:{}/devstoreaccount1"


@pytest.mark.parametrize(
    ("setting", "value", "tables_at", "queues_at", "by"),
    [
        (
            "Orders",
            STORAGE,
            "https://acme.table.core.windows.net",
            "https://acme.queue.core.windows.net",
            "Key",
        ),
        ("Orders", "UseDevelopmentStorage=true", DEVELOPMENT.format(10002), DEVELOPMENT.format(10001), "Key"),
        *(
            (
                form,
                "acme",
                "https://acme.table.core.windows.net",
                "https://acme.queue.core.windows.net",
                "chain",
            )
            for form in ("Orders__accountName", "Orders:accountName", "orders__ACCOUNTNAME")
        ),
    ],
)
async def test_a_connection_gives_clients_of_its_account(setting, value, tables_at, queues_at, by):
    async with (
        table_service({setting: value}, "Orders") as tables,
        queue_client({setting: value}, "Orders", "actions") as queue,
    ):
        assert (tables.url, queue.url) == (tables_at, f"{queues_at}/actions")
        assert by in repr(tables.credential)


async def test_a_service_address_wins_over_the_account_name_for_its_service_only():
    settings = {"Orders__accountName": "acme", "Orders__tableServiceUri": "https://acme.table.example/"}

    assert storage_endpoint(settings, "Orders", "table").address == "https://acme.table.example"
    assert storage_endpoint(settings, "Orders", "queue").address == "https://acme.queue.core.windows.net"
    assert storage_endpoint(settings, "Orders", "blob").address == "https://acme.blob.core.windows.net"


def test_a_connection_string_wins_over_the_identity_family():
    settings = {"Orders": STORAGE, "Orders__accountName": "other"}

    endpoint = storage_endpoint(settings, "Orders", "table")

    assert endpoint.connection_string == STORAGE
    assert endpoint.credential is None


def test_blank_settings_count_as_missing():
    assert identity_setting({"Orders__accountName": "  "}, "Orders", "accountName") is None
    with pytest.raises(ConnectionSettingsError, match="no storage connection 'Orders'"):
        storage_endpoint({"Orders": " "}, "Orders", "table")


def test_a_missing_storage_connection_lists_everything_accepted():
    with pytest.raises(ConnectionSettingsError) as caught:
        storage_endpoint({}, "Orders", "queue")

    message = str(caught.value)
    for accepted in (
        "UseDevelopmentStorage=true",
        "Orders__queueServiceUri",
        "Orders__accountName",
        "Orders__credential=managedidentity",
        "Orders__clientId",
    ):
        assert accepted in message


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"Orders": f"AccountKey={KEY}"}, "Orders is not a storage connection string"),
        ({"Orders": KEY}, "Orders is not a storage connection string"),
        ({"Orders__tableServiceUri": f"http://a.example?sig={KEY}"}, "Orders__tableServiceUri"),
        ({"Orders__tableServiceUri": f"https://a.example?sig={KEY}"}, "Orders__tableServiceUri"),
        ({"Orders__accountName": f"acme.{KEY}"}, "Orders__accountName"),
        ({"Orders__accountName": "acme", "Orders__credential": KEY}, "Orders__credential"),
        ({"Orders": f"{STORAGE};garbage"}, "Orders is refused by the SDK"),
        ({"Orders": "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://x"}, "Orders is refused"),
        (
            {"Orders": f"TableEndpoint=https://a.b?sig={KEY};SharedAccessSignature=sig={KEY}"},
            "Orders is refused",
        ),
    ],
)
def test_a_malformed_storage_setting_is_named_and_its_value_is_not_shown(settings, named):
    with pytest.raises(ConnectionSettingsError) as caught:
        table_service(settings, "Orders")

    assert named in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_service_bus_connection_string_names_its_namespace_and_hides_its_key():
    endpoint = service_bus_endpoint({"OrdersServiceBus": BUS}, "OrdersServiceBus")

    assert endpoint.address == "acme.servicebus.windows.net"
    assert endpoint.connection_string == BUS
    assert KEY not in repr(endpoint)
    assert KEY not in repr(storage_endpoint({"Orders": STORAGE}, "Orders", "table"))


SPELLINGS = [
    "acme.servicebus.windows.net",
    "sb://acme.servicebus.windows.net/",
    "acme.servicebus.windows.net:5671",
    "https://acme.servicebus.windows.net.:443/",
    "ACME.ServiceBus.windows.net:5672",
]


@pytest.mark.parametrize("value", SPELLINGS)
def test_a_namespace_in_another_spelling_has_the_same_positions(value):
    text = f"Endpoint=sb://{value.partition('://')[2] or value};SharedAccessKeyName=a;SharedAccessKey={KEY}"

    assert event_hubs_endpoint({"Hubs": text}, "Hubs").address == SPELLINGS[0]


@pytest.mark.parametrize(
    "spelling", ["localhost:5672", "sb://LocalHost:5672/", "emulator:5673", "[::1]:5672"]
)
def test_an_emulator_keeps_the_port_that_tells_it_from_another(spelling):
    text = f"Endpoint=sb://{spelling.removeprefix('sb://')};SharedAccessKeyName=a;SharedAccessKey={KEY}"
    stored = spelling.removeprefix("sb://").removesuffix("/").lower()

    assert event_hubs_endpoint({"Hubs": text}, "Hubs").address == stored
    assert namespace_host(stored) == stored


@pytest.mark.parametrize("value", SPELLINGS)
def test_a_namespace_setting_gives_an_identity_endpoint(value):
    endpoint = service_bus_endpoint({"Bus__fullyQualifiedNamespace": value}, "Bus")

    assert endpoint.address == "acme.servicebus.windows.net"
    assert endpoint.connection_string is None
    assert repr(endpoint.credential) == "IdentityCredential(default chain)"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "Bus__fullyQualifiedNamespace"),
        ({"Bus": f"Endpoint=sb://x/;SharedAccessKey={KEY}"}, "SharedAccessKeyName"),
        ({"Bus": f"SharedAccessKeyName=a;SharedAccessKey={KEY}"}, "Endpoint=sb://"),
    ],
)
def test_a_service_bus_connection_that_cannot_work_is_refused_by_name(settings, named):
    with pytest.raises(ConnectionSettingsError) as caught:
        service_bus_endpoint(settings, "Bus")

    assert "'Bus'" in str(caught.value) or str(caught.value).startswith("Bus ")
    assert named in str(caught.value)
    assert KEY not in str(caught.value)


class RecordingCredential:
    """Stands in for azure-identity: counts what is opened, asked and closed."""

    opened: list

    def __init__(self, **options):
        self.options = options
        self.closed = False
        self.opened.append(self)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *details):
        self.closed = True

    async def get_token(self, *scopes, **options):
        return AccessToken(",".join(scopes), 4102444800)


@pytest.fixture
def recorded(monkeypatch):
    RecordingCredential.opened = []
    monkeypatch.setattr(aio, "DefaultAzureCredential", type("Default", (RecordingCredential,), {}))
    monkeypatch.setattr(aio, "ManagedIdentityCredential", type("Managed", (RecordingCredential,), {}))
    return RecordingCredential.opened


@pytest.mark.parametrize(
    ("extra", "kind", "options"),
    [
        ({}, "Default", {}),
        ({"P__clientId": "42"}, "Default", {"managed_identity_client_id": "42"}),
        ({"P__credential": "ManagedIdentity"}, "Managed", {"client_id": None}),
        ({"P__credential": "managedidentity", "P__clientId": "42"}, "Managed", {"client_id": "42"}),
    ],
)
async def test_the_identity_settings_choose_the_credential_and_it_is_closed_after_use(
    recorded, extra, kind, options
):
    token = await credential(extra, "P").get_token("https://storage.azure.com/.default")

    assert token.token == "https://storage.azure.com/.default"
    [used] = recorded
    assert type(used).__name__ == kind
    assert used.options == options
    assert used.closed


async def test_what_the_sdk_is_to_find_in_the_environment_is_there_while_it_looks_and_not_after(monkeypatch):
    monkeypatch.setenv("IDENTITY_HEADER", "of the host")
    seen = {}
    lent = {"IDENTITY_ENDPOINT": "http://localhost:8444", "IDENTITY_HEADER": "local"}
    look = lambda: seen.update({name: os.environ.get(name) for name in lent})
    monkeypatch.setattr(aio, "DefaultAzureCredential", look)

    IdentityCredential(environment=lent)._open()

    assert seen == {"IDENTITY_ENDPOINT": "http://localhost:8444", "IDENTITY_HEADER": "of the host"}
    assert "IDENTITY_ENDPOINT" not in os.environ


def test_threads_that_open_credentials_at_once_all_find_what_is_lent(monkeypatch):
    monkeypatch.delenv("IDENTITY_ENDPOINT", raising=False)
    both, seen = threading.Barrier(2), []

    def look():
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # at once, were it not for the lock
        seen.append(os.environ.get("IDENTITY_ENDPOINT"))

    monkeypatch.setattr(aio, "DefaultAzureCredential", look)
    lent = {"IDENTITY_ENDPOINT": "http://localhost:8444"}
    threads = [threading.Thread(target=IdentityCredential(environment=lent)._open) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == [lent["IDENTITY_ENDPOINT"]] * 2
    assert not both.n_waiting
    assert both.broken


async def test_a_token_is_kept_until_shortly_before_it_expires_and_not_after_a_service_refused_it(
    recorded, monkeypatch
):
    identity = credential({}, "P")
    for _ in range(2):
        token = await identity.get_token("a")
    assert len(recorded) == 1
    await identity.get_token("a", claims="of the refusal")
    assert len(recorded) == 2
    monkeypatch.setattr(connections.time, "time", lambda: token.expires_on - 200.0)
    await identity.get_token("a")

    assert len(recorded) == 3


async def test_concurrent_token_requests_do_not_share_a_credential(recorded):
    identity = credential({}, "P")

    await asyncio.gather(identity.get_token("a"), identity.get_token("b"))

    assert [used.closed for used in recorded] == [True, True]


async def test_a_ca_bundle_is_handed_to_the_clients(tmp_path, monkeypatch):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificates")
    seen = {}

    class Client:
        def __init__(self, endpoint, **options):
            seen.update(options)

    monkeypatch.setattr("azure.data.tables.aio.TableServiceClient", Client)
    table_service({"TIDEMARK_CA_BUNDLE": str(bundle), "P__accountName": "acme"}, "P")

    assert seen["connection_verify"] == str(bundle)
    assert transport_options({}) == {}


def test_a_ca_bundle_that_is_no_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConnectionSettingsError, match="TIDEMARK_CA_BUNDLE names"):
        transport_options({"TIDEMARK_CA_BUNDLE": str(tmp_path)})


def test_a_network_error_is_told_without_the_tls_object():
    error = OSError(
        "Cannot connect to host localhost:1 ssl:<ssl.SSLContext object at 0x7f> [Connect call failed]"
    )

    assert (
        describe_network_error(error) == "OSError: Cannot connect to host localhost:1 [Connect call failed]"
    )


@pytest.mark.parametrize(
    ("headers", "cosmos", "seconds"),
    [
        ({"x-ms-retry-after-ms": "250", "Retry-After": "600"}, True, 0.25),
        ({"retry-after-ms": "250", "Retry-After": "600"}, False, 0.25),
        ({"Retry-After": "600"}, True, None),
        ({"Retry-After": "600"}, False, 600.0),
        ({"x-ms-retry-after-ms": "nan", "retry-after-ms": "soon", "Retry-After": "inf"}, False, None),
        ({"Retry-After": "-5"}, False, 0.0),
        ({"Retry-After": "30, 40"}, False, 40.0),  # two of one name, joined on the way
        (
            {"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"},
            False,
            30.0,
        ),
    ],
)
def test_a_service_is_obeyed_by_the_headers_that_are_its_own(headers, cosmos, seconds):
    assert retry_after(headers, cosmos=cosmos) == seconds


HUBS = BUS.replace("acme", "acme-hubs")


@pytest.mark.parametrize("proxy", [None, "http://proxy:3128"])
async def test_checkpoints_look_for_a_proxy_only_where_one_is_set(monkeypatch, proxy):
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    if proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    async with blob_container({"Work": STORAGE}, "Work", "checkpoints") as container:
        assert container._pipeline._transport._use_env_settings is bool(proxy)


async def test_a_blob_container_is_reached_by_connection_string_or_identity():
    async with (
        blob_container({"Work": STORAGE}, "Work", "checkpoints") as by_key,
        blob_container({"Work__accountName": "acme"}, "Work", "checkpoints") as by_identity,
    ):
        assert by_key.url == by_identity.url == "https://acme.blob.core.windows.net/checkpoints"
        assert repr(by_identity.credential) == "IdentityCredential(default chain)"


async def test_an_event_hub_is_reached_by_connection_string_or_identity():
    async with (
        event_hub_client({"Hubs": f"{HUBS};EntityPath=other"}, "Hubs", "orders", "billing") as by_key,
        event_hub_client(
            {"Hubs__fullyQualifiedNamespace": "acme-hubs.servicebus.windows.net"}, "Hubs", "orders", "billing"
        ) as by_identity,
    ):
        for client in (by_key, by_identity):
            assert client.eventhub_name == "orders"
            assert client._auth_uri == ("sb://acme-hubs.servicebus.windows.net/orders/consumergroups/billing")
        assert repr(by_identity._credential) == "IdentityCredential(default chain)"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "no Event Hubs connection 'Hubs': set Hubs to a connection string"),
        ({"Hubs": "secret"}, "Hubs is not an Event Hubs connection string"),
        ({"Hubs": f"{HUBS};secret"}, "Hubs is refused by the SDK"),
    ],
)
def test_an_event_hubs_connection_that_cannot_work_is_refused_by_name(settings, named):
    with pytest.raises(ConnectionSettingsError, match=named) as raised:
        event_hub_client(settings, "Hubs", "orders", "$Default")

    assert "secret" not in str(raised.value)


NO_TOKEN = """DefaultAzureCredential failed to retrieve a token from the included credentials.
Attempted credentials:
\tEnvironmentCredential: EnvironmentCredential authentication unavailable. Environment variables are not fully configured.
Visit https://aka.ms/identity/troubleshoot to troubleshoot this issue.
\tManagedIdentityCredential: ManagedIdentityCredential authentication unavailable, no response from the IMDS endpoint.
\tAzureCliCredential: Azure CLI not found on path
\tAzureDeveloperCliCredential: Azure Developer CLI could not be found. Please visit https://aka.ms/azure-dev.
To mitigate this issue, please refer to the guidelines at https://aka.ms/identity/troubleshoot."""


def test_of_a_chain_of_credentials_each_says_why_it_has_no_token_and_no_more():
    assert describe_identity_error(ClientAuthenticationError(NO_TOKEN)) == (
        "no credential gave a token: Environment: Environment variables are not fully configured; "
        "ManagedIdentity: ManagedIdentityCredential authentication unavailable, no response from the IMDS endpoint; "
        "AzureCli: Azure CLI not found on path; AzureDeveloperCli: Azure Developer CLI could not be found"
    )
    assert describe_identity_error(ClientAuthenticationError("one line\nand more")) == "one line and more"


def test_a_store_that_nobody_may_sign_in_to_says_how():
    refused = ClientAuthenticationError("nobody is signed in")

    assert str(unavailable("table 'ScalingLog'", refused, "")) == (
        "table 'ScalingLog': nobody is signed in; sign in with `az login`"
    )
