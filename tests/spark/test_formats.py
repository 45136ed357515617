"""Both jobs on bodies of each format that they read, with schemas from files and from registries that the tasks ask themselves."""

import gzip
import io
import json
import struct
from contextlib import asynccontextmanager

import fastavro
import pytest
import zstandard

from consumer.decoding.avro_schemas import parse_schema
from devstack.resource_manager import ResourceManagerServer
from devstack.schema_registry import SchemaRegistryServer
from devstack.servers.certificates import ensure_certificate
from spark_jobs.backfill.run import backfill
from spark_jobs.backfill.target import read_target
from spark_jobs.backfill.transforms import Selection
from spark_jobs.reconciliation.job import Settings as ReconciliationSettings
from spark_jobs.reconciliation.job import run as reconcile
from spark_jobs.sources.capture.capture import read_capture
from tests.spark.backfill_world import FAST, captured
from tests.support.consumer.backfill import row
from tests.support.consumer.decoding import ORDER, descriptors, message_class, zigzag
from tests.support.servers.threaded import running_in_thread

EVENTS = 30
MESSAGE = {"CONSUMER_DECODER": "protobuf", "CONSUMER_PROTOBUF_MESSAGE": "shop.Order"}
BY_NAME = {"CONSUMER_DECODER": "avro_single_object", "CONSUMER_SCHEMA_NAMES": "shop/Order"}


def _order(n):
    """A record of ORDER in Avro's binary form."""
    return zigzag(len(f"a{n}")) + f"a{n}".encode() + zigzag(n)


def _array(n, _):
    return json.dumps([{"id": f"a{n}", "dest": "x"}, {"id": f"b{n}", "dest": "y"}]).encode()


def _rows(n, _):
    return f"id,dest\na{n},x\nb{n},y\n".encode()


def _text(n, _):
    return f"hello {n}".encode()


def _message(n, _):
    return message_class("shop.Order")(id=f"a{n}", big=n).SerializeToString()


def _single_object(n, _):
    return b"\xc3\x01" + bytes.fromhex(parse_schema(json.dumps(ORDER), "").fingerprint) + _order(n)


def _preamble(n, registry):
    return bytes(4) + registry.schemas[0].id.encode() + _order(n)


def _confluent(n, registry):
    return struct.pack(">BI", 0, int(registry.schemas[1].id)) + _order(n)


def _container(n, _):
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(ORDER), [{"id": f"{name}{n}", "n": n} for name in "ab"])
    return file.getvalue()


PACKED = {"none": bytes, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry with ORDER, as Azure's first and as Confluent's second schema. `settings` are those of who reads it."""
    certificate = ensure_certificate(tmp_path_factory.mktemp("certificate"))

    @asynccontextmanager
    async def servers():
        async with (
            ResourceManagerServer(certificate=certificate) as arm,
            SchemaRegistryServer(certificate) as registry,
        ):
            registry.register("shop", "Order", json.dumps(ORDER))
            registry.register("", "order", json.dumps({"schema": json.dumps(ORDER)}))
            yield arm, registry

    with running_in_thread(servers) as running:
        arm, found = running.server
        yield (
            found,
            {
                "SchemaRegistry__fullyQualifiedNamespace": found.namespace,
                "ConfluentRegistry": found.base_url,
                "TIDEMARK_TRUSTED_HOSTS": "localhost",
                "TIDEMARK_CA_BUNDLE": str(found.ca_path),
                "IDENTITY_ENDPOINT": arm.identity_endpoint,
                "IDENTITY_HEADER": arm.identity_header,
            },
        )


@pytest.mark.torture
@pytest.mark.parametrize(
    ("packing", "body", "settings", "documents"),
    [
        ("none", _rows, {"CONSUMER_DECODER": "csv"}, 2),
        ("gzip", _rows, {"CONSUMER_DECODER": "csv", "CONSUMER_ID": "position"}, 2),
        ("zstd", _array, {"CONSUMER_JSON_ARRAYS": "true", "CONSUMER_META": "true"}, 2),
        ("gzip", _text, {"CONSUMER_DECODER": "text", "CONSUMER_ID": "position"}, 1),
        ("gzip", _message, MESSAGE, 1),
        ("none", _single_object, BY_NAME, 1),
        ("zstd", _preamble, {"CONSUMER_DECODER": "avro_preamble"}, 1),
        ("gzip", _confluent, {"CONSUMER_DECODER": "confluent", "CONSUMER_META": "true"}, 1),
        ("none", _container, {"CONSUMER_DECODER": "avro_file"}, 2),
    ],
)
def test_what_a_backfill_writes_of_any_format_the_reconciliation_finds(
    spark, world, registry, tmp_path, body, settings, documents, packing
):
    (tmp_path / "shop.desc").write_bytes(descriptors())
    found, connection = registry
    world.settings |= {**connection, **settings, "CONSUMER_UNPACK": packing}
    if settings is MESSAGE:
        world.settings["CONSUMER_SCHEMA_FILES"] = str(tmp_path / "shop.desc")
    bodies = [PACKED[packing](body(n, found)) for n in range(EVENTS)]
    captured(tmp_path / "capture", [row(n, "0", each) for n, each in enumerate(bodies)])
    done = backfill(
        read_capture(spark, str(tmp_path / "capture")), Selection(), FAST, read_target(world.settings)
    )
    paths = {"capture": str(tmp_path / "capture"), "output": str(tmp_path / "out")}
    findings, _ = reconcile(
        ReconciliationSettings(consumer=world.settings, checkpoints=False, **paths), spark
    )

    assert (world.count(), done.total.written) == (EVENTS * documents, EVENTS * documents)
    assert (findings.counts, findings.failed, findings.copies) == ({"written": EVENTS}, False, 0)
