"""What the body of a row becomes: Avro with the id of its schema in a schema registry, and CloudEvents.

Both are decided for each row by itself, so that a row that is sent again is the same event.
"""

from __future__ import annotations

import base64
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import msgspec
from msgspec import Struct

from tidemark.foundation.version import install_hint
from tidemark.publisher.cli.text.event_fields import read_object, text_of
from tidemark.publisher.cli.text.input_line import InputLine
from tidemark.publisher.errors import PublishSettingsError

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
