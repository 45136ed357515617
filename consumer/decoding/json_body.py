"""JSON bodies. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from consumer.decoding.bodies import Format, content_type_of
from consumer.mapping.documents import read_object
from consumer.model import Event, Rejection

JSON_SCHEMA_TYPE = re.compile(r";\s*serialization\s*=\s*json\s*\+\s*([0-9a-f]{32})\s*$", re.IGNORECASE)
"""In the content type that azure-schemaregistry's encoder for JSON schemas writes."""

_BOM = b"\xef\xbb\xbf"
_EMPTY = Event("", 0, "", 0.0, b"")


def read_documents(body: bytes, *, arrays: bool = False) -> list[Any] | Rejection:
    """The object in a body; with `arrays` also the elements of an array."""
    return _documents(structs.replace(_EMPTY, body=body), arrays=arrays)


def _documents(event: Event, *, arrays: bool) -> list[Any] | Rejection:
    document = read_object(event)
    if not isinstance(document, Rejection):
        return [document]
    if arrays and document.reason == "not_object":
        elements = msgspec.json.decode(event.body.removeprefix(_BOM))
        if isinstance(elements, list):
            return elements
    return document


def read_value(body: bytes) -> Any | Rejection:
    """Any value of JSON."""
    documents = read_documents(body)
    if isinstance(documents, Rejection):
        return msgspec.json.decode(body.removeprefix(_BOM)) if documents.reason == "not_object" else documents
    return documents[0]


class JsonFormat(Format):
    """A schema of the registry is not needed to read JSON. Its id is in the rejection of a body that is none."""

    def __init__(self, *, arrays: bool = False) -> None:
        self._arrays = arrays

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        documents = _documents(event, arrays=self._arrays)
        if isinstance(documents, Rejection) and (match := JSON_SCHEMA_TYPE.search(content_type_of(event))):
            return Rejection(documents.reason, f"{documents.detail} (schema {match[1].lower()})")
        return documents
