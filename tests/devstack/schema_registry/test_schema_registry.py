"""The local schema registry by the unmodified SDKs: azure-schemaregistry, sync and async, and azure-schemaregistry-avroencoder."""

import json
import time
import urllib.error
import urllib.request
from ssl import create_default_context

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.eventhub import EventData
from azure.schemaregistry import SchemaFormat, SchemaRegistryClient
from azure.schemaregistry.aio import SchemaRegistryClient as AsyncClient
from azure.schemaregistry.encoder.avroencoder import AvroEncoder, InvalidContentError

from devstack.schema_registry import SchemaRegistryServer
from devstack.servers.certificates import ensure_certificate
from devstack.servers.faults import Fault
from tests.support.servers.threaded import running_in_thread

pytestmark = pytest.mark.wire

ORDER = json.dumps(
    {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "string"}]}
)
LATER = ORDER.replace('"string"}', '"string"}, {"name": "n", "type": "int", "default": 0}')
ONCE = {"retry_total": 0}


class Token:
    def get_token(self, *scopes, **options):
        assert scopes == ("https://eventhubs.azure.net/.default",)
        return AccessToken("any", int(time.time()) + 3600)


class AsyncToken(Token):
    async def get_token(self, *scopes, **options):
        return super().get_token(*scopes, **options)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return ensure_certificate(tmp_path_factory.getbasetemp() / "certificate")


@pytest.fixture(scope="module")
def running(certificate):
    with running_in_thread(lambda: SchemaRegistryServer(certificate)) as server:
        yield server


@pytest.fixture
def server(running):
    running.call(running.server.faults.clear)
    return running.server


@pytest.fixture
def client(server):
    verify = {"connection_verify": str(server.ca_path)}
    with SchemaRegistryClient(server.namespace, Token(), **verify, **ONCE) as made:
        yield made


def test_a_text_keeps_its_id_and_a_new_one_is_the_next_version(client):
    first = client.register_schema("shop", "versions", ORDER, "Avro")
    again = client.register_schema("shop", "versions", ORDER, "Avro")
    later = client.register_schema("shop", "versions", LATER, "Avro")

    assert (first.id, first.version) == (again.id, again.version)
    assert (first.version, later.version) == (1, 2)
    assert later.id != first.id
    assert client.get_schema_properties("shop", "versions", LATER, "Avro").id == later.id
    schema = client.get_schema(first.id)
    assert (schema.definition, schema.properties.format) == (ORDER, SchemaFormat.AVRO)
    assert (schema.properties.group_name, schema.properties.name) == ("shop", "versions")
    assert client.get_schema(group_name="shop", name="versions", version=2).definition == LATER


def test_what_is_not_there_is_not_found(client):
    client.register_schema("shop", "missing", ORDER, "Avro")
    for call in (
        lambda: client.get_schema("0" * 32),
        lambda: client.get_schema(group_name="shop", name="missing", version=2),
        lambda: client.get_schema_properties("shop", "missing", LATER, "Avro"),
    ):
        with pytest.raises(ResourceNotFoundError, match="ItemNotFound"):
            call()


@pytest.mark.parametrize("kind", ["Json", "Custom"])
def test_the_format_of_a_schema_is_kept(client, kind):
    made = client.register_schema("shop", f"kind-{kind}", '{"type": "object"}', kind)

    assert client.get_schema(made.id).properties.format == SchemaFormat(kind)


def test_the_encoder_writes_and_reads_events_by_it(client):
    with AvroEncoder(client=client, group_name="shop", auto_register=True) as encoder:
        event = encoder.encode({"id": "7"}, schema=ORDER, message_type=EventData)

        assert encoder.decode(event) == {"id": "7"}
        name, _, schema_id = event.content_type.partition("+")
        assert (name, client.get_schema(schema_id).definition) == (
            "avro/binary",
            json.dumps(json.loads(ORDER)),
        )
        event.content_type = "avro/binary+" + "0" * 32
        with pytest.raises(ResourceNotFoundError):
            encoder.decode(event)
        event.content_type = "avro/binary"
        with pytest.raises(InvalidContentError):
            encoder.decode(event)


async def test_the_asynchronous_client_speaks_to_it_alike(server):
    verify = {"connection_verify": str(server.ca_path)}
    async with AsyncClient(server.namespace, AsyncToken(), **verify, **ONCE) as client:
        made = await client.register_schema("shop", "async", ORDER, "Avro")

        assert (await client.get_schema(made.id)).definition == ORDER
        with pytest.raises(ResourceNotFoundError):
            await client.get_schema("0" * 32)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "error", "status": 403, "condition": "Forbidden"}, "Forbidden"),
        ({"kind": "error", "status": 503}, "Fault"),
        ({"kind": "drop_connection"}, "Connection aborted|closed connection|Remote"),
    ],
)
def test_a_fault_is_what_the_client_is_told_once(running, server, client, fault, expected):
    made = client.register_schema("shop", "faults", ORDER, "Avro")
    running.call(lambda: server.faults.add(Fault("registry.get", **fault)))

    with pytest.raises(Exception, match=expected):
        client.get_schema(made.id)
    assert client.get_schema(made.id).definition == ORDER


def test_faults_are_ordered_over_http_too_and_a_token_is_needed(server, client):
    context = create_default_context(cafile=str(server.ca_path))
    body = json.dumps({"where": "registry.put", "kind": "error", "status": 429}).encode()
    urllib.request.urlopen(
        urllib.request.Request(f"{server.base_url}/faults", data=body, method="POST"), context=context
    ).close()

    with pytest.raises(HttpResponseError) as refused:
        client.register_schema("shop", "over-http", ORDER, "Avro")
    assert refused.value.status_code == 429
    with pytest.raises(urllib.error.HTTPError) as stranger:
        urllib.request.urlopen(f"{server.base_url}/$schemaGroups?api-version=2022-10", context=context)
    assert stranger.value.code == 401
    stranger.value.close()


def test_a_folder_keeps_the_schemas_for_the_next_start(certificate, tmp_path):
    for number in range(2):
        with running_in_thread(lambda: SchemaRegistryServer(certificate, data_dir=tmp_path)) as running:
            if not number:
                made = running.call(lambda: running.server.register("shop", "kept", ORDER))
            assert running.server.schemas == [made]
