"""The id of a schema in Azure Schema Registry."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from tidemark.foundation.azure.connections import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    credential,
    describe_identity_error,
    identity_setting,
    transport_options,
)
from tidemark.foundation.keys import namespace_host
from tidemark.publisher.cli.rows.encoding import AvroEncoder, require_registry_packages
from tidemark.publisher.errors import PublishRefusedError, PublishSettingsError, PublishUnavailableError

if TYPE_CHECKING:
    from azure.schemaregistry.aio import SchemaRegistryClient

_IDENTITY = (
    "IDENTITY_ENDPOINT",
    "IDENTITY_HEADER",
)  # of the local stack; the platform's is in the environment
_MISSING = 404


class RegistryOptions(Struct, frozen=True):
    """`prefix` is the app setting of the registry's namespace. Without `name` the schema has that of its record."""

    prefix: str
    group: str | None = None
    schema: Path | None = None
    name: str | None = None
    registers: bool = False


async def find_encoder(
    options: RegistryOptions, settings: Mapping[str, str], source: BinaryIO, *, is_avro: bool
) -> AvroEncoder:
    """The encoder for the rows of `source`, whose own schema counts if it is Avro and no other one is given.

    Raises PublishSettingsError, PublishRefusedError, PublishUnavailableError.
    """
    require_registry_packages()
    if options.group is None:
        raise PublishSettingsError(
            "--schema-registry needs --schema-group, the group of the schema in the registry"
        )
    if options.schema is not None:
        definition, where = options.schema.read_text(encoding="utf-8"), str(options.schema)
    elif is_avro:
        definition, where = await asyncio.to_thread(_writer_schema, source), "the schema of the file"
    else:
        raise PublishSettingsError(
            "--schema-registry needs --schema FILE, an Avro schema; only Avro files have their own"
        )
    name = options.name or _record_name(definition, where)
    schema_id = await _ask(options, settings, name, definition)
    return AvroEncoder.of_definition(definition, schema_id, where)


def _writer_schema(source: BinaryIO) -> str:
    import fastavro

    source.seek(0)
    try:
        text: str = fastavro.reader(source).metadata["avro.schema"]
    except Exception as error:
        raise PublishSettingsError(
            f"the file cannot be read as avro: {type(error).__name__}: {error}"
        ) from None
    finally:
        source.seek(0)
    return text


def _record_name(definition: str, where: str) -> str:
    try:
        schema: Any = msgspec.json.decode(definition)
    except msgspec.MsgspecError as error:
        raise PublishSettingsError(f"{where} is no Avro schema: {error}") from None
    name = schema.get("name") if isinstance(schema, dict) else None
    if not isinstance(name, str):
        raise PublishSettingsError(
            f"{where} is no record with a name; give the schema's name in the registry: --schema-name"
        )
    space = schema.get("namespace")
    return name if "." in name or not space else f"{space}.{name}"


async def _ask(options: RegistryOptions, settings: Mapping[str, str], name: str, definition: str) -> str:
    from azure.core.exceptions import AzureError, HttpResponseError

    namespace = namespace_host(identity_setting(settings, options.prefix, "fullyQualifiedNamespace") or "")
    if not namespace:
        raise PublishSettingsError(
            f"no schema registry connection '{options.prefix}': set {options.prefix}__fullyQualifiedNamespace to "
            "<namespace>.servicebus.windows.net"
        )
    try:
        async with await asyncio.to_thread(_client, namespace, options.prefix, settings) as client:
            ask = client.register_schema if options.registers else client.get_schema_properties
            return str((await ask(options.group or "", name, definition, "Avro")).id)
    except HttpResponseError as error:
        if error.status_code == _MISSING:
            raise PublishRefusedError(
                f"the schema registry {namespace} has no schema {options.group}/{name} like this one: check --schema-group and --schema, "
                "or give --register-schema, which adds it (and needs the role Schema Registry Contributor)"
            ) from None
        raise PublishUnavailableError(
            f"the schema registry {namespace}: {describe_identity_error(error)}"
        ) from error
    except (AzureError, OSError, ValueError) as error:
        raise PublishUnavailableError(
            f"the schema registry {namespace}: {describe_identity_error(error)}"
        ) from error


def _client(namespace: str, prefix: str, settings: Mapping[str, str]) -> SchemaRegistryClient:
    from azure.schemaregistry.aio import SchemaRegistryClient

    lent = {key: settings[key] for key in _IDENTITY if settings.get(key)}
    return SchemaRegistryClient(
        namespace,
        credential(settings, prefix, lent),
        connection_timeout=CONNECT_TIMEOUT,
        read_timeout=READ_TIMEOUT,
        **transport_options(settings),
    )
