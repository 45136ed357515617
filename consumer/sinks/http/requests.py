"""What is sent to a web service, and what its answers mean. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import UNSET

from consumer.mapping.documents import read_object, rejected
from consumer.mapping.paths import find
from consumer.mapping.sources import parse_source
from consumer.model import Event, Operation, Outcome, Record, Rejection, Stream, Write, WriteResult
from tidemark.foundation.errors import SettingsError

_NAME = re.compile(r"\{([^{}]*)\}")
_RETRY = {401, 403, 407, 408, 425, 429}
"""401, 403 and 407 are about the secret and not about the document: with an expired one, every event would become a dead letter."""
SENDING = frozenset({Operation.UPSERT})


class UrlTemplate:
    """A URL with the values of a document, such as `https://api.example.com/flights/{$.id}`. Raises SettingsError."""

    def __init__(self, text: str) -> None:
        self.plain = _NAME.sub("x", text)
        """With an x for each value."""
        if "{" in urlsplit(text).netloc or "{" in self.plain or "}" in self.plain:
            raise SettingsError(
                f"the url '{text}' is not accepted; expected an address such as https://api.example.com/flights/{{$.id}}, whose"
                " host is fixed"
            )
        self._text = text
        self._sources = {name: parse_source("url", name) for name in _NAME.findall(text)}

    @property
    def is_fixed(self) -> bool:
        return not self._sources

    def url(self, event: Event, document: Mapping[str, Any]) -> str | Rejection:
        """Values are percent-encoded whole, so that none of them adds a part to the path."""
        values: dict[str, str] = {}
        for name, source in self._sources.items():
            value = getattr(event, source, None) if isinstance(source, str) else find(document, source)
            if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
                shown = "missing" if value is UNSET or value is None else f"{value!r:.60}"
                return Rejection("url", f"'{name}' of the url is {shown}; expected a text or a whole number")
            text = str(value)
            if text in {
                ".",
                "..",
            }:  # which no encoding protects: a client would take them for steps in the path
                return Rejection("url", f"'{name}' of the url is '{text}', which changes the path")
            values[name] = quote(text, safe="")
        return _NAME.sub(lambda match: values[match[1]], self._text)


class RequestMapper:
    """Prepares documents. The URL is the record's `partition_key`, and `key` is the source of what keeps its order."""

    def __init__(self, template: UrlTemplate, key: str) -> None:
        self._template = template
        self._key = parse_source("key", key) if key else None

    def prepare(self, write: Write) -> Record:
        event = write.event
        if write.operation not in SENDING:
            why = f"the operation {write.operation} is impossible here: a document is sent, and what the service makes of it is its own matter"
            return rejected(event, Rejection("operation", why))
        document = read_object(event) if write.document is None else write.document
        if isinstance(document, Rejection):
            return rejected(event, document)
        url = self._template.url(event, document)
        if isinstance(url, Rejection):
            return rejected(event, url)
        key = self._key_of(event, document) or f"{event.partition}~{event.sequence_number}~{write.index}"
        body = msgspec.json.encode(document)
        return Record(event, key, body, url, operation=write.operation, sink=write.sink, index=write.index)

    def _key_of(self, event: Event, document: Mapping[str, Any]) -> str:
        if self._key is None:
            return ""
        value = getattr(event, self._key, None) if isinstance(self._key, str) else find(document, self._key)
        return "" if value is None or value is UNSET else msgspec.json.encode(value).decode()


def body_of(records: Sequence[Record], *, is_list: bool) -> bytes:
    """One document, or an array of them."""
    return b"[%s]" % b",".join(record.payload for record in records) if is_list else records[0].payload


def idempotency_key(stream: Stream, records: Sequence[Record]) -> str:
    """Equal for each time that the same records are sent together, and different for all others."""
    digest = hashlib.blake2b(stream.topic.encode(), digest_size=16)
    for record in records:
        digest.update(f"~{record.event.place}~{record.event.sequence_number}~{record.index}".encode())
    return digest.hexdigest()


def result_of(status: int, headers: Mapping[str, str], body: bytes, retry_after: float | None) -> WriteResult:
    """What an answer means for the records of its request; `retry_after` are the seconds that it asks for."""
    if 200 <= status < 300:
        return WriteResult(Outcome.WRITTEN, status)
    reason = f"the service answered {status} {_phrase(status)}".rstrip()
    if 300 <= status < 400:
        to = headers.get("Location", "nowhere")[:200]
        return WriteResult(
            Outcome.RETRY, status, f"{reason} to {to}; redirects are not followed: change the url"
        )
    if text := body.decode(errors="replace").strip():
        reason = f"{reason}: {text[:500]}"
    if status >= 500 or status in _RETRY:
        return WriteResult(Outcome.RETRY, status, reason, retry_after)
    return WriteResult(Outcome.REJECT, status, reason)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
