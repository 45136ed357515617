import pytest
from aiohttp import web
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import HttpRequest

from devstack.servers.certificates import ensure_certificate
from devstack.servers.http import served
from tidemark.foundation.azure.connections import ConnectionSettingsError, IdentityCredential
from tidemark.foundation.azure.cosmos import cosmos_client, cosmos_endpoint

URL = "https://tidemark.documents.azure.com:443/"


@pytest.mark.parametrize(
    "text",
    [
        f"AccountEndpoint={URL};AccountKey=c2VjcmV0==;",
        f" accountendpoint = {URL} ; AccountKey=c2VjcmV0==;Database=x",
    ],
)
def test_a_connection_string_gives_address_and_key(text):
    endpoint = cosmos_endpoint({"Flights": text}, "Flights")

    assert (endpoint.url, endpoint.credential) == (URL, "c2VjcmV0==")
    assert "c2VjcmV0" not in repr(endpoint)


def test_an_account_endpoint_is_reached_by_identity():
    endpoint = cosmos_endpoint(
        {"Flights__accountEndpoint": URL, "Flights:credential": "managedidentity"}, "Flights"
    )

    assert endpoint.url == URL
    assert repr(endpoint.credential) == "IdentityCredential(managed identity)"
    assert isinstance(endpoint.credential, IdentityCredential)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "no Cosmos DB connection 'Flights': set Flights to a connection string, or"),
        ({"Flights": "c2VjcmV0"}, "Flights is not a Cosmos DB connection string; expected AccountEndpoint="),
        ({"Flights": f"AccountEndpoint={URL};c2VjcmV0"}, "Flights is not a Cosmos DB connection string"),
        (
            {"Flights": "AccountEndpoint=http://far.away/;AccountKey=c2VjcmV0"},
            "Flights is not a Cosmos DB connection string",
        ),
        (
            {"Flights__accountEndpoint": "tidemark.documents.azure.com"},
            "Flights__accountEndpoint is not an https address",
        ),
        (
            {"Flights__accountEndpoint": URL, "Flights__credential": "c2VjcmV0"},
            "Flights__credential is not known",
        ),
    ],
)
def test_what_is_missing_or_malformed_is_named_without_its_value(settings, message):
    with pytest.raises(ConnectionSettingsError, match=message) as caught:
        cosmos_endpoint(settings, "Flights")

    assert "c2VjcmV0" not in str(caught.value)


@pytest.fixture
async def tls_server(tmp_path):
    certificate = ensure_certificate(tmp_path)

    async def hello(_):
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    async with served(app, context=certificate.server_context()) as port:
        yield f"https://127.0.0.1:{port}/", str(certificate.cert_path)


@pytest.mark.wire
async def test_only_the_authorities_of_the_bundle_are_trusted(tls_server):
    url, bundle = tls_server
    settings = {"Flights": f"AccountEndpoint={URL};AccountKey=c2VjcmV0"}
    for more, trusted in (({"TIDEMARK_CA_BUNDLE": bundle}, True), ({}, False)):
        client = await cosmos_client({**settings, **more}, "Flights")
        transport = client.client_connection.pipeline_client._pipeline._transport
        try:
            sent = transport.send(HttpRequest("GET", url), connection_verify=True)
            if trusted:
                assert (await sent).status_code == 200
            else:
                with pytest.raises(ServiceRequestError, match="CERTIFICATE_VERIFY_FAILED"):
                    await sent
        finally:
            await transport.close()


async def test_a_proxy_is_looked_for_only_where_one_is_set():
    settings = {"Flights": f"AccountEndpoint={URL};AccountKey=c2VjcmV0"}
    for more, proxied in (({}, False), ({"HTTPS_PROXY": "http://proxy:3128"}, True)):
        client = await cosmos_client({**settings, **more}, "Flights")
        transport = client.client_connection.pipeline_client._pipeline._transport
        await transport.close()

        assert transport._use_env_settings is proxied


async def test_a_client_that_cannot_be_made_leaves_no_session_behind():
    with pytest.raises(TypeError):
        await cosmos_client(
            {"Flights": f"AccountEndpoint={URL};AccountKey=c2VjcmV0"}, "Flights", url="given twice"
        )
