"""CloudEvents: structured (a JSON object), in batches (an array of them), and binary (attributes in properties). Pure.

All become one form, the JSON format of CloudEvents: attributes, and `data` or `data_base64`. No attribute is invented: the SDK for
Python sets a missing `time` to that of reading, which would be another one in a replay.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from consumer.decoding.bodies import Format, content_type_of, finite, media_type
from consumer.decoding.json_body import read_documents, read_value
from consumer.decoding.rows import text_of
from consumer.model import Event, Rejection

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
_PREFIXES = ("cloudEvents:", "cloudEvents_", "ce_", "ce-")
"""Of properties, by the bindings for AMQP (both), Kafka, and HTTP."""

_REQUIRED = ("specversion", "id", "source", "type")
_VERSIONS = ("1.0", "0.3")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def attributes_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a binary event; {} for an event that is none."""
    attributes = {}
    for name, value in properties.items():
        if name.startswith(_PREFIXES) and value is not None:
            prefix = next(known_prefix for known_prefix in _PREFIXES if name.startswith(known_prefix))
            attributes[name[len(prefix) :]] = _attribute(name[len(prefix) :], value)
    return attributes


def _attribute(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if name == "time" and isinstance(value, int) and not isinstance(value, bool):
        at = _EPOCH + timedelta(milliseconds=value)  # a timestamp of AMQP
        return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
    if isinstance(value, float):
        return finite(value)
    return value if isinstance(value, str | int | bool) else str(value)


class CloudEventsFormat(Format):
    """`avro` reads data in Avro."""

    def __init__(self, avro: Format) -> None:
        self._avro = avro
        self.schemas = avro.schemas

    def has_document(self, event: Event) -> bool:
        return bool(event.body or attributes_of(event.properties))

    def shows_packing(self, event: Event) -> bool:
        return not content_type_of(event).startswith("avro/")

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        kind = media_type(content_type_of(event))
        if kind.startswith("application/cloudevents"):
            return self._structured(event, kind)
        attributes = attributes_of(event.properties)
        if not attributes:
            if content_type_of(event) in {"", "application/json"}:  # as some senders of structured ones say
                return self._structured(event, STRUCTURED)
            return Rejection(
                "cloudevent",
                f"neither the content type '{kind[:100]}' nor a property says that it is a CloudEvent",
            )
        return self._binary(event, attributes)

    def schema_of(self, event: Event) -> str:
        return self._avro.schema_of(event)

    def _structured(self, event: Event, kind: str) -> Sequence[Any] | Rejection:
        if kind not in {STRUCTURED, BATCH, "application/cloudevents", "application/cloudevents-batch"}:
            return Rejection("content_type", f"CloudEvents in the format '{kind[:100]}'; accepted: +json")
        batch = "-batch" in kind
        envelopes = read_documents(event.body, arrays=batch)
        if isinstance(envelopes, Rejection):
            return envelopes
        for index, envelope in enumerate(envelopes):
            problem = _problem(envelope)
            if problem:
                where = f"element {index}: " if batch else ""
                return Rejection("cloudevent", f"{where}{problem}"[:500])
        return envelopes

    def _binary(self, event: Event, attributes: dict[str, Any]) -> Sequence[Any] | Rejection:
        problem = _problem(attributes)
        if problem:
            return Rejection("cloudevent", problem[:500])
        content_type = content_type_of(event) or str(attributes.get("datacontenttype", ""))
        if content_type:
            attributes["datacontenttype"] = content_type
        if not event.body:
            return [attributes]
        kind = media_type(content_type)
        if kind.startswith("text/"):
            text = text_of(event.body)
            return text if isinstance(text, Rejection) else [{**attributes, "data": text}]
        if kind and not _is_read(kind):
            return [{**attributes, "data_base64": base64.b64encode(event.body).decode()}]
        data = self._data(event, kind)
        return data if isinstance(data, Rejection) else [{**attributes, "data": data}]

    def _data(self, event: Event, kind: str) -> Any:
        if not kind.startswith("avro/"):
            return read_value(event.body)
        documents = self._avro.decode(event)
        return documents if isinstance(documents, Rejection) else documents[0]


def _is_read(kind: str) -> bool:
    return kind in {"application/json", "text/json"} or kind.endswith("+json") or kind.startswith("avro/")


def _problem(envelope: Any) -> str:
    if not isinstance(envelope, dict):
        return "it is no object"
    for name in _REQUIRED:
        value = envelope.get(name)
        if not isinstance(value, str) or not value:
            return f"the attribute '{name}' is missing, empty or no text"
    if envelope["specversion"] not in _VERSIONS:
        return f"specversion is '{envelope['specversion']}'; accepted: {', '.join(_VERSIONS)}"
    if "data" in envelope and "data_base64" in envelope:
        return "it has both data and data_base64"
    return ""
