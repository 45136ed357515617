"""What the body of a row becomes: Avro with the id of its schema in a schema registry, and CloudEvents.

Both are decided for each row by itself, so that a row that is sent again is the same event.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from tidemark.foundation.azure.connections import (
    credential,
    describe_identity_error,
    identity_setting,
    transport_options,
)
from tidemark.foundation.keys import namespace_host
from tidemark.foundation.pacing import patience
from tidemark.foundation.version import install_hint
from tidemark.publisher.cli.text.event_fields import read_object, text_of
from tidemark.publisher.cli.text.lines import InputLine
from tidemark.publisher.errors import PublishRefusedError, PublishSettingsError, PublishUnavailableError

if TYPE_CHECKING:
    from azure.schemaregistry.aio import SchemaRegistryClient


BINARY, STRUCTURED = "binary", "structured"
_JSON = "application/json"


class Encoded(Struct):
    """Body and content type (None: as the options say), and properties that the encoding adds."""

    body: bytes
    content_type: str | None = None
    properties: dict[str, str] = {}


class AvroEncoder(Struct, frozen=True):
    """Writes rows by a parsed schema of fastavro; `schema_id` is that of the registry."""

    schema: Any
    schema_id: str

    @classmethod
    def of_definition(cls, definition: str, schema_id: str, name: str) -> AvroEncoder:
        """`name` is that of the file with the schema. Raises PublishSettingsError."""
        import fastavro

        try:
            return cls(fastavro.parse_schema(msgspec.json.decode(definition)), schema_id)
        except Exception as error:
            raise PublishSettingsError(f"{name} is no Avro schema: {type(error).__name__}: {error}") from None

    def encode(self, line: InputLine) -> Encoded:
        """Raises PublishSettingsError naming row and column."""
        from fastavro import schemaless_writer, validate

        row = line.row if line.row is not None else read_object(line.body, line.number)
        output = BytesIO()
        try:
            schemaless_writer(output, self.schema, row, strict_allow_default=True)
        except Exception:
            try:
                validate(row, self.schema, raise_errors=True)
            except Exception as found:  # it names the column
                error = found
            text = " ".join(str(error).split())
            raise PublishSettingsError(
                f"row {line.number} does not fit the schema {self.schema_id}: {text}; accepted: rows of that schema"
            ) from None
        return Encoded(output.getvalue(), f"avro/binary+{self.schema_id}")


class CloudEvents(Struct, frozen=True):
    """The attributes of CloudEvents 1.0. Without `id_field` an event's id is the name of the producer and the row's number."""

    mode: str
    source: str
    type: str
    producer: str
    id_field: str | None = None
    subject_field: str | None = None
    time_field: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in {BINARY, STRUCTURED}:
            raise PublishSettingsError(f"--cloudevents is {self.mode!r}, accepted: {BINARY} or {STRUCTURED}")

    def encode(self, line: InputLine, encoded: Encoded, content_type: str | None) -> Encoded:
        """Raises PublishSettingsError naming row and column."""
        kind = encoded.content_type or content_type or _JSON
        attributes = {"specversion": "1.0", "source": self.source, "type": self.type, **self._of_row(line)}
        if self.mode == BINARY:
            names = {f"cloudEvents:{name}": value for name, value in attributes.items()}
            return Encoded(encoded.body, kind, names)
        document: dict[str, Any] = {**attributes, "datacontenttype": kind}
        if kind.split(";")[0].strip().lower().endswith("json"):
            document["data"] = msgspec.Raw(encoded.body)
        else:
            document["data_base64"] = base64.b64encode(encoded.body).decode()
        return Encoded(msgspec.json.encode(document), "application/cloudevents+json; charset=utf-8")

    def _of_row(self, line: InputLine) -> dict[str, str]:
        fields = {"id": self.id_field, "subject": self.subject_field, "time": self.time_field}
        wanted = {attribute: field for attribute, field in fields.items() if field is not None}
        document = read_object(line.body, line.number) if wanted else {}
        values = {
            attribute: text_of(
                line.body, document, field, line.number, f"the attribute {attribute} of CloudEvents"
            )
            for attribute, field in wanted.items()
        }
        return {"id": f"{self.producer}-{line.number}", **values}


class RowEncoding(Struct, frozen=True):
    """Avro, then CloudEvents around it."""

    avro: AvroEncoder | None = None
    cloud_events: CloudEvents | None = None

    def encode(self, line: InputLine, content_type: str | None) -> Encoded:
        """Raises PublishSettingsError naming row and column."""
        encoded = Encoded(line.body) if self.avro is None else self.avro.encode(line)
        return encoded if self.cloud_events is None else self.cloud_events.encode(line, encoded, content_type)


def require_registry_packages() -> None:
    """Raises PublishSettingsError naming the extra."""
    for package in ("azure.schemaregistry", "fastavro"):
        if find_spec(package) is None:
            raise PublishSettingsError(
                f"--schema-registry needs the package {package}: {install_hint('decoders')}"
            )


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
        definition, where = _text_of(options.schema), str(options.schema)
    elif is_avro:
        definition, where = await asyncio.to_thread(_writer_schema, source), "the schema of the file"
    else:
        raise PublishSettingsError(
            "--schema-registry needs --schema FILE, an Avro schema; only Avro files have their own"
        )
    name = options.name or _record_name(definition, where)
    schema_id = await _ask(options, settings, name, definition)
    return AvroEncoder.of_definition(definition, schema_id, where)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PublishSettingsError(
            f"--schema {path} is not UTF-8 ({error.reason} at byte {error.start}); accepted: UTF-8"
        ) from None


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
        **patience.held().timeouts(),
        **transport_options(settings),
    )
