"""Decoders and the local schema registry: by id, by name, and as a registry of Confluent's kind; found, unknown, refused, silent."""

import asyncio
import json
import struct
import urllib.request
from ssl import create_default_context

import pytest

from consumer.decoding.avro_schemas import parse_schema
from consumer.decoding.table import DecoderContext, build_decoder
from consumer.model import Rejection
from devstack.resource_manager import ResourceManagerServer
from devstack.schema_registry import SchemaRegistryServer
from devstack.servers.certificates import ensure_certificate
from devstack.servers.faults import Fault
from tests.support.consumer.decoding import ORDER, event, read_decoder, zigzag
from tidemark.foundation.errors import UnavailableError

pytestmark = pytest.mark.wire

TEXT = json.dumps(ORDER)
BODY = zigzag(1) + b"a" + zigzag(5)
DOCUMENT = {"id": "a", "n": 5}


class Registry(SchemaRegistryServer):
    """With the settings of whoever reads it, in `settings`."""


@pytest.fixture
async def server(tmp_path_factory):
    certificate = ensure_certificate(tmp_path_factory.getbasetemp() / "certificate")
    async with (
        ResourceManagerServer(certificate=certificate) as arm,
        Registry(certificate) as registry,
    ):
        registry.settings = {
            "SchemaRegistry__fullyQualifiedNamespace": registry.namespace,
            "ConfluentRegistry": registry.base_url,
            "ConfluentRegistry__username": "reader",
            "ConfluentRegistry__password": "secret",
            "TIDEMARK_TRUSTED_HOSTS": "localhost",
            "TIDEMARK_CA_BUNDLE": str(registry.ca_path),
            "IDENTITY_ENDPOINT": arm.identity_endpoint,
            "IDENTITY_HEADER": arm.identity_header,
        }
        yield registry


def decoder(server, clock=lambda: 0.0, **table):
    name, options = read_decoder(table)
    return build_decoder(name, options, DecoderContext(server.settings, clock))


async def decode(made, *events, within=20.0):
    if ids := made.missing(events):
        await made.load(ids, deadline=asyncio.get_running_loop().time() + within)
    return [made.decode(each) for each in events]


async def test_schemas_are_found_by_id_once_with_a_token_of_the_identity(server):
    schema = server.register("shop", "Order", TEXT)
    other = server.register("shop", "Other", "{}", "application/json; serialization=Json")
    made = decoder(server, format="avro")
    ids = [schema.id, schema.id.upper(), "f" * 32, other.id]
    events = [event(BODY, f"avro/binary+{each}") for each in ids]

    for _ in range(2):
        first, upper, strange, json_schema = await decode(made, *events)
        assert first == upper == [DOCUMENT]
        assert (strange.reason, json_schema.reason) == ("schema_unknown", "schema")
        assert other.id in json_schema.detail
    assert len(server.asked) == 3


async def test_schemas_are_found_by_the_fingerprints_of_all_versions_of_a_name(server):
    later = json.dumps({**ORDER, "fields": [*ORDER["fields"], {"name": "m", "type": "int"}]})
    newest = json.dumps({**ORDER, "name": "Newest"})
    for text in (TEXT, later):
        server.register("shop", "Order", text)
    now = [0.0]
    made = decoder(server, clock=lambda: now[0], format="avro_single_object", names=["shop/Order"])

    def single(text, body):
        return event(b"\xc3\x01" + bytes.fromhex(parse_schema(text, "").fingerprint) + body)

    events = single(TEXT, BODY), single(later, BODY + zigzag(1)), single(newest, BODY)
    found = await decode(made, *events)
    assert found[:2] == [[DOCUMENT], [{**DOCUMENT, "m": 1}]]
    assert found[2].reason == "schema_unknown"
    server.register("shop", "Order", newest)
    now[0] = 61.0
    assert (await decode(made, *events))[2] == [DOCUMENT]


async def test_schemas_of_confluents_kind_are_found_with_what_they_refer_to(server):
    def register(subject, schema, **more):
        body = json.dumps({"schema": json.dumps(schema), **more}).encode()
        request = urllib.request.Request(
            f"{server.base_url}/subjects/{subject}/versions", data=body, method="POST"
        )
        with urllib.request.urlopen(
            request, context=create_default_context(cafile=str(server.ca_path))
        ) as answer:
            return json.load(answer)["id"]

    def publish():
        register("line", {"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "int"}]})
        lines = {"type": "record", "name": "shop.Lines", "fields": [{"name": "of", "type": "shop.Line"}]}
        line = {"name": "shop.Line", "subject": "line", "version": 1}
        register("a%2Fb", lines, references=[line])
        last = {"type": "record", "name": "R", "fields": [{"name": "l", "type": "shop.Lines"}]}
        refers = [{"name": "shop.Lines", "subject": "a/b", "version": 1}]
        late = [{"name": "shop.Later", "subject": "later", "version": 1}]
        ids = register("last", last, references=refers), register("json", {}, schemaType="JSON")
        return *ids, register("early", {**last, "name": "E"}, references=late)

    avro, as_json, early = await asyncio.to_thread(publish)
    made = decoder(server, format="confluent")
    framed = [struct.pack(">BI", 0, number) for number in (avro, as_json, 99, early)]
    found = await decode(
        made,
        event(framed[0] + zigzag(3)),
        event(framed[1] + b'{"a":1}'),
        event(framed[2] + BODY),
        event(framed[3]),
    )

    assert found[:2] == [[{"l": {"of": {"n": 3}}}], [{"a": 1}]]
    assert [each.reason for each in found[2:]] == ["schema_unknown"] * 2


FAULTS = [
    (Fault("registry.get", "error", None, status=403, condition="Forbidden"), "Forbidden"),
    (Fault("registry.get", "error", None, status=401), "401|Unauthorized|Fault"),
    (Fault("registry.get", "error", None, status=503), "503|Fault"),
    (Fault("registry.get", "error", None, status=400), "Fault"),
    (Fault("registry.get", "drop_connection", None), "registry localhost"),
    (Fault("registry.get", "latency", None, seconds=30.0), "no answer in time"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS, ids=lambda value: getattr(value, "kind", str(value)))
async def test_a_registry_that_does_not_answer_is_unavailable_and_the_schema_is_not_unknown(
    server, fault, said
):
    schema = server.register("shop", "Order", TEXT)
    made = decoder(server, registry="SchemaRegistry")
    received = event(BODY, f"avro/binary+{schema.id}")

    server.faults.add(fault)
    with pytest.raises(UnavailableError, match=said):
        await decode(made, received, within=1.0 if fault.kind == "latency" else 20.0)
    server.faults.clear()
    assert await decode(made, received) == [[DOCUMENT]]


async def test_an_answer_that_is_none_of_the_registry_is_no_schema(server):
    made = decoder(server, format="avro")
    server.faults.add(Fault("registry.get", "error", status=200))

    with pytest.raises(UnavailableError, match="the schema registry localhost"):
        await decode(made, event(BODY, "avro/binary+" + "f" * 32))


async def test_what_was_answered_is_kept_when_another_schema_is_not(server):
    schemas = [
        server.register("shop", f"Order{number}", TEXT.replace("Order", f"Order{number}"))
        for number in range(9)
    ]
    made = decoder(server, format="avro")
    server.faults.add(Fault("registry.get", "error", 3, status=403))
    events = [event(BODY, f"avro/binary+{schema.id}") for schema in schemas]

    with pytest.raises(UnavailableError):
        await decode(made, *events)
    asked = len(server.asked)
    assert await decode(made, *events) == [[DOCUMENT]] * 9
    assert len(server.asked) - asked == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("confluent.get", "error", status=401), "access refused, status 401"),
        (Fault("confluent.get", "error", status=500), "status 500"),
        (Fault("confluent.get", "error", status=404), "no registry at this address, status 404"),
        (Fault("confluent.get", "error", status=302), "status 302"),
        (Fault("confluent.get", "error", status=200), "is no schema"),
        (Fault("confluent.get", "drop_connection", 2), "localhost"),
    ],
)
async def test_a_registry_of_confluents_kind_that_does_not_answer_is_unavailable(server, fault, said):
    made = decoder(server, format="confluent")
    server.faults.add(fault)

    with pytest.raises(UnavailableError, match=said):
        await decode(made, event(struct.pack(">BI", 0, 1) + BODY))
    server.faults.clear()
    [found] = await decode(made, event(struct.pack(">BI", 0, 1) + BODY))
    assert (type(found), found.reason) == (Rejection, "schema_unknown")


async def test_a_registry_that_is_gone_or_has_no_name_is_unavailable(server):
    gone = {**server.settings, "SchemaRegistry__fullyQualifiedNamespace": "localhost:9"}
    name, options = read_decoder({"format": "avro"})
    made = build_decoder(name, options, DecoderContext(gone))

    with pytest.raises(UnavailableError, match=r"the schema registry localhost:9 \(SchemaRegistry\)"):
        await decode(made, event(BODY, "avro/binary+" + "f" * 32))
    no_identity = {**server.settings, "IDENTITY_HEADER": "wrong"}
    made = build_decoder(name, options, DecoderContext(no_identity))
    with pytest.raises(UnavailableError, match="no credential gave a token"):
        await decode(made, event(BODY, "avro/binary+" + "f" * 32))
